"""Byzantine-robust aggregation: median and trimmed mean of every coordinate, norm clipping.

``where`` marks the participants; the others may hold anything, including NaN. Without any participant, a function
returns ``empty`` (one model) if given, else zeros. Bad input is a ValueError: leaves or masks of different lengths, an
``empty`` that is not one model of these shapes, and numbers out of their range, unless they are traced.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax import tree
from fljax.server import blocks, order_statistics
from fljax.server.checks import check_one, check_vector, everyone, fallback, n_rows
from fljax.server.entry import POSITIVE, SHARE, checked, compiled
from fljax.types import AnyArray, Params, Stacked


@compiled
def coordinate_median(stacked: Stacked, where: AnyArray | None = None, empty: Params | None = None) -> Params:
    """The median of every coordinate over the participants (Yin et al. 2018); of an even number, the mean of the two.

    Exact, by 32 counting passes instead of a sort. A participant's NaN counts as the largest value, so the result is
    not NaN if fewer than half of the entries are. The gradient goes to the middle entries and is shared among ties.

    Args:
        stacked: leaves (clients, ...). Integers are converted to float32, 64-bit integers to float64, and their medians
            are rounded, as in `mix`.
        where: (clients,) bool participants; None: all.
        empty: one model, the result without participants; None: zeros.

    Returns:
        One model.
    """
    where = everyone(n_rows("stacked", stacked), where, "stacked")
    return by_coordinate(
        lambda column: order_statistics.median(tree.at_least_float32(column), where), stacked, where, empty
    )


@checked(fraction=SHARE)
@compiled
def trimmed_mean(
    stacked: Stacked, fraction: ArrayLike, where: AnyArray | None = None, empty: Params | None = None
) -> Params:
    """The mean of every coordinate without its b smallest and b largest entries (Yin et al. 2018).

    ``b = floor(fraction m)`` for m participants, but at least 1 if m >= 3 and fraction > 0 (otherwise 5 % of 19 clients
    would be none), and at most ``(m - 1) // 2``, which leaves one or two entries. The gradient is that of the mean of
    the entries kept.

    Args:
        stacked: leaves (clients, ...). Means of integers are rounded, as in `mix`.
        fraction: share trimmed on each side, 0 (the mean) to 0.5 (the median); may be traced.
        where: (clients,) bool participants; None: all.
        empty: one model, the result without participants; None: zeros.

    Returns:
        One model.
    """
    check_one(fraction=fraction)
    where = everyone(n_rows("stacked", stacked), where, "stacked")
    trim = n_trimmed(fraction, where.sum(dtype=jnp.int32))
    return by_coordinate(
        lambda column: order_statistics.trimmed_mean(tree.at_least_float32(column), where, trim), stacked, where, empty
    )


def n_trimmed(fraction: ArrayLike, n: Array) -> Array:
    """Number of entries trimmed on each side of n, () int32, see `trimmed_mean`; tolerates rounding of the product."""
    fraction = jnp.asarray(fraction, jnp.float32)
    least = jnp.where((n >= 3) & (fraction > 0), 1, 0)
    trim = jnp.floor(fraction * n.astype(jnp.float32) + 1e-4).astype(jnp.int32)
    return jnp.clip(trim, least, jnp.maximum(n - 1, 0) // 2).astype(jnp.int32)


def is_within_reach(stacked: Stacked) -> Array:
    """(clients,) bool: whether squared distances to a client fit float32; if not, it would make all distances NaN."""
    leaves = [tree.at_least_float32(tree.as_matrix(leaf)) for leaf in jax.tree.leaves(stacked)]
    return jnp.asarray(sum(jnp.square(leaf).sum(axis=1) for leaf in leaves)) < 1e37  # also False for NaN


@checked(max_norm=POSITIVE)
@compiled
def clip_norm(stacked: Stacked, max_norm: ArrayLike) -> Stacked:
    """``x_i min(1, max_norm / |x_i|_2)``: every client's update, clipped to the norm ``max_norm``.

    The norm is over all trainable leaves of a client; running statistics are neither counted nor scaled. A row whose
    squared norm overflows float32 (a norm above 1e19, or an entry inf) becomes 0; a row with NaN stays NaN. In leaves
    narrower than float32, entries are rounded to their dtype, so a norm may exceed the limit (in bfloat16 by 0.2 %; in
    float16 by 0.05 %, and by more for entries below 6e-5). Rows do not affect each other. Differentiable except where
    the norm equals ``max_norm``; at a zero row, the gradient is 1.

    Args:
        stacked: (clients, d) array or leaves (clients, ...), usually updates rather than models.
        max_norm: () or (clients,), positive; may be traced.

    Returns:
        Leaves (clients, ...); integers are rounded.
    """
    n, max_norm = n_rows("stacked", stacked), jnp.asarray(max_norm)
    if max_norm.ndim:
        check_vector("max_norm", max_norm, n, "stacked")
    trainable, statistics = tree.split_statistics(stacked)
    square: Any = sum(jnp.square(tree.at_least_float32(mat)).sum(axis=1) for mat in blocks.matrices(trainable))
    limit = jnp.broadcast_to(jnp.asarray(max_norm, square.dtype), square.shape)
    is_over = square > jnp.square(limit)
    scale = jnp.where(is_over, limit / jnp.sqrt(jnp.where(is_over, square, 1)), 1)
    is_finite = jnp.not_equal(square, jnp.inf)  # inf times 0 would be NaN

    def clip(leaf: Array) -> Array:
        wide = tree.at_least_float32(leaf)  # a scale of 1e-7 would be rounded in float16
        clipped = jnp.where(tree.along(is_finite, leaf), wide * tree.along(scale, leaf).astype(wide.dtype), 0)
        return tree.rounded(clipped, leaf.dtype)

    return tree.join_statistics(jax.tree.map(clip, trainable), statistics)


def by_coordinate(f: Callable[[Array], Array], stacked: Stacked, where: Array, empty: Params | None) -> Params:
    """One model, from ``f`` of columns (clients, width) -> (width,); ``empty`` or zeros if no client counts."""
    if empty is not None:
        empty = fallback("empty", empty, stacked)
    leaves, structure = jax.tree.flatten(stacked)
    columns = blocks.width(leaves[0].shape[0], 2**18)
    flat = [tree.as_matrix(leaf) for leaf in leaves]

    def walk(matrix: Array) -> Array:
        return blocks.map_columns(lambda block: tree.rounded(f(block), matrix.dtype)[None], matrix, 1, columns)[0]

    # Small leaves are joined: one loop for all of them, since one loop per leaf would dominate the compilation time.
    small = [i for i, matrix in enumerate(flat) if matrix.shape[1] < columns and matrix.dtype == flat[0].dtype]
    ends = list(itertools.accumulate(flat[i].shape[1] for i in small))
    joined = jnp.split(walk(jnp.concatenate([flat[i] for i in small], axis=1)), ends[:-1]) if small else []
    row_of = dict(zip(small, joined, strict=True))
    out = [(row_of[i] if i in row_of else walk(flat[i])).reshape(leaf.shape[1:]) for i, leaf in enumerate(leaves)]
    model = jax.tree.unflatten(structure, out)
    no_client_model = jax.tree.map(jnp.zeros_like, model) if empty is None else empty
    return jax.tree.map(lambda a, b: jnp.where(where.any(), a, b), model, no_client_model)
