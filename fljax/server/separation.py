"""How well a matrix of distances tells groups of clients apart, what theory promises, how alike two matrices are."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.ops import segment_sum

from fljax import tree
from fljax.server.checks import check_shape, check_square, check_vector, everyone, shape_of
from fljax.server.entry import checked
from fljax.server.labels import rank


@checked()
@jax.jit
def separation_gap(similarity: Array, group: Array, where: Array | None = None) -> Array:
    r"""Gap of a similarity matrix, :math:`\alpha^{intra}_{min} - \alpha^{cross}_{max}`.

    The smallest similarity of two clients of the same true group less the largest of two clients of different groups:
    positive exactly when some threshold on the similarity separates all groups. For distances use `distance_gap`.

    Args:
        similarity: (n, n), larger is more alike, symmetric; the diagonal is not looked at.
        group: (n,) integers, the true groups.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () of the matrix's dtype, at least float32; +inf where a kind of pair is missing (one group, or all groups of
        one client). Differentiable in ``similarity``.

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
    similarity = tree.at_least_float32(similarity)  # in narrower types differences wrap or leave the range
    mask = everyone(n, where, "similarity")
    pair = mask[:, None] & mask[None, :] & ~jnp.eye(n, dtype=bool)
    same = group[:, None] == group[None, :]
    intra = jnp.where(pair & same, similarity, jnp.inf).min()
    cross = jnp.where(pair & ~same, similarity, -jnp.inf).max()
    return intra - cross


@checked()
@jax.jit
def distance_gap(distance: Array, group: Array, where: Array | None = None) -> Array:
    r"""Gap of a distance matrix, :math:`d^{cross}_{min} - d^{intra}_{max}`: `separation_gap` of ``-distance``.

    Args:
        distance: (n, n), smaller is more alike, symmetric; the diagonal is not looked at.
        group: (n,) integers, the true groups.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () of the matrix's dtype, at least float32; positive exactly when a threshold separates all groups, +inf where a
        kind of pair is missing. Differentiable in ``distance``.

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
    return separation_gap(-tree.at_least_float32(distance), group, where)  # of a uint8 the negative wraps


@jax.jit
def first_separation(gap: Array) -> Array:
    """The first round, counted from 1, of a positive separation gap.

    Args:
        gap: (rounds, ...), what `separation_gap` or `distance_gap` gave in each round.

    Returns:
        (...) int32; 0 where no gap is positive. A round of +inf, in which a kind of pair was missing, does not count:
        there was nothing to separate.

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
        raise ValueError(f"gap has shape {gap.shape}; expected (rounds, ...) with one round or more")
    apart = (gap > 0) & jnp.isfinite(gap)
    return jnp.where(apart.any(axis=0), apart.argmax(axis=0) + 1, 0).astype(jnp.int32)


@jax.jit
def intra_bound(gamma: Array, other: Array | None = None) -> Array:
    r"""The least cosine that two clients of one distribution can have, :math:`H_{ij}`.

    With :math:`\gamma_i = \|\nabla R - \nabla r_i\| / \|\nabla R\|`, how far the gradient of a client's loss is from
    that of its distribution's, the angle between the two is at most :math:`\arcsin \gamma_i`, so that
    :math:`\alpha_{ij} \ge H_{ij} = \cos(\arcsin \gamma_i + \arcsin \gamma_j)
    = -\gamma_i \gamma_j + \sqrt{1 - \gamma_i^2} \sqrt{1 - \gamma_j^2}`.

    Args:
        gamma: of any shape, :math:`\gamma_i` in [0, 1).
        other: of the same shape or one that broadcasts, :math:`\gamma_j`; None: ``gamma``, so that of the largest it
            is :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2`.

    Returns:
        Of the shape of both; -1, which promises nothing, where one of them is 1 or more.

    Source: Sattler et al., Clustered Federated Learning, 2020, used by Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import intra_bound
        >>> gamma = jnp.array([0.25, 0.5])
        >>> round(float(intra_bound(gamma[0], gamma[1])), 3), float(intra_bound(gamma.max()))
        (0.714, 0.5)
    """
    other = gamma if other is None else other
    informed = jnp.maximum(gamma, other) < 1
    a, b = (jnp.where(informed, x, 0) for x in (gamma, other))
    return jnp.where(informed, jnp.sqrt((1 - a * a) * (1 - b * b)) - a * b, -1)


