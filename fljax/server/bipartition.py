"""The bipartition of every current cluster at once: the split of clustered federated learning.

A method that accepts or rejects the split of each cluster calls `best_bipartition`, decides by ``cross`` (and other
properties of the cluster), and passes its decision to `split`::

    side, cross = best_bipartition(similarity, label)
    accept = jnp.sqrt(jnp.clip((1 - cross) / 2, 0, 1)) > gamma_max      # per client, equal within a cluster
    label = split(label, side, accept)

`bipartition` accepts every split.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.ops import segment_max, segment_min
from jax.typing import ArrayLike

from fljax import tree
from fljax.server.checks import check_axes, check_square, check_vector, everyone
from fljax.server.entry import checked, compiled
from fljax.server.labels import canonical, rank
from fljax.server.linkage import linkage as agglomerate
from fljax.server.tree_cuts import cut_k
from fljax.types import AnyArray

Linkage = Literal["single", "complete"]


class Bipartition(NamedTuple):
    """The two halves of every cluster."""

    side: Array  # (n,) bool; False in the half with the cluster's lowest-index client, True in the other
    cross: Array  # (n,) largest similarity across the halves of the client's cluster; +inf if it is not split


@checked()
@partial(compiled, static_argnames="linkage")
def best_bipartition(
    similarity: AnyArray, label: AnyArray, linkage: Linkage = "single", where: AnyArray | None = None
) -> Bipartition:
    r"""The best split of every cluster in two, and the largest similarity across its halves.

    "single" finds the optimum of :math:`\min_{c_1, c_2} \max_{i \in c_1, j \in c_2} \alpha_{ij}` over the bipartitions
    of a cluster: single linkage, cut into two clusters, leaves the largest spacing. "complete" cuts complete linkage
    into two, as the authors' published code does; it is not the optimum, but both find the correct split if two groups
    are separated by a positive gap.

    Args:
        similarity: (n, n) :math:`\alpha`, larger is more similar (a cosine, or a negated distance), symmetric; the
            diagonal is ignored.
        label: (n,) integers, the current clusters; a negative one belongs to no cluster.
        linkage: "single" or "complete"; static.
        where: (n,) bool, the clients that count; None: all. The others may hold NaN.

    Returns:
        `Bipartition`: ``side`` (n,) bool and ``cross`` (n,) :math:`\alpha_{cross}`. A cluster of one client is not
        split: its ``side`` is False and its ``cross`` +inf, as for clients in no cluster. ``cross`` is the similarity
        of one pair of clients, so it is differentiable almost everywhere.

    Raises:
        ValueError: unknown linkage, the matrix is not square, or lengths differ.

    Source: Sattler, Müller and Samek, Clustered Federated Learning, IEEE TNNLS 2020.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import best_bipartition
        >>> similarity = jnp.array([[1.0, 0.5, -0.5], [0.5, 1.0, 0.25], [-0.5, 0.25, 1.0]])
        >>> side, cross = best_bipartition(similarity, jnp.array([0, 0, 0]))
        >>> side.tolist(), float(cross[0])
        ([False, False, True], 0.25)
    """
    n = check_square("similarity", similarity)
    check_vector("label", label, n, "similarity")
    similarity = tree.at_least_float32(similarity)  # negating a uint8 would overflow
    member = everyone(n, where, "similarity") & (label >= 0)
    # Single and complete linkage use only the order of the similarities, so negative "distances" are no problem.
    halves = cut_k(agglomerate(-similarity, linkage, member, label), 2, member, label)
    cluster = rank(label, member)
    side = member & (halves > segment_min(halves, cluster, n)[cluster])
    is_across = (cluster[:, None] == cluster[None, :]) & (side[:, None] != side[None, :]) & member[:, None]
    largest = jnp.where(is_across, similarity, -jnp.inf).max(axis=1)
    cross = segment_max(largest, cluster, n)[cluster]
    has_two = segment_max(is_across.any(axis=1).astype(jnp.int32), cluster, n)[cluster] > 0
    return Bipartition(side, jnp.where(member & has_two, cross, jnp.inf))


@checked()
@compiled
def split(label: AnyArray, side: AnyArray, accept: ArrayLike, where: AnyArray | None = None) -> Array:
    """The clusters after the accepted splits.

    Args:
        label: (n,) integers, the current clusters; a negative one belongs to no cluster.
        side: (n,) bool, the halves of `Bipartition`.
        accept: (n,) bool, equal within a cluster, or () for all clusters: True where the split is made.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n,) int32, canonical, a refinement of ``label``; -1 for clients in no cluster and where ``where`` is False.

    Raises:
        ValueError: lengths differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import split
        >>> label, side = jnp.array([0, 0, 1, 1]), jnp.array([False, True, False, True])
        >>> split(label, side, label == 1).tolist()
        [0, 0, 1, 2]
    """
    (n,) = check_axes("label", label, "n")
    check_vector("side", side, n, "label")
    accept = jnp.asarray(accept)
    if accept.shape not in ((), (n,)):
        raise ValueError(f"accept has shape {accept.shape}; expected () or ({n},), one entry per row of label")
    member = everyone(n, where, "label") & (label >= 0)
    half = 2 * rank(label, member) + (side & accept).astype(jnp.int32)
    return canonical(half, member)


@checked()
@partial(compiled, static_argnames="linkage")
def bipartition(
    similarity: AnyArray, label: AnyArray, linkage: Linkage = "single", where: AnyArray | None = None
) -> Array:
    """All current clusters, each split in two: `best_bipartition` with every split accepted.

    Args:
        similarity: (n, n), larger is more similar, symmetric; the diagonal is ignored.
        label: (n,) integers, the current clusters; a negative one belongs to no cluster.
        linkage: "single" (the optimum) or "complete" (the authors' published code); static.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n,) int32, canonical, a refinement of ``label``: clusters of two or more clients become two, clusters of one
        client stay; -1 for clients in no cluster and where ``where`` is False.

    Raises:
        ValueError: unknown linkage, the matrix is not square, or lengths differ.

    Source: Sattler, Müller and Samek, Clustered Federated Learning, IEEE TNNLS 2020.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import bipartition
        >>> similarity = jnp.array([[1.0, 0.5, -0.5], [0.5, 1.0, 0.25], [-0.5, 0.25, 1.0]])
        >>> bipartition(similarity, jnp.array([0, 0, 0])).tolist()
        [0, 0, 1]
    """
    return split(label, best_bipartition(similarity, label, linkage, where).side, True, where)
