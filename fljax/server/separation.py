"""How well a matrix of similarities or distances separates groups of clients, and how two such matrices correlate."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.server.checks import check_shape, check_square, check_vector, everyone, shape_of
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray


@checked()
@compiled
def separation_gap(similarity: AnyArray, group: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Gap of a similarity matrix, :math:`\alpha^{intra}_{min} - \alpha^{cross}_{max}`.

    The smallest similarity of two clients of the same true group minus the largest of two clients of different groups.
    It is positive exactly if some threshold on the similarity separates all groups. For distances, use `distance_gap`.

    Args:
        similarity: (n, n), larger is more similar, symmetric; the diagonal is ignored.
        group: (n,) integers, the true groups.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () of the matrix's dtype, at least float32; +inf if there are no pairs of one kind (one group only, or only
        groups of one client). Differentiable in ``similarity``.

    Raises:
        ValueError: the matrix is not square, or lengths differ.

    Source: Sattler et al., Clustered Federated Learning, 2020; Yuan et al., LayerCFL, Cybersecurity 2023 (Gap 1).

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import separation_gap
        >>> similarity = jnp.array([[1.0, 0.75, 0.25], [0.75, 1.0, -0.5], [0.25, -0.5, 1.0]])
        >>> float(separation_gap(similarity, jnp.array([0, 0, 1])))
        0.5
    """
    n = check_square("similarity", similarity)
    check_vector("group", group, n, "similarity")
    similarity = tree.at_least_float32(similarity)  # differences in narrower types would overflow
    mask = everyone(n, where, "similarity")
    is_pair = mask[:, None] & mask[None, :] & ~jnp.eye(n, dtype=bool)
    is_same = group[:, None] == group[None, :]
    intra = jnp.where(is_pair & is_same, similarity, jnp.inf).min()
    cross = jnp.where(is_pair & ~is_same, similarity, -jnp.inf).max()
    return intra - cross


@checked()
@compiled
def distance_gap(distance: AnyArray, group: AnyArray, where: AnyArray | None = None) -> Array:
    r"""Gap of a distance matrix, :math:`d^{cross}_{min} - d^{intra}_{max}`: `separation_gap` of ``-distance``.

    Args:
        distance: (n, n), smaller is more similar, symmetric; the diagonal is ignored.
        group: (n,) integers, the true groups.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () of the matrix's dtype, at least float32; positive exactly if a threshold separates all groups, +inf if there
        are no pairs of one kind. Differentiable in ``distance``.

    Raises:
        ValueError: the matrix is not square, or lengths differ.

    Source: Yuan et al., LayerCFL, Cybersecurity 2023 (Gap 2).

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import distance_gap
        >>> distance = jnp.array([[0.0, 1.0, 4.0], [1.0, 0.0, 3.0], [4.0, 3.0, 0.0]])
        >>> float(distance_gap(distance, jnp.array([0, 0, 1])))
        2.0
    """
    check_square("distance", distance)
    return separation_gap(-tree.at_least_float32(distance), group, where)  # negating a uint8 would overflow


@compiled
def first_separation(gap: AnyArray) -> Array:
    """The first round, counted from 1, with a positive separation gap.

    Args:
        gap: (rounds, ...), the result of `separation_gap` or `distance_gap` in each round.

    Returns:
        (...) int32; 0 if no gap is positive. Rounds with a gap of +inf do not count: there was nothing to separate.

    Raises:
        ValueError: there is no axis of rounds, or no round.

    Source: Yuan et al., LayerCFL, Cybersecurity 2023 (rounds to separate the clients).

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import first_separation
        >>> int(first_separation(jnp.array([-0.5, jnp.inf, 0.25, -0.125])))
        3
    """
    if not shape_of("gap", gap) or gap.shape[0] == 0:
        raise ValueError(f"gap has shape {gap.shape}; expected (rounds, ...) with at least one round")
    is_apart = (gap > 0) & jnp.isfinite(gap)
    return jnp.where(is_apart.any(axis=0), is_apart.argmax(axis=0) + 1, 0).astype(jnp.int32)


@compiled
def pairwise_correlation(a: AnyArray, b: AnyArray, where: AnyArray | None = None) -> Array:
    """Pearson correlation of two pairwise matrices over their upper triangles: do both show the same structure?

    Args:
        a: (n, n), symmetric; the diagonal is ignored.
        b: (n, n), symmetric; on any scale.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () in [-1, 1]; 0 if undefined: one matrix is constant, or there are fewer than two pairs.
        Differentiable in both.

    Raises:
        ValueError: a matrix is not square, or lengths differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import pairwise_correlation
        >>> place = jnp.array([0.0, 1.0, 5.0, 9.0])
        >>> distance = jnp.abs(place[:, None] - place[None, :])
        >>> round(float(pairwise_correlation(distance, 3.0 - distance)), 4)
        -1.0
    """
    n = check_square("a", a)
    check_shape("b", b, (n, n), "the shape of a")
    a, b = tree.at_least_float32(a), tree.at_least_float32(b)
    mask = everyone(n, where, "a")
    is_pair = jnp.triu(mask[:, None] & mask[None, :], k=1)
    count = jnp.maximum(is_pair.sum(), 1)

    def centred(x: Array) -> Array:
        lowest = jnp.where(is_pair, x, jnp.inf).min()
        shifted = jnp.where(is_pair, x - lowest, 0)  # exactly 0 for a constant matrix, however its mean is rounded
        return jnp.where(is_pair, shifted - shifted.sum() / count.astype(x.dtype), 0)

    def unit(x: Array) -> Array:
        largest = jnp.abs(x).max()
        scaled = x / jnp.where(largest > 0, largest, 1)  # squares of tiny distances must not underflow
        norm2 = (scaled * scaled).sum()
        return scaled * jax.lax.rsqrt(jnp.where(norm2 > 0, norm2, 1))

    return jnp.clip((unit(centred(a)) * unit(centred(b))).sum(), -1, 1)
