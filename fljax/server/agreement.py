"""Agreement of two labellings of the clients, such as found clusters and true groups, or the clusters of two rounds."""

from functools import partial

import jax.numpy as jnp
import optax
from jax import Array
from jax.ops import segment_max, segment_sum

from fljax.choices import Positive
from fljax.server.checks import check_axes, check_vector, everyone
from fljax.server.entry import checked, compiled
from fljax.server.labels import rank
from fljax.types import AnyArray

MOST_CLIENTS = 46_340
"""The largest n whose n² fits int32, in which pairs are counted exactly."""


def _ranked(a: AnyArray, b: AnyArray, where: AnyArray | None) -> tuple[Array, Array, Array]:
    """Both labellings as values 0..n-1 (n where masked), and the mask."""
    (n,) = check_axes("the first labelling", a, "n")
    check_vector("the second labelling", b, n, "the first")
    if n > MOST_CLIENTS:
        raise ValueError(f"{n} clients; the counts of pairs are exact in int32 up to {MOST_CLIENTS}")
    mask = everyone(n, where, "the labels")
    return rank(a, mask), rank(b, mask), mask


def _contingency(a: Array, b: Array, mask: Array) -> tuple[Array, Array, Array]:
    """The non-empty cells of the contingency table, at most n: (a's value, b's value, count), count 0 past the last.

    A full table would be n x n; sorting the pairs finds its non-empty cells in O(n log n).
    """
    n = a.shape[0]
    cell = rank(a * n + b, mask)  # masked entries have a = b = n: their code may overflow and is not read
    count = segment_sum(mask.astype(jnp.int32), cell, n)
    row = jnp.zeros(n, jnp.int32).at[cell].set(a, mode="drop")
    column = jnp.zeros(n, jnp.int32).at[cell].set(b, mode="drop")
    return row, column, count


def _sizes(value: Array, mask: Array) -> Array:
    return segment_sum(mask.astype(jnp.int32), value, value.shape[0])


def _n_values(value: Array, mask: Array) -> Array:
    """Number of distinct values that `rank` gave."""
    return jnp.where(mask, value + 1, 0).max(initial=0)


