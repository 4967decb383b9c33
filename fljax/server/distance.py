"""How far clients are from each other and from centers, by models, outputs or labels; never with an n x n x P array.

Models come as an (n, d) array or as a pytree with leaves (n, ...), of which running statistics are left out and
``layers`` may select subtrees by name. Distances are exactly symmetric with a zero diagonal. ``where`` marks the rows
that count: the others may hold anything, NaN included, and come back as zero rows and columns.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.server import blocks
from fljax.server.checks import check_alike, check_axes, check_vector, everyone, n_rows, shape_of
from fljax.server.entry import POSITIVE, checked
from fljax.server.gram import compared, gram, mirror, rows, squared, sum_pairs, trainable_matrices
from fljax.types import Stacked


@checked()
@partial(jax.jit, static_argnames="layers")
def pairwise_cosine(x: Stacked, where: Array | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """Cosine similarity ``<x_i, x_j> / (|x_i| |x_j|)`` of all pairs: CFL's and LayerCFL's measure on updates.

    A zero row has similarity 0 to everything, itself included; other rows have 1 on the diagonal. Scaling a row by a
    positive number changes nothing (no constant is added to the norms) while its norm is between 1e-18 and 1e18, whose
    squares float32 holds. Absolute error about 1e-6. Differentiable
    where both rows are not zero.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, n) in [-1, 1].
    """
    product = gram(x, where, layers)
    square = jnp.diagonal(product)
    norm = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    scale = norm[:, None] * norm[None, :]
    cosine = jnp.clip(product / jnp.where(scale > 0, scale, 1), -1, 1)
    return jnp.where(jnp.eye(norm.shape[0], dtype=bool), jnp.where(square > 0, 1, square)[:, None], cosine)


@checked()
@partial(jax.jit, static_argnames="layers")
def pairwise_squared_l2(x: Stacked, where: Array | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - x_j|^2`` of all pairs, by matrix products, safe against cancellation.

    ``g_ii + g_jj - 2 g_ij`` loses all digits for rows that are close to each other and far from the origin. Rows are
    therefore centred on their mean first; pairs that are still much closer than their norms are computed again from
    one of their own neighbours as the origin, until none is left. Equal rows get exactly 0, other pairs a relative
    error of about 1e-5 in the worst case. The cost is one matrix product of half size, and one more for each level of
    tight groups within tight groups (usually none or one). Rows that count must be finite and of norms below 1e18: the
    mean of all is taken off, so that one other row would spoil all pairs.

    The gradient ``2 (x_i - x_j)`` is defined everywhere. Unlike the value it is not refined: its error is about 1e-7
    times the largest distance of a row to the mean of all, whatever the distance of the pair. For tight groups that are
    far apart take that of `cross_squared_l2`, which subtracts first.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, n), 0 or more.
    """
    return squared(*rows(x, where, layers))


