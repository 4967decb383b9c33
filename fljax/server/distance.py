"""Distances and similarities of clients' models, to each other and to centers, without an n x n x P array.

Models are an (n, d) array or a pytree with leaves (n, ...); running statistics are ignored, and ``layers`` may select
subtrees by name. Distances are exactly symmetric with a zero diagonal. ``where`` marks the rows that count: the others
may hold anything, including NaN, and are returned as zero rows and columns.
"""

from functools import partial

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.server import blocks
from fljax.server.checks import check_alike
from fljax.server.entry import checked, compiled
from fljax.server.gram import gram, matrices_and_mask, squared, trainable_layers, trainable_matrices
from fljax.types import AnyArray, Stacked


@checked()
@partial(compiled, static_argnames="layers")
def pairwise_cosine(x: Stacked, where: AnyArray | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """Cosine similarity ``<x_i, x_j> / (|x_i| |x_j|)`` of all pairs: used on updates by CFL and LayerCFL.

    A zero row has similarity 0 to all rows, including itself; other rows have 1 on the diagonal. Scaling a row by a
    positive number changes nothing (no constant is added to the norms) as long as its norm is between 1e-18 and 1e18,
    so that the square fits float32. Absolute error about 1e-6. Differentiable where both rows are nonzero.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, n) in [-1, 1].
    """
    product = gram(x, where, layers)
    square = jnp.diagonal(product)
    norm = tree.root(square)
    scale = norm[:, None] * norm[None, :]
    cosine = jnp.clip(product / jnp.where(scale > 0, scale, 1), -1, 1)
    return jnp.where(jnp.eye(norm.shape[0], dtype=bool), jnp.where(square > 0, 1, square)[:, None], cosine)


@checked()
@partial(compiled, static_argnames="layers")
def pairwise_squared_l2(x: Stacked, where: AnyArray | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - x_j|^2`` of all pairs, by matrix products, safe against cancellation.

    ``g_ii + g_jj - 2 g_ij`` loses all precision for rows that are close to each other and far from the origin. Rows are
    therefore centred on their mean first; pairs that are still much closer than their norms are recomputed with one of
    their neighbours as the origin, until no such pair is left. Equal rows get exactly 0, other pairs a relative error
    of about 1e-5 in the worst case. The cost is one matrix product of half size, and one more for each level of tight
    groups within tight groups (usually none or one). Rows that count must be finite with norms below 1e18: the mean of
    all rows is subtracted, so one invalid row would make all pairs wrong.

    The gradient ``2 (x_i - x_j)`` is defined everywhere. Unlike the value, it is not refined: its error is about 1e-7
    times the largest distance of a row to the mean of all rows, whatever the distance of the pair. For tight groups
    that are far apart, use the gradient of `cross_squared_l2`, which subtracts first.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, n), 0 or more.
    """
    return squared(*matrices_and_mask(x, where, layers))


@checked()
@partial(compiled, static_argnames="layers")
def pairwise_l2(x: Stacked, where: AnyArray | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - x_j|`` of all pairs: the square root of `pairwise_squared_l2`, with the same arguments.

    The gradient is defined everywhere, with the error stated for `pairwise_squared_l2`; between equal rows it is 0.
    """
    return tree.root(pairwise_squared_l2(x, where, layers))


@checked()
@partial(compiled, static_argnames="layers")
def cross_squared_l2(x: Stacked, centers: Stacked, layers: tuple[str, ...] | None = None) -> Array:
    """``|x_i - c_k|^2`` of all points and centers, from differences: equal centers give equal distances.

    Args:
        x: (n, d) array or stacked pytree.
        centers: (k, d) array, or a pytree of the same structure with leading axis k.
        layers: names of the subtrees to compare; None: all. Static.

    Returns:
        (n, k), 0 or more; differentiable everywhere.

    Raises:
        ValueError: a layer is unknown, or ``centers`` has other leaves or shapes.
    """
    check_alike("centers", trainable_layers(centers, layers), "x", trainable_layers(x, layers))
    point_matrices, center_matrices = trainable_matrices(x, layers), trainable_matrices(centers, layers)
    dtype = jnp.promote_types(point_matrices[0].dtype, center_matrices[0].dtype)
    total = jnp.zeros((point_matrices[0].shape[0], center_matrices[0].shape[0]), dtype)

    def part(point: Array, center: Array) -> Array:
        return jnp.square(point.astype(dtype)[:, None] - center.astype(dtype)[None, :]).sum(axis=-1)

    for point, center in zip(point_matrices, center_matrices, strict=True):
        total = blocks.add_blocks_by_row(part, total, point, center, columns=blocks.width(point.shape[0]))
    return total
