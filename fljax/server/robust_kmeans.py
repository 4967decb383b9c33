"""k-means whose centers are coordinate-wise medians or trimmed means (Ghosh et al. 2019)."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.choices import Positive
from fljax.server.assign import nearest_center
from fljax.server.checks import check_key, check_one, cluster_numbers, everyone, n_rows
from fljax.server.distance import cross_squared_l2
from fljax.server.entry import SHARE, checked, compiled
from fljax.server.kmeans import KMeans
from fljax.server.labels import canonical
from fljax.server.robust import coordinate_median, is_within_reach, trimmed_mean
from fljax.types import AnyArray, Key, Params, Stacked

Center = Literal["median", "trimmed"]


@checked(fraction=SHARE)
@partial(compiled, static_argnames=("n_clusters", "center", "n_init"))
def robust_kmeans(
    key: Key,
    x: Stacked,
    n_clusters: Positive,
    center: Center = "trimmed",
    fraction: ArrayLike = 0.05,
    *,
    n_init: Positive = 20,
    n_steps: ArrayLike = 8,
    where: AnyArray | None = None,
) -> KMeans:
    """Lloyd's algorithm with a robust center: the server's clustering in robust clustered federated learning.

    Ghosh, Hong, Yin, Ramchandran, "Robust Federated Learning in a Heterogeneous Environment", 2019. Each restart starts
    from ``n_clusters`` random distinct clients, then assigns by squared L2 and moves every center to the median or
    trimmed mean of its members, coordinate by coordinate; an empty cluster keeps its center. With
    ``center="trimmed"`` and ``fraction=0``, this is Lloyd's algorithm. The restart with the smallest sum of *unsquared*
    distances wins, since attackers affect it less than a sum of squares; ``n_init=1`` is the published procedure.

    Args:
        key: random key.
        x: (n, d) array or a pytree with leaves (n, ...), float.
        n_clusters: at least 1, static; clusters beyond the number of points start at a used point and stay empty.
        center: "median" or "trimmed"; static.
        fraction: share trimmed on each side, see `trimmed_mean`: at least one entry per side of three or more.
        n_init: number of restarts, at least 1, static.
        n_steps: number of Lloyd steps; may be traced.
        where: (n,) bool, points that count; None: all. Points with NaN, or with a norm above 3e18, whose squared
            distances may overflow float32, do not count either.

    Returns:
        KMeans(centers, label, inertia): labels are canonical, -1 for points that do not count; centers are in the same
        order, empty clusters last; inertia is the sum of squared distances to the centers.

    Raises:
        ValueError: ``center`` is unknown, n_clusters or n_init is below 1, lengths differ, or ``fraction`` is out of
            its range.
    """
    check_key(key)
    check_one(n_steps=n_steps, fraction=fraction)
    where = everyone(n_rows("x", x), where, "x") & is_within_reach(x)

    def step(_: Array, centers: Stacked) -> Stacked:
        return robust_cluster_mean(x, _assign(x, centers, where), centers, center, fraction)

    def restart(key: Key) -> tuple[Stacked, Array]:
        centers = lax.fori_loop(0, jnp.asarray(n_steps, jnp.int32), step, _draw(key, x, n_clusters, where))
        return centers, jnp.sqrt(_own_square(x, centers, _assign(x, centers, where))).sum()

    centers, cost = lax.map(restart, jax.random.split(key, n_init))
    centers = tree.take(centers, jnp.argmin(cost))
    label = _assign(x, centers, where)
    inertia = _own_square(x, centers, label).sum()
    return KMeans(_reorder(centers, label, n_clusters), canonical(label), inertia)


@checked(fraction=SHARE)
@partial(compiled, static_argnames="center")
def robust_cluster_mean(
    stacked: Stacked, label: AnyArray, empty: Stacked, center: Center = "trimmed", fraction: ArrayLike = 0.05
) -> Stacked:
    """Every cluster's median or trimmed mean, coordinate by coordinate: a Byzantine-robust `cluster_mean`.

    Args:
        stacked: leaves (clients, ...), float.
        label: (clients,) int cluster of each client; a client outside 0..clusters-1 (such as -1) does not count.
        empty: leaves (clusters, ...): sets the number of clusters; empty clusters keep these rows.
        center: "median" or "trimmed"; static.
        fraction: share trimmed on each side, see `fljax.server.robust.trimmed_mean`.

    Returns:
        Leaves (clusters, ...).

    Raises:
        ValueError: ``center`` is unknown, lengths differ, labels are not integers, ``empty`` has other shapes, or
            ``fraction`` is out of its range.
    """
    label = cluster_numbers("label", label, n_rows("stacked", stacked), "stacked")
    check_one(fraction=fraction)
    n_clusters = n_rows("empty", empty)

    def mean(member: Array, old: Params) -> Params:
        if center == "median":
            return coordinate_median(stacked, member, old)
        return trimmed_mean(stacked, fraction, member, old)

    member = jax.nn.one_hot(label, n_clusters, dtype=bool, axis=0)
    return lax.map(lambda args: mean(*args), (member, empty))


def _draw(key: Key, x: Stacked, n_clusters: int, where: Array) -> Stacked:
    """Random distinct points that count, repeated if there are too few; zeros if there are none."""
    uniforms = jnp.where(where, jax.random.uniform(key, where.shape, jnp.float32), jnp.inf)
    seeds = jnp.argsort(uniforms)[jnp.arange(n_clusters) % jnp.maximum(where.sum(), 1)]
    start = tree.take(x, seeds)
    return tree.where(where[seeds], start, jax.tree.map(jnp.zeros_like, start))


def _assign(x: Stacked, centers: Stacked, where: Array) -> Array:
    return jnp.where(where, nearest_center(x, centers), -1)


def _own_square(x: Stacked, centers: Stacked, label: Array) -> Array:
    own_square = jnp.take_along_axis(cross_squared_l2(x, centers), jnp.maximum(label, 0)[:, None], axis=1)[:, 0]
    return jnp.where(label >= 0, own_square, 0)


def _reorder(centers: Stacked, label: Array, n_clusters: int) -> Stacked:
    """Centers in canonical order: by the lowest index of their members, empty clusters last."""
    member = jax.nn.one_hot(label, n_clusters, dtype=bool, axis=0)
    first = jnp.where(member.any(axis=1), jnp.argmax(member, axis=1), label.shape[0])
    return tree.take(centers, jnp.argsort(first, stable=True))