@partial(jax.jit, static_argnames="n_groups")
def cross_bound(intra: Array, n_groups: int = 2) -> Array:
    r"""The largest cosine across the best bipartition of ``n_groups`` distributions, at a stationary point.

    There the distributions' gradients cancel, so that two parts can have an angle of :math:`\pi / (k - 1)` or more
    between them; clients come nearer by what their own gradients are off:
    :math:`\alpha^{cross}_{max} \le \cos(\pi / (k - 1) - \arccos H)` where :math:`H \ge \cos(\pi / (k - 1))`, else 1.
    For two distributions it is :math:`-H`.

    Args:
        intra: of any shape, H: `intra_bound`'s least value, :math:`1 - 2 \gamma_{max}^2`.
        n_groups: k, the number of distributions; static.

    Returns:
        Of the shape of ``intra``; 1, where little is known of the gradients, promises nothing. `best_bipartition`'s
        ``cross``, the optimum for "single" linkage, is no larger.

    Raises:
        ValueError: fewer than two distributions.

    Source: Sattler et al., Clustered Federated Learning, 2020, used by Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import cross_bound
        >>> [round(float(cross_bound(jnp.float32(0.8), k)), 2) for k in (2, 3, 9)]
        [-0.8, 0.6, 1.0]
    """
    if n_groups < 2:
        raise ValueError(f"n_groups={n_groups} cannot be separated; choose n_groups >= 2")
    angle = math.pi / (n_groups - 1)
    reached = intra >= math.cos(angle)
    h = jnp.where(reached, jnp.clip(intra, -1, 1), 0)
    return jnp.where(reached, math.cos(angle) * h + math.sin(angle) * jnp.sqrt(1 - h * h), 1)


@jax.jit
def gamma_limit(cross: Array) -> Array:
    r"""How large :math:`\gamma_{max}` may be for a split to be right, :math:`\sqrt{(1 - \alpha^{cross}_{max}) / 2}`.

    Below it :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2 > \alpha^{cross}_{max}`: no two clients of one
    distribution are less alike than two across the split.

    Args:
        cross: of any shape, the largest cosine across a split, such as `best_bipartition`'s.

    Returns:
        Of the same shape, in [0, 1]; 0, for which no split is right, where ``cross`` is 1 or more.

    Source: Sattler et al., Clustered Federated Learning, 2020; Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import gamma_limit
        >>> gamma_limit(jnp.array([-1.0, 0.5, 1.0])).tolist()
        [1.0, 0.5, 0.0]
    """
    return jnp.sqrt(jnp.clip((1 - cross) / 2, 0, 1))


@checked()
@jax.jit
def silhouette(distance: Array, label: Array, where: Array | None = None) -> Array:
    r"""Mean silhouette of a labelling on a distance matrix.

    Of a client with mean distance :math:`a` to its own cluster (itself left out) and :math:`b` to the nearest other
    cluster it is :math:`(b - a) / \max(a, b)`; 0 for the only member of a cluster and where both are 0.

    Args:
        distance: (n, n) with a zero diagonal.
        label: (n,) integers; -1 (noise) is a cluster like any other, as in scikit-learn: leave it out by ``where``.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () in [-1, 1]; 0 where it is undefined, that is for fewer than two clusters. Differentiable in ``distance``.

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
    distance = tree.at_least_float32(distance)  # the sums of narrower types wrap or leave the range
    mask = everyone(n, where, "distance")
    own = rank(label, mask)
    size = segment_sum(mask.astype(distance.dtype), own, n)
    clean = jnp.where(mask[:, None] & mask[None, :], distance, 0)
    total = segment_sum(clean.T, own, n).T  # (n, clusters): sum of distances to each cluster
    client = jnp.arange(n)
    inside = total[client, own] / jnp.maximum(size[own] - 1, 1)
    other = (size > 0)[None, :] & (jnp.arange(n)[None, :] != own[:, None])
    outside = jnp.where(other, total / jnp.maximum(size, 1)[None, :], jnp.inf).min(axis=1)
    larger = jnp.maximum(inside, outside)
    defined = mask & (size[own] > 1) & jnp.isfinite(outside) & (larger > 0)
    score = jnp.where(defined, (outside - inside) / jnp.where(defined, larger, 1), 0)
    return score.sum() / jnp.maximum(mask.sum(), 1).astype(distance.dtype)


@jax.jit
def pairwise_correlation(a: Array, b: Array, where: Array | None = None) -> Array:
    """Pearson correlation of two pairwise matrices over their upper triangles: do two measures see the same structure?

    Args:
        a: (n, n), symmetric; the diagonal is not looked at.
        b: (n, n), symmetric; it may be on any scale, as a correlation is.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        () in [-1, 1]; 0 where it is undefined: one matrix is constant, or there are fewer than two pairs.
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
    pair = jnp.triu(mask[:, None] & mask[None, :], k=1)
    count = jnp.maximum(pair.sum(), 1)

    def centred(x: Array) -> Array:
        lowest = jnp.where(pair, x, jnp.inf).min()
        shifted = jnp.where(pair, x - lowest, 0)  # exactly 0 for a constant matrix, whatever its mean rounds to
        return jnp.where(pair, shifted - shifted.sum() / count.astype(x.dtype), 0)

    def unit(x: Array) -> Array:
        largest = jnp.abs(x).max()
        scaled = x / jnp.where(largest > 0, largest, 1)  # squares of tiny distances must not underflow
        norm2 = (scaled * scaled).sum()
        return scaled * jax.lax.rsqrt(jnp.where(norm2 > 0, norm2, 1))

    return jnp.clip((unit(centred(a)) * unit(centred(b))).sum(), -1, 1)
