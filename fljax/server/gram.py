"""Inner products and squared distances of all pairs of models by matrix products, in column blocks."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.placement import whole
from fljax.server import blocks
from fljax.server.checks import everyone, n_rows
from fljax.server.entry import compiled
from fljax.types import AnyArray, Stacked

CLOSE = 2.0**-6
"""Pairs whose squared distance is below this share of their squared norms are recomputed from a nearer origin."""


@partial(compiled, static_argnames="layers")
def gram(x: Stacked, where: AnyArray | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """Inner products ``<x_i, x_j>`` of all pairs of rows, (n, n); exactly symmetric, differentiable."""
    matrices, where = matrices_and_mask(x, where, layers)
    return _products(matrices, lambda block: _counted(block, where))


def mirror(matrix: Array) -> Array:
    """The strict upper triangle on both sides of a zero diagonal: exactly symmetric, and NaN below it has no effect.

    Whole on every device: it is small, and later steps read both its rows and its columns.
    """
    upper = jnp.triu(whole(matrix), 1)
    return whole(upper + upper.T)


def mask_pairs(matrix: Array, where: AnyArray | None) -> Array:
    """``matrix``, exactly symmetric with a zero diagonal, and 0 outside the rows and columns that count."""
    if where is None:
        return mirror(matrix)
    where = everyone(matrix.shape[0], where, "the clients")
    return mirror(jnp.where(where[:, None] & where[None, :], matrix, 0))


def trainable_matrices(x: Stacked, layers: tuple[str, ...] | None) -> tuple[Array, ...]:
    """Trainable leaves of the named layers, each as (n, scalars), all of one dtype; ``layers`` None: of all layers.

    Leaves narrower than float32 are copied to float32; if a leaf is float64, all others are copied to float64.

    Raises:
        ValueError: a layer is unknown, no leaf is left, or leaves have different numbers of rows.
    """
    selected = trainable_layers(x, layers)
    if not jax.tree.leaves(selected):
        raise ValueError("nothing to compare: x has no trainable leaves, or layers is empty")
    n_rows("x", selected)
    jax.tree.map(tree.check_real, selected)
    matrices = blocks.matrices(selected)
    # Squares overflow narrower types: from 256 on in float16, from 16 on in uint8.
    dtype = jnp.float64 if any(matrix.dtype == "float64" for matrix in matrices) else jnp.float32
    return tuple(matrix.astype(dtype) for matrix in matrices)


def trainable_layers(x: Stacked, layers: tuple[str, ...] | None) -> Stacked:
    """The trainable leaves of the named layers, of all for None; ValueError for an unknown layer."""
    trainable = tree.trainable(x)
    if layers is None:
        return trainable
    tree.check_layers(layers, sorted(trainable) if isinstance(trainable, dict) else ())
    return tree.select(trainable, layers)


def matrices_and_mask(
    x: Stacked, where: AnyArray | None, layers: tuple[str, ...] | None
) -> tuple[tuple[Array, ...], Array]:
    """`trainable_matrices` and ``where`` as a checked (n,) bool mask, all True for None."""
    matrices = trainable_matrices(x, layers)
    return matrices, everyone(matrices[0].shape[0], where, "x")


def centred(block: Array, where: Array) -> Array:
    """(n, width) the rows that count minus their mean; the other rows are 0."""
    block = _counted(block, where)
    mean = block.sum(axis=0) / jnp.maximum(where.sum(), 1).astype(block.dtype)
    return _counted(block - mean[None, :], where)


def _counted(block: Array, where: Array) -> Array:
    """(n, width) the rows that count; the other rows are 0."""
    return jnp.where(where[:, None], block, 0)


def _products(matrices: tuple[Array, ...], prepare: Callable[[Array], Array]) -> Array:
    """(n, n) inner products of all pairs of rows, after ``prepare`` of each column block."""
    return sum_pairs(lambda a, b: tree.product(a, b.T), prepare, matrices, columns=_columns(matrices[0].shape[0]))


def _columns(n: int) -> int:
    """Number of columns in a block of ``n`` models."""
    return blocks.width(n, 2**19)


def sum_pairs(
    pair: Callable[[Array, Array], Array],
    prepare: Callable[..., Array],
    matrices: tuple[Array, ...],
    *arguments: Array,
    columns: int,
) -> Array:
    """``sum over column blocks of pair(block, block)`` for a symmetric ``pair``; only the upper triangle is computed.

    Args:
        pair: (a, w) and (b, w) blocks -> (a, b), symmetric in its arguments.
        prepare: (n, w) and ``arguments`` -> (n, w), applied once to each block, so that no prepared copy of all
            ``matrices`` is kept.
        matrices: (n, p_l) matrices of one dtype.
        *arguments: other arguments of ``prepare`` that may have gradients.
        columns: width of a block, static.

    Returns:
        (n, n), exactly symmetric.
    """
    n = matrices[0].shape[0]
    edges = [0, n] if n < 128 else [0, n // 4, n // 2, n - n // 4, n]
    strips = list(itertools.pairwise(edges))

    def part(block: Array, *arguments: Array) -> tuple[Array, ...]:
        block = prepare(block, *arguments)
        return tuple(pair(block[a:b], block[a:]) for a, b in strips)

    total = tuple(jnp.zeros((b - a, n - a), matrices[0].dtype) for a, b in strips)
    for matrix in matrices:
        total = blocks.add_blocks(part, total, matrix, *arguments, columns=columns)
    upper = jnp.concatenate([jnp.pad(part, ((0, 0), (a, 0))) for part, (a, _) in zip(total, strips, strict=True)])
    return mirror(upper) + jnp.diag(jnp.diagonal(whole(upper)))


def _from_gram(product: Array) -> tuple[Array, Array]:
    square = jnp.diagonal(whole(product))
    scale = square[:, None] + square[None, :]
    return mirror(jnp.maximum(scale - 2 * product, 0)), scale


@jax.custom_jvp
def squared(matrices: tuple[Array, ...], where: Array) -> Array:
    """``|x_i - x_j|^2`` (n, n), refined until no pair suffers from cancellation, see `pairwise_squared_l2`."""
    n = where.shape[0]
    pairs = whole(where[:, None] & where[None, :] & ~jnp.eye(n, dtype=bool))

    def close(square: Array, scale: Array) -> Array:
        return pairs & (square < CLOSE * scale)

    def cond(carry: tuple[Array, Array]) -> Array:
        return jnp.any(close(*carry))

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # Every row's origin becomes its lowest-index close neighbour. All pairs of the lowest row are final after one
        # step, since its own shifted row is 0; the scale of pairs with a common origin becomes that of their group.
        is_near = close(*carry)
        origin = jnp.argmax(is_near | jnp.eye(n, dtype=bool), axis=1)
        is_recomputed = is_near & (origin[:, None] == origin[None, :])

        def moved(block: Array) -> Array:
            block = _counted(block, where)
            return block - block[origin]

        square, scale = _from_gram(_products(matrices, moved))
        return whole((jnp.where(is_recomputed, square, carry[0]), jnp.where(is_recomputed, scale, carry[1])))

    start = whole(_from_gram(_products(matrices, lambda block: centred(block, where))))
    # Narrow leaves are sent to every device once, before the loop.
    matrices = tuple(matrix if matrix.shape[1] >= 2 * _columns(n) else whole(matrix) for matrix in matrices)
    return whole(jnp.where(pairs, lax.while_loop(cond, body, start)[0], 0))


@squared.defjvp
def _squared_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """``d |x_i - x_j|^2 = 2 <x_i - x_j, dx_i - dx_j>``, so that no gradient passes through the loop."""
    matrices, where = primals
    directions = [jnp.where(where[:, None], direction, 0) for direction in tangents[0]]
    changes = zip(matrices, directions, strict=True)
    product: Any = sum(tree.product(centred(matrix, where), direction.T) for matrix, direction in changes)
    diagonal = jnp.diagonal(product)
    pairs = where[:, None] & where[None, :]
    return squared(matrices, where), jnp.where(
        pairs, 2 * (diagonal[:, None] + diagonal[None, :] - product - product.T), 0
    )