@checked()
@compiled
def adjusted_rand(a: AnyArray, b: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Adjusted Rand index of two labellings.

    With tp the number of pairs of clients that are together in both, fp in ``b`` only, fn in ``a`` only, tn in neither,

    .. math:: ARI = \frac{2 (tp \cdot tn - fn \cdot fp)}{(tp + fn)(fn + tn) + (tp + fp)(fp + tn)}.

    Args:
        a: (n,) integers, any values; -1 (noise) is a label like any other, as in scikit-learn.
        b: (n,) integers.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () float32 in [-0.5, 1]; 1 for equal partitions, also with one client or none; 0 is expected by chance.

    Raises:
        ValueError: shapes differ, or more than 46,340 clients.

    Source: Hubert and Arabie, Comparing partitions, Journal of Classification 1985.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import adjusted_rand
        >>> clusters, groups = jnp.array([1, 1, 0, 0]), jnp.array([0, 0, 1, 2])
        >>> round(float(adjusted_rand(clusters, groups)), 4)
        0.5714
    """
    a, b, mask = _ranked(a, b, where)
    n = mask.sum(dtype=jnp.int32)

    def pairs(count: Array) -> Array:
        return (count * (count - 1) // 2).sum(dtype=jnp.int32)

    in_both = pairs(_contingency(a, b, mask)[2])
    in_a, in_b, all_pairs = pairs(_sizes(a, mask)), pairs(_sizes(b, mask)), n * (n - 1) // 2
    tp, fn, fp = in_both, in_a - in_both, in_b - in_both
    tn = all_pairs - in_a - fp  # integers up to here, so that differences are exact
    tp, fn, fp, tn = (x.astype(jnp.float32) for x in (tp, fn, fp, tn))
    is_equal = (fn == 0) & (fp == 0)
    score = 2 * (tp * tn - fn * fp) / jnp.where(is_equal, 1, (tp + fn) * (fn + tn) + (tp + fp) * (fp + tn))
    return jnp.where(is_equal, 1, score)


def _entropy(count: Array, n: Array) -> Array:
    """-Σ p log p of counts that sum to n; ``log1p`` of an exact difference keeps precision for p near 1."""
    share = count / jnp.maximum(n, 1)
    log = jnp.log1p(jnp.where(count > 0, count - n, 0) / jnp.maximum(n, 1))
    return -(share * log).sum()


@checked()
@compiled
def normalized_mutual_info(a: AnyArray, b: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Normalised mutual information, :math:`I(a, b) / \tfrac12 (H(a) + H(b))`.

    Args:
        a: (n,) integers, any values; -1 (noise) is a label like any other, as in scikit-learn.
        b: (n,) integers.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () float32 in [0, 1]; 1 for equal partitions, also if both have one cluster or no client counts.

    Raises:
        ValueError: shapes differ, or more than 46,340 clients.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import normalized_mutual_info
        >>> clusters, groups = jnp.array([1, 1, 0, 0]), jnp.array([0, 0, 1, 2])
        >>> round(float(normalized_mutual_info(clusters, groups)), 4)
        0.8
    """
    a, b, mask = _ranked(a, b, where)
    n = mask.sum(dtype=jnp.int32)
    size_a, size_b = _sizes(a, mask), _sizes(b, mask)
    row, column, count = _contingency(a, b, mask)
    chance = size_a[row] * size_b[column]  # n times the count expected for independent labellings
    surplus = jnp.where(count > 0, count * n - chance, 0)
    log = jnp.log1p(surplus / jnp.maximum(chance, 1))
    information = (count / jnp.maximum(n, 1) * log).sum()
    entropy = (_entropy(size_a, n) + _entropy(size_b, n)) / 2
    is_trivial = entropy <= 0  # one cluster in both
    return jnp.where(is_trivial, 1, jnp.clip(information / jnp.where(is_trivial, 1, entropy), 0, 1))


@checked()
@compiled
def purity(label: AnyArray, group: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Share of clients that belong to their cluster's most frequent true group.

    :math:`\frac1n \sum_k \max_g |\{i : label_i = k, group_i = g\}|`. It is 1 for clusters of one client each, so report
    it together with the number of clusters.

    Args:
        label: (n,) integers, the clusters found; -1 (noise) counts as one cluster.
        group: (n,) integers, the true groups.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () float32 in (0, 1]; 1 if no client counts.

    Raises:
        ValueError: shapes differ, or more than 46,340 clients.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import purity
        >>> label, group = jnp.array([0, 0, 0, 1]), jnp.array([5, 5, 6, 6])
        >>> float(purity(label, group))
        0.75
    """
    a, b, mask = _ranked(label, group, where)
    n = mask.sum(dtype=jnp.int32)
    row, _, count = _contingency(a, b, mask)
    largest = segment_max(count, row, a.shape[0])  # an empty cluster's maximum is the lowest int32
    return jnp.where(n > 0, jnp.maximum(largest, 0).sum(dtype=jnp.int32) / jnp.maximum(n, 1), 1)


@checked()
@compiled
def n_clusters(label: AnyArray, where: AnyArray | None = None) -> Array:
    """Number of distinct clusters.

    Args:
        label: (n,) integers; negative: noise, which is not counted as a cluster.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () int32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import n_clusters
        >>> label = jnp.array([4, -1, 4, 9])
        >>> int(n_clusters(label))
        2
    """
    (n,) = check_axes("label", label, "n")
    member = everyone(n, where, "label") & (label >= 0)
    return _n_values(rank(label, member), member)


@checked()
@compiled
def raw_churn(before: AnyArray, after: AnyArray, where: AnyArray | None = None) -> Array:
    """Share of clients whose label changed, without renaming clusters.

    For methods whose clusters keep their identity from round to round (a slot with its own model). A pure renaming
    counts as change; `churn` ignores it.

    Args:
        before: (n,) integers.
        after: (n,) integers.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () float32 in [0, 1]; 0 if no client counts.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import raw_churn
        >>> before, after = jnp.array([0, 0, 1, 1]), jnp.array([1, 1, 0, 1])
        >>> float(raw_churn(before, after))
        0.75
    """
    (n,) = check_axes("before", before, "n")
    check_vector("after", after, n, "before")
    mask = everyone(n, where, "before")
    return ((before != after) & mask).sum(dtype=jnp.int32) / jnp.maximum(mask.sum(dtype=jnp.int32), 1)


@checked()
@partial(compiled, static_argnames="most_clusters")
def churn(
    before: AnyArray, after: AnyArray, where: AnyArray | None = None, *, most_clusters: Positive | None = None
) -> Array:
    """Share of clients that changed cluster, under the renaming of clusters that makes it smallest.

    ``1 - (largest number of clients that a one-to-one renaming of clusters leaves in place) / n``; the Hungarian method
    finds the renaming. Clusters that appear or vanish have no partner, so their clients count as changed.

    Args:
        before: (n,) integers; -1 (noise) is a cluster like any other.
        after: (n,) integers.
        where: (n,) bool, the clients that count; None: all.
        most_clusters: bound on the number of distinct labels of each, static; sets the cost, at most O(most_clusters³).
            None: n. Clients of clusters beyond the bound count as changed.

    Returns:
        () float32 in [0, 1); 0 for equal partitions, or if no client counts.

    Raises:
        ValueError: shapes differ, more than 46,340 clients, or ``most_clusters < 1``.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import churn
        >>> before, after = jnp.array([0, 0, 1, 1]), jnp.array([1, 1, 0, 1])
        >>> float(churn(before, after))
        0.25
    """
    a, b, mask = _ranked(before, after, where)
    size = max(a.shape[0], 1) if most_clusters is None else most_clusters  # not empty without clients
    table = jnp.zeros((size, size), jnp.float32).at[a, b].add(mask.astype(jnp.float32), mode="drop")
    # Slots that are empty on both sides are paired in advance; the Hungarian search would lose time on their ties.
    is_spare = jnp.arange(size) >= jnp.maximum(_n_values(a, mask), _n_values(b, mask))
    cells = optax.assignment.hungarian_algorithm(-table - jnp.diag(is_spare.astype(jnp.float32)))
    n_unchanged = table[cells].sum().astype(jnp.int32)
    n = mask.sum(dtype=jnp.int32)
    return jnp.where(n > 0, (n - n_unchanged) / jnp.maximum(n, 1), 0)
