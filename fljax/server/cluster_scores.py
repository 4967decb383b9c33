"""Compactness and separation of clusters: the silhouette from distances, the Davies-Bouldin score from points."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.ops import segment_sum

from fljax import tree
from fljax.choices import Positive
from fljax.server.checks import check_axes, check_square, check_vector, cluster_numbers, everyone
from fljax.server.entry import checked, compiled
from fljax.server.labels import rank
from fljax.types import AnyArray


@checked()
@compiled
def silhouette(distance: AnyArray, label: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Mean silhouette of a labelling on a distance matrix.

    A client with mean distance :math:`a` to the others of its cluster and :math:`b` to the nearest other cluster has
    the silhouette :math:`(b - a) / \max(a, b)`; 0 for the only member of a cluster and where both are 0.

    Args:
        distance: (n, n) with a zero diagonal.
        label: (n,) integers; -1 (noise) is a cluster like any other, as in scikit-learn: exclude it by ``where``.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () in [-1, 1]; 0 if undefined, that is for fewer than two clusters. Differentiable in ``distance``.

    Raises:
        ValueError: the matrix is not square, or lengths differ.

    Source: Rousseeuw, Silhouettes, Journal of Computational and Applied Mathematics 1987.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import silhouette
        >>> place = jnp.array([0.0, 1.0, 8.0, 9.0])
        >>> distance = jnp.abs(place[:, None] - place[None, :])
        >>> round(float(silhouette(distance, jnp.array([0, 0, 1, 1]))), 4)
        0.8745
    """
    n = check_square("distance", distance)
    check_vector("label", label, n, "distance")
    distance = tree.at_least_float32(distance)  # sums in narrower types would overflow
    mask = everyone(n, where, "distance")
    cluster = rank(label, mask)
    size = segment_sum(mask.astype(distance.dtype), cluster, n)
    masked = jnp.where(mask[:, None] & mask[None, :], distance, 0)
    total = segment_sum(masked.T, cluster, n).T  # (n, clusters): sum of distances to each cluster
    client = jnp.arange(n)
    inside = total[client, cluster] / jnp.maximum(size[cluster] - 1, 1)
    is_other = (size > 0)[None, :] & (jnp.arange(n)[None, :] != cluster[:, None])
    outside = jnp.where(is_other, total / jnp.maximum(size, 1)[None, :], jnp.inf).min(axis=1)
    larger = jnp.maximum(inside, outside)
    is_defined = mask & (size[cluster] > 1) & jnp.isfinite(outside) & (larger > 0)
    score = jnp.where(is_defined, (outside - inside) / jnp.where(is_defined, larger, 1), 0)
    return score.sum() / jnp.maximum(mask.sum(), 1).astype(distance.dtype)


@checked()
@partial(compiled, static_argnames="n_clusters")
def davies_bouldin(x: AnyArray, label: AnyArray, n_clusters: Positive) -> Array:
    r"""Davies-Bouldin score, :math:`\frac1k \sum_i \max_{j \ne i} (s_i + s_j) / |c_i - c_j|`; smaller is better.

    :math:`s_i` is the mean distance of the members of cluster i to their mean :math:`c_i`.

    Args:
        x: (n, d) points.
        label: (n,) integers; a point whose label is outside 0..n_clusters-1 does not count.
        n_clusters: at least 1, static.

    Returns:
        () 0 or more; inf if a cluster is empty or two clusters have equal means. Differentiable in ``x``.

    Raises:
        ValueError: ``x`` is not (n, d), lengths differ, labels are not integers, or n_clusters is below 1.

    Source: Davies and Bouldin, IEEE TPAMI 1979.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import davies_bouldin
        >>> float(davies_bouldin(jnp.array([[0.0], [1.0], [4.0], [5.0]]), jnp.array([0, 0, 1, 1]), 2))
        0.25
    """
    n, _ = check_axes("x", x, "n", "d")
    label = cluster_numbers("label", label, n, "x")
    is_counted = (label >= 0) & (label < n_clusters)
    x = jnp.where(is_counted[:, None], tree.at_least_float32(x), 0)  # points that do not count may be NaN
    # A common offset costs precision.
    x = x - x.sum(0, keepdims=True) / jnp.maximum(is_counted.sum(), 1).astype(x.dtype)
    member = jax.nn.one_hot(label, n_clusters, axis=0, dtype=jnp.float32)  # other labels get zeros
    size = member.sum(1)
    share = member / jnp.maximum(size, 1)[:, None]
    center = tree.product(share, x)
    spread = (share * _length(x[None] - center[:, None])).sum(1)
    distance = _length(center[:, None] - center[None])
    ratio = (spread[:, None] + spread[None]) / jnp.where(distance > 0, distance, 1)
    ratio = jnp.where(jnp.eye(n_clusters, dtype=bool), 0.0, jnp.where(distance > 0, ratio, jnp.inf))
    return jnp.where((size > 0).all(), ratio.max(1).mean(), jnp.inf)


def _length(x: Array) -> Array:
    """Length of vectors along the last axis."""
    return tree.root(jnp.square(x).sum(axis=-1))
