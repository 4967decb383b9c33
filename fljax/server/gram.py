"""Inner products and squared distances of all pairs of models by matrix products, in column blocks."""

import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.placement import whole
from fljax.server import blocks
from fljax.server.checks import everyone, n_rows
from fljax.types import Stacked

CLOSE = 2.0**-6
"""Pairs whose squared distance is below this share of their squared norms are recomputed from a nearer origin."""


@partial(jax.jit, static_argnames="layers")
def gram(x: Stacked, where: Array | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """Inner products ``<x_i, x_j>`` of all pairs of rows, (n, n); exactly symmetric, differentiable."""
    mats, where = rows(x, where, layers)
    return _products(mats, lambda block: _counted(block, where))


def mirror(matrix: Array) -> Array:
    """The strict upper triangle on both sides of a zero diagonal: exactly symmetric, and NaN below it has no effect.

    Whole on every device: it is small, and later steps read both its rows and its columns.
    """
    upper = jnp.triu(whole(matrix), 1)
    return whole(upper + upper.T)


def among(matrix: Array, where: Array | None) -> Array:
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
    selected = compared(x, layers)
    if not jax.tree.leaves(selected):
        raise ValueError("nothing to compare: x has no trainable leaves, or layers is empty")
    n_rows("x", selected)
    jax.tree.map(tree.check_real, selected)
    mats = blocks.matrices(selected)
    # Squares overflow narrower types: from 256 on in float16, from 16 on in uint8.
    kind = jnp.float64 if any(mat.dtype == "float64" for mat in mats) else jnp.float32
    return tuple(mat.astype(kind) for mat in mats)


def compared(x: Stacked, layers: tuple[str, ...] | None) -> Stacked:
    """The trainable leaves of the named layers, of all for None; ValueError for an unknown layer."""
    trainable = tree.trainable(x)
    if layers is None:
        return trainable
    known = sorted(trainable) if isinstance(trainable, dict) else []
    if missing := [name for name in layers if name not in known]:
        raise ValueError(f"layers {missing} are not in the models, which have {known}")
    return tree.select(trainable, layers)


def rows(x: Stacked, where: Array | None, layers: tuple[str, ...] | None) -> tuple[tuple[Array, ...], Array]:
    """`trainable_matrices` and ``where`` as a checked (n,) bool mask, all True for None."""
    mats = trainable_matrices(x, layers)
    return mats, everyone(mats[0].shape[0], where, "x")


def centred(block: Array, where: Array) -> Array:
    """(n, width) the rows that count minus their mean; the other rows are 0."""
    block = _counted(block, where)
    mean = block.sum(axis=0) / jnp.maximum(where.sum(), 1).astype(block.dtype)
    return _counted(block - mean[None, :], where)


def _counted(block: Array, where: Array) -> Array:
    """(n, width) the rows that count; the other rows are 0."""
    return jnp.where(where[:, None], block, 0)


def _products(mats: tuple[Array, ...], prepare: Callable[[Array], Array]) -> Array:
    """(n, n) inner products of all pairs of rows, after ``prepare`` of each column block."""
    return sum_pairs(lambda a, b: tree.product(a, b.T), prepare, mats, columns=_columns(mats[0].shape[0]))


def _columns(n: int) -> int:
    """Number of columns in a block of ``n`` models."""
    return blocks.width(n, 2**19)


def sum_pairs(
    pair: Callable[[Array, Array], Array],
    prepare: Callable[..., Array],
    mats: tuple[Array, ...],
    *given: Array,
    columns: int,
) -> Array:
    """``sum over column blocks of pair(block, block)`` for a symmetric ``pair``; only the upper triangle is computed.

    Args:
        pair: (a, w) and (b, w) blocks -> (a, b), symmetric in its arguments.
        prepare: (n, w) and ``given`` -> (n, w), applied once to each block, so that no prepared copy of ``mats`` is
            kept.
        mats: (n, p_l) matrices of one dtype.
        *given: other arguments of ``prepare`` that may have gradients.
        columns: width of a block, static.

    Returns:
        (n, n), exactly symmetric.
    """
    n = mats[0].shape[0]
    edges = [0, n] if n < 128 else [0, n // 4, n // 2, n - n // 4, n]
    strips = list(itertools.pairwise(edges))

    def part(block: Array, *given: Array) -> tuple[Array, ...]:
        block = prepare(block, *given)
        return tuple(pair(block[a:b], block[a:]) for a, b in strips)

    total = tuple(jnp.zeros((b - a, n - a), mats[0].dtype) for a, b in strips)
    for mat in mats:
        total = blocks.add_blocks(part, total, mat, *given, columns=columns)
    upper = jnp.concatenate([jnp.pad(part, ((0, 0), (a, 0))) for part, (a, _) in zip(total, strips, strict=True)])
    return mirror(upper) + jnp.diag(jnp.diagonal(whole(upper)))


def _from_gram(product: Array) -> tuple[Array, Array]:
    square = jnp.diagonal(whole(product))
    scale = square[:, None] + square[None, :]
    return mirror(jnp.maximum(scale - 2 * product, 0)), scale


@jax.custom_jvp
def squared(mats: tuple[Array, ...], where: Array) -> Array:
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
        near = close(*carry)
        origin = jnp.argmax(near | jnp.eye(n, dtype=bool), axis=1)
        again = near & (origin[:, None] == origin[None, :])

        def moved(block: Array) -> Array:
            block = _counted(block, where)
            return block - block[origin]

        square, scale = _from_gram(_products(mats, moved))
        return whole((jnp.where(again, square, carry[0]), jnp.where(again, scale, carry[1])))

    start = whole(_from_gram(_products(mats, lambda block: centred(block, where))))
    # Narrow leaves are sent to every device once, before the loop.
    mats = tuple(mat if mat.shape[1] >= 2 * _columns(n) else whole(mat) for mat in mats)
    return whole(jnp.where(pairs, lax.while_loop(cond, body, start)[0], 0))


@squared.defjvp
def _squared_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """``d |x_i - x_j|^2 = 2 <x_i - x_j, dx_i - dx_j>``, so that no gradient passes through the loop."""
    mats, where = primals
    moves = [jnp.where(where[:, None], move, 0) for move in tangents[0]]
    product = sum(tree.product(centred(m, where), d.T) for m, d in zip(mats, moves, strict=True))
    own = jnp.diagonal(product)
    pairs = where[:, None] & where[None, :]
    return squared(mats, where), jnp.where(pairs, 2 * (own[:, None] + own[None, :] - product - product.T), 0)