@checked()
@partial(jax.jit, static_argnames="layers")
def pairwise_l2(x: Stacked, where: Array | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - x_j|`` of all pairs: the square root of `pairwise_squared_l2`, with its arguments.

    The gradient is defined everywhere, with the error that `pairwise_squared_l2` states; between equal rows it is 0.
    """
    square = pairwise_squared_l2(x, where, layers)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), square)


@checked()
@partial(jax.jit, static_argnames="layers")
def cross_squared_l2(x: Stacked, centers: Stacked, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - c_k|^2`` of points and centers, from differences: equal centers give equal distances.

    Args:
        x: (n, d) array or stacked pytree.
        centers: (k, d) array or a pytree of the same structure, leading axis k.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, k), 0 or more; differentiable everywhere.

    Raises:
        ValueError: an unknown layer, or ``centers`` with other leaves or other shapes.
    """
    check_alike("centers", compared(centers, layers), "x", compared(x, layers))
    points, middles = trainable_matrices(x, layers), trainable_matrices(centers, layers)
    kind = jnp.promote_types(points[0].dtype, middles[0].dtype)
    total = jnp.zeros((points[0].shape[0], middles[0].shape[0]), kind)

    def part(point: Array, middle: Array) -> Array:
        return jnp.square(point.astype(kind)[:, None] - middle.astype(kind)[None, :]).sum(axis=-1)

    for point, middle in zip(points, middles, strict=True):
        total = blocks.add_blocks_by_row(part, total, point, middle, columns=blocks.width(point.shape[0]))
    return total


@checked()
@partial(jax.jit, static_argnames="layers")
def model_discrepancy(x: Stacked, where: Array | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """DC-PFL's ``|S(w_i) - S(w_j)|_1 / P`` with ``S(w) = (w - min w) / (max w - min w)`` over the whole flat model.

    A constant model scales to zeros. Unchanged when a model is scaled by c > 0 or shifted by a constant. Computed from
    differences, so exact to rounding; costs n^2 P / 2 subtractions, about ten times a matrix product. Differentiable
    almost everywhere.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare, scaled together; None: all. Static.

    Returns:
        (n, n) in [0, 1].
    """
    mats, where = rows(x, where, layers)
    mats = tuple(_learning(mat, where) for mat in mats)
    low, span = _range(mats)

    def scaled(block: Array, low: Array, span: Array) -> Array:
        return jnp.where(where[:, None], (block - low) / span, 0)

    def pair(a: Array, b: Array) -> Array:
        return jnp.abs(a[:, None] - b[None, :]).sum(axis=-1)

    total = sum_pairs(pair, scaled, mats, low, span, columns=blocks.width(where.shape[0], 2**18))
    mean = jnp.minimum(total / sum(mat.shape[1] for mat in mats), 1)
    return _among(mean, where)


@checked()
@partial(jax.jit, static_argnames="layers")
def layer_discrepancy(stacked: Stacked, centers: Stacked, label: Array, layers: tuple[str, ...]) -> Array:
    """DC-PFL's ``D_kl = mean_{i: a_i = k} |S(w_il) - S(Theta_kl)|_1 / P_l``, S over each layer by itself.

    Args:
        stacked: ``{layer: leaves (clients, ...)}``.
        centers: ``{layer: leaves (clusters, ...)}``.
        label: (clients,) int; a client whose label is outside 0..clusters-1 never matters.
        layers: layer names in the order of the result's columns, as ``model.layers``. Static.

    Returns:
        (clusters, layers) in [0, 1]; 0 for an empty cluster.

    Raises:
        ValueError: an unknown layer, ``centers`` with other leaves or other shapes, or lengths differ.
    """
    check_alike("centers", compared(centers, layers), "stacked", compared(stacked, layers))
    check_vector("label", label, n_rows("stacked", stacked), "stacked")
    n_clusters = n_rows("centers", centers)
    member = jax.nn.one_hot(label, n_clusters, dtype=bool)
    counts, mine = member.any(axis=1), jnp.clip(label, 0, n_clusters - 1)

    def layer(name: str) -> Array:
        own, shared = trainable_matrices(stacked, (name,)), trainable_matrices(centers, (name,))
        own = tuple(_learning(mat, counts) for mat in own)
        (low, span), (low_center, span_center) = _range(own), _range(shared)
        total = jnp.zeros(label.shape[0], jnp.promote_types(own[0].dtype, shared[0].dtype))
        for mat, center in zip(own, shared, strict=True):
            apart = (mat - low) / span - ((center - low_center) / span_center)[mine]
            total += jnp.abs(_learning(apart, counts)).sum(axis=1)
        mean = total / sum(mat.shape[1] for mat in own)
        return jnp.where(member, mean[:, None], 0).sum(axis=0) / jnp.maximum(member.sum(axis=0), 1).astype(mean.dtype)

    return jnp.stack([layer(name) for name in layers], axis=1)


@jax.jit
def js_divergence(probabilities: Array, where: Array | None = None) -> Array:
    """Jensen-Shannon divergence of two clients' outputs, averaged over a common batch (FedTSDP's stage 1).

    ``JS(p, q) = KL(p | u) / 2 + KL(q | u) / 2`` with ``u = (p + q) / 2`` and the natural logarithm; probabilities are
    clipped at 1e-12. This is the divergence: SciPy's ``jensenshannon`` is its square root. Differentiable.

    Args:
        probabilities: (n, batch, classes), or (n, classes) for one distribution each; the last axis sums to 1.
        where: (n,) bool, clients that count; None: all.

    Returns:
        (n, n) in [0, ln 2], absolute error about 1e-7; 0 for equal outputs.

    Raises:
        ValueError: there are no two axes, or lengths differ.
    """
    if len(shape_of("probabilities", probabilities)) < 2:
        raise ValueError(f"probabilities has shape {probabilities.shape}; expected (n, batch, classes) or (n, classes)")
    probabilities = _counted(tree.at_least_float32(probabilities), where)  # float16 has no 1e-12
    p = jnp.maximum(tree.as_matrix(probabilities), 1e-12)
    batch = max(probabilities[0, ..., 0].size, 1)

    def to_all(row: Array) -> Array:
        middle = (row[None, :] + p) / 2
        return (row[None, :] * jnp.log(row[None, :] / middle) + p * jnp.log(p / middle)).sum(axis=1) / 2

    mean = lax.map(to_all, p) / batch
    return _among(jnp.clip(mean, 0, jnp.log(2.0)), where)


@checked(smoothing=POSITIVE)
@jax.jit
def label_kld(histogram: Array, smoothing: ArrayLike = 1e-4, where: Array | None = None) -> Array:
    """Symmetric divergence ``(KL(p_i | p_j) + KL(p_j | p_i)) / 2`` of the clients' label distributions, natural log.

    Equal to ``sum_c (p_ic - p_jc) (ln p_ic - ln p_jc) / 2``, which is never negative. Differentiable.

    Args:
        histogram: (n, classes) example counts or shares, 0 or more; a client without examples counts as uniform.
        smoothing: added to every probability before the row is normalised again, positive (DC-PFL: 1e-4).
        where: (n,) bool, clients that count; None: all.

    Returns:
        (n, n), 0 or more.

    Raises:
        ValueError: the histogram is not (n, classes), lengths differ, or ``smoothing`` is not positive.
    """
    check_axes("histogram", histogram, "n", "classes")
    count = _counted(histogram.astype(jnp.float32), where)
    total = count.sum(axis=1, keepdims=True)
    share = count / jnp.where(total > 0, total, 1) + jnp.asarray(smoothing, jnp.float32)
    p = share / share.sum(axis=1, keepdims=True)
    log_p = jnp.log(p)

    def to_all(row: tuple[Array, Array]) -> Array:
        return ((row[0][None, :] - p) * (row[1][None, :] - log_p)).sum(axis=1) / 2

    return _among(lax.map(to_all, (p, log_p)), where)


def _range(mats: tuple[Array, ...]) -> tuple[Array, Array]:
    """(n, 1) smallest entry of every row over all matrices, and the distance to the largest (1 where that is 0)."""
    low = jnp.stack([mat.min(axis=1) for mat in mats]).min(axis=0)
    span = jnp.stack([mat.max(axis=1) for mat in mats]).max(axis=0) - low
    return low[:, None], jnp.where(span > 0, span, 1)[:, None]


@jax.custom_jvp
def _learning(x: Array, where: Array) -> Array:
    """``x`` (n, p), whose gradient is 0 in the rows that do not count: of a NaN it is NaN though it is not chosen."""
    return x


@_learning.defjvp
def _learning_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, where = primals
    return x, jnp.where(where[:, None], tangents[0], 0)


def _among(matrix: Array, where: Array | None) -> Array:
    """``matrix`` exactly symmetric with a zero diagonal, 0 outside of the rows and columns that count."""
    if where is None:
        return mirror(matrix)
    where = everyone(matrix.shape[0], where, "the clients")
    return mirror(jnp.where(where[:, None] & where[None, :], matrix, 0))


def _counted(x: Array, where: Array | None) -> Array:
    """``x`` (n, ...) with ones in the rows that do not count: of a NaN the gradient is NaN though it is not chosen."""
    if where is None:
        return x
    return jnp.where(tree.along(everyone(x.shape[0], where, "the clients"), x), x, 1)
