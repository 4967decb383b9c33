"""k-means with greedy k-means++ seeding and restarts, of fixed shape, for points or whole client models."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.choices import Positive
from fljax.placement import whole
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.checks import check_key, check_one
from fljax.server.entry import checked, compiled
from fljax.server.gram import centred, matrices_and_mask, squared
from fljax.server.labels import canonical
from fljax.types import AnyArray, Key, Stacked


class KMeans(NamedTuple):
    """The best of the restarts."""

    centers: Stacked  # (clusters, d), or leaves (clusters, ...), floating-point; empty clusters hold the overall mean
    label: Array  # (n,) int32, canonical; -1 where `where` is False
    inertia: Array  # () sum of squared distances of the points to the mean of their cluster


class Geometry(NamedTuple):
    """The distances that Lloyd's algorithm needs, for either representation of the points."""

    to_points: Callable[[Array], Array]  # (m,) indices -> (m, n) squared distances
    to_means: Callable[[Array], Array]  # (n,) label -> (n, clusters) squared distances; +inf to an empty cluster


@checked()
@partial(compiled, static_argnames=("n_clusters", "n_init"))
def kmeans(
    key: Key,
    x: Stacked,
    n_clusters: Positive,
    *,
    n_init: Positive = 20,
    n_steps: ArrayLike = 100,
    where: AnyArray | None = None,
) -> KMeans:
    """Lloyd's algorithm from ``n_init`` greedy k-means++ seedings; the lowest inertia wins, and of ties the first.

    Minimises ``sum_i |x_i - c_{a_i}|^2`` (Lloyd 1982; Arthur and Vassilvitskii 2007). If d > n, as for models,
    everything is computed from the n x n squared distances D, since
    ``|x_i - c_S|^2 = mean_{j in S} D_ij - sum_{j, l in S} D_jl / (2 |S|^2)``: the points are read once, and a restart
    costs O(n^2 clusters) a step whatever d is.

    A cluster that becomes empty takes the point farthest from its center, as in scikit-learn. With fewer distinct
    points than clusters, the surplus clusters stay empty, come last and hold the overall mean. Labels have no gradient;
    centers and inertia are differentiable with the labels held fixed; the gradient of inertia has the error stated for
    `pairwise_squared_l2`.

    Points that count must be finite, because their mean is subtracted: with one NaN, all clients are in cluster 0 and
    the centers are NaN. Exclude such points by ``where=tree.all_finite(x)``. Squared distances are float32: points
    nearer than 1e-19 count as equal, and norms must stay below 1e18.

    Args:
        key: random key.
        x: (n, d) array, or a pytree with leaves (n, ...), whose running statistics are averaged but not compared.
        n_clusters: at least 1, may exceed n; static.
        n_init: number of restarts, at least 1; static.
        n_steps: maximum number of Lloyd steps of a restart, 0 or more; stops earlier if no label changes.
        where: (n,) bool, the points that count; the others have no effect. None: all.

    Returns:
        KMeans(centers, label, inertia).

    Raises:
        ValueError: n_clusters or n_init is below 1, or lengths differ.
    """
    check_key(key)
    check_one(n_steps=n_steps)
    matrices, where = matrices_and_mask(x, where, None)
    is_compact = sum(matrix.shape[1] for matrix in matrices) > where.shape[0]
    representation = whole(
        squared(matrices, where) if is_compact else centred(jnp.concatenate(matrices, axis=1), where)
    )
    geometry = partial(_pairwise if is_compact else _direct, where=where, n_clusters=n_clusters)

    fixed = geometry(lax.stop_gradient(representation))
    # One after another, each restart reads the points at each step but ends once it has converged; with squared
    # distances, a step of all restarts is one matrix product. On an accelerator, side by side is always faster.
    is_sequential = not is_compact and jax.default_backend() == "cpu"
    label = _best_restart(key, fixed, where, n_clusters, n_init, jnp.asarray(n_steps, jnp.int32), is_sequential)
    inertia = _own_distance(geometry(representation).to_means(label), label).sum()
    weight = where.astype(jnp.float32)
    x = jax.tree.map(_as_floats, x)
    centers = cluster_mean(x, weight, label, empty=tree.broadcast(weighted_mean(x, weight), n_clusters))
    return KMeans(centers, canonical(label), inertia)


