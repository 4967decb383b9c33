"""Canonical labels: clusters numbered in the order of their lowest-index members, -1 for clients in no cluster."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.placement import whole
from fljax.server.checks import check_axes, everyone
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray

MOST_BY_PAIRS = 256
"""Largest number of clients whose labels are compared pair by pair: n² comparisons, but a third of a sort's kernels."""


def rank(label: AnyArray, where: Array) -> Array:
    """Distinct values of ``label``, numbered by first appearance; costs a sort, or for few entries, all pairs.

    Args:
        label: (n,) integers, any values; negative ones are values like any other.
        where: (n,) bool, the entries that count.

    Returns:
        (n,) int32 in 0..n-1, or n where ``where`` is False: an index that segment sums and scatters drop.
    """
    n, label, where = label.shape[0], whole(label), whole(where)
    return whole(jnp.where(where, (_by_pairs if n <= MOST_BY_PAIRS else _by_sort)(label, where), n))


def _by_pairs(label: AnyArray, where: Array) -> Array:
    n, position = label.shape[0], jnp.arange(label.shape[0], dtype=jnp.int32)
    is_alike = (label[:, None] == label[None, :]) & where[None, :]
    first = jnp.where(is_alike, position[None, :], n).min(axis=1, initial=n)
    is_first = where & (first == position)
    is_earlier = is_first[None, :] & (position[None, :] < first[:, None])  # groups that begin before the entry's own
    return is_earlier.sum(axis=1, dtype=jnp.int32)


def _by_sort(label: AnyArray, where: Array) -> Array:
    n, position = label.shape[0], jnp.arange(label.shape[0], dtype=jnp.int32)
    order = jnp.lexsort((label, ~where)).astype(jnp.int32)  # stable: equal labels stay in the order of their index
    ordered = label[order]
    is_start = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    start = jax.lax.cummax(jnp.where(is_start, position, 0))
    first = jnp.zeros(n, jnp.int32).at[order].set(order[start])  # the lowest-index entry with the same label
    return (jnp.cumsum(whole((first == position) & where), dtype=jnp.int32) - 1)[first]


@checked()
@compiled
def canonical(label: AnyArray, where: AnyArray | None = None) -> Array:
    """Clusters renumbered in the order of their lowest-index members.

    The cluster of the lowest-index clustered client becomes 0, the next new cluster 1, and so on. So two labellings
    describe the same partition exactly if their canonical forms are equal.

    Args:
        label: (n,) integers, any values; a negative one means "in no cluster" (noise).
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n,) int32; -1 for noise and where ``where`` is False.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import canonical
        >>> label = jnp.array([7, 3, -1, 7, 5])
        >>> canonical(label).tolist()
        [0, 1, -1, 0, 2]
    """
    (n,) = check_axes("label", label, "n")
    member = everyone(n, where, "label") & (label >= 0)
    return jnp.where(member, rank(label, member), -1)


@checked()
@compiled
def noise_to_singletons(label: AnyArray, where: AnyArray | None = None) -> Array:
    """Labels in which every noise client is a cluster of its own.

    Args:
        label: (n,) integers; negative: noise.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n,) int32, canonical; -1 only where ``where`` is False.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import noise_to_singletons
        >>> label = jnp.array([-1, 0, 0, -1])
        >>> noise_to_singletons(label).tolist()
        [0, 1, 1, 2]
    """
    (n,) = check_axes("label", label, "n")
    member = everyone(n, where, "label")
    grouped = rank(label, member & (label >= 0))
    return canonical(jnp.where(label >= 0, grouped, n + jnp.arange(n, dtype=jnp.int32)), member)