def _as_floats(leaf: Array) -> Array:
    """``leaf`` as floating-point numbers: the mean of integers is not an integer."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(jnp.float32)


def _best_restart(
    key: Key, geometry: Geometry, where: Array, n_clusters: int, n_init: int, n_steps: Array, is_sequential: bool
) -> Array:
    """Canonical labels of the restart with the lowest inertia; ``is_sequential``: restarts run one after another."""

    def restart(uniforms: Array) -> tuple[Array, Array]:
        seeds = plus_plus(uniforms, geometry.to_points, where)
        start = _assign(geometry.to_points(seeds).T, where)
        label = _lloyd(geometry, start, where, n_clusters, n_steps)
        return label, _own_distance(geometry.to_means(label), label).sum()

    # All random numbers at once: each further draw would take longer to compile than the rest of k-means.
    uniforms = 1 - jax.random.uniform(key, (n_init, n_clusters, 2 + int(math.log(n_clusters))), jnp.float32)
    label, inertia = lax.map(restart, uniforms) if is_sequential else jax.vmap(restart)(uniforms)
    return canonical(label[jnp.argmin(inertia)])


def plus_plus(uniforms: Array, to_points: Callable[[Array], Array], where: Array) -> Array:
    """Indices of seeds by greedy k-means++.

    Candidates for a seed are drawn with probability proportional to the squared distance to the nearest seed so far;
    the candidate that lowers the sum of squared distances most is kept. scikit-learn draws
    ``2 + floor(log n_clusters)`` candidates.

    Args:
        uniforms: (n_clusters, candidates) random numbers, uniform in (0, 1].
        to_points: (m,) indices -> (m, n) squared distances to all points.
        where: (n,) bool, the points that count.

    Returns:
        (n_clusters,) int32; indices repeat if there are fewer distinct points.
    """
    first_seed = _draw(where.astype(jnp.float32), uniforms[0, :1], where)
    nearest = jnp.where(where, to_points(first_seed)[0], 0)

    def step(nearest: Array, uniforms: Array) -> tuple[Array, Array]:
        candidates = _draw(nearest, uniforms, where)
        nearest_with = jnp.where(where[None, :], jnp.minimum(nearest[None, :], to_points(candidates)), 0)
        chosen = jnp.argmin(nearest_with.sum(axis=1))
        return nearest_with[chosen], candidates[chosen]

    _, further_seeds = lax.scan(step, nearest, uniforms[1:])
    return jnp.concatenate([first_seed, further_seeds])


def _draw(mass: Array, uniforms: Array, where: Array) -> Array:
    """(m,) indices with probability proportional to ``mass``, uniform if it is all zero, from (m,) random numbers."""
    total = jnp.cumsum(jnp.where(mass.sum() > 0, mass, where.astype(mass.dtype)))
    return jnp.argmax(total[None, :] >= (uniforms * total[-1])[:, None], axis=1).astype(jnp.int32)


def _lloyd(geometry: Geometry, label: Array, where: Array, n_clusters: int, n_steps: Array) -> Array:
    """Labels after assigning and averaging until no label changes; the labels imply the means."""

    def cond(carry: tuple[Array, Array, Array]) -> Array:
        _, step, moved = carry
        return moved & (step < n_steps)

    def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        old, step, _ = carry
        distance = geometry.to_means(old)
        new = _refill(distance, _assign(distance, where), n_clusters)
        return new, step + 1, jnp.any(new != old)

    return lax.while_loop(cond, body, (label, jnp.int32(0), jnp.bool(True)))[0]


def _assign(distance: Array, where: Array) -> Array:
    return jnp.where(where, jnp.argmin(distance, axis=1).astype(jnp.int32), -1)


def _own_distance(distance: Array, label: Array) -> Array:
    """(n,) each point's distance to its own cluster, 0 for label -1."""
    own_distance = jnp.take_along_axis(distance, jnp.maximum(label, 0)[:, None], axis=1)[:, 0]
    return jnp.where(label >= 0, own_distance, 0)


def _refill(distance: Array, label: Array, n_clusters: int) -> Array:
    """Labels after empty clusters, in order, took the points farthest from their centers, unless at distance 0."""
    is_empty = ~jax.nn.one_hot(label, n_clusters, dtype=bool).any(axis=0)
    distances, point = lax.top_k(_own_distance(distance, label), min(n_clusters, label.shape[0]))
    cluster = jnp.argsort(~is_empty).astype(jnp.int32)[: distances.shape[0]]
    is_taken = (jnp.arange(distances.shape[0]) < is_empty.sum()) & (distances > 0)
    return label.at[point].set(jnp.where(is_taken, cluster, label[point]))


def _pairwise(square: Array, where: Array, n_clusters: int) -> Geometry:
    """Geometry from the (n, n) squared distances alone."""

    def to_means(label: Array) -> Array:
        member = jax.nn.one_hot(label, n_clusters, dtype=square.dtype)
        size = member.sum(axis=0)[None, :]
        mean = tree.product(square, member) / jnp.maximum(size, 1)
        within = (member * mean).sum(axis=0)[None, :] / (2 * jnp.maximum(size, 1))
        return jnp.where(size > 0, jnp.maximum(mean - within, 0), jnp.inf)

    return Geometry(lambda index: square[index], to_means)


def _direct(x: Array, where: Array, n_clusters: int) -> Geometry:
    """Geometry from (n, d) points, for many points with few dimensions."""

    def between(centers: Array) -> Array:
        return jnp.square(x[None, :, :] - centers[:, None, :]).sum(axis=-1)

    def to_means(label: Array) -> Array:
        member = jax.nn.one_hot(label, n_clusters, dtype=x.dtype)
        size = member.sum(axis=0)
        centers = tree.product(member.T, x) / jnp.maximum(size, 1)[:, None]
        return jnp.where(size[None, :] > 0, between(centers).T, jnp.inf)

    return Geometry(lambda index: between(x[index]), to_means)
