"""Walks over the parameter axis in column blocks: what needs every client at once, without a copy of every client."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from fljax import tree
from fljax.placement import CLIENTS, in_a_device, n_client_devices

ENTRIES = 2**20
"""Scalars in one block of the tallest matrix: 4 MB in float32, which stays in cache."""


def width(rows: int, entries: int = ENTRIES) -> int:
    """Columns of a block of ``rows`` rows: about ``entries`` scalars, a multiple of 64, at least 64."""
    return max(64, entries // max(rows, 1) // 64 * 64)


def fold(step: Callable[..., Any], carry: Any, *matrices: Array, columns: int) -> Any:
    """``carry = step(carry, *blocks)`` over consecutive column blocks of matrices with the same number of columns.

    The loop has a static length, so it works under jit and vmap and can be differentiated in both modes. The last,
    narrower block is handled outside of the loop; nothing is padded.

    Args:
        step: takes the carry and one (rows, width) block of each matrix, returns the new carry (same shapes).
        carry: any pytree.
        *matrices: arrays (rows_i, p) with a common p.
        columns: width of a block, static.
    """
    total = matrices[0].shape[1]
    whole = total // columns
    if whole > 1:

        def body(i: Array, carry: Any) -> Any:
            return step(carry, *(lax.dynamic_slice_in_dim(matrix, i * columns, columns, axis=1) for matrix in matrices))

        carry = lax.fori_loop(0, whole, body, carry)
    elif whole == 1:
        carry = step(carry, *(matrix[:, :columns] for matrix in matrices))
    if total % columns:
        carry = step(carry, *(matrix[:, whole * columns :] for matrix in matrices))
    return carry


def map_columns(
    f: Callable[[Array], Array], x: Array, rows: int, columns: int, dtype: jnp.dtype | None = None
) -> Array:
    """``f`` of every column block, side by side: for maps that treat the columns of ``x`` independently.

    Args:
        f: (n, width) -> (rows, width).
        x: (n, p).
        rows: rows of the result, static.
        columns: width of a block, static.
        dtype: of the result; None: that of ``x``.

    Returns:
        (rows, p).
    """
    whole, dtype = x.shape[1] // columns, x.dtype if dtype is None else dtype
    if whole < 2:
        return f(x).astype(dtype)

    def body(i: Array, out: Array) -> Array:
        part = f(lax.dynamic_slice_in_dim(x, i * columns, columns, axis=1))
        return lax.dynamic_update_slice_in_dim(out, part.astype(out.dtype), i * columns, axis=1)

    out = lax.fori_loop(0, whole, body, jnp.zeros((rows, x.shape[1]), dtype))
    if x.shape[1] % columns:
        out = out.at[:, whole * columns :].set(f(x[:, whole * columns :]).astype(out.dtype))
    return out


def multiply(matrix: Array, x: Array, counts: Array) -> Array:
    """``matrix @ x`` over the rows of ``x`` where ``counts``; the other rows never matter, not even as NaN.

    Selecting first would copy all of ``x`` (a matrix product does not fuse with a selection); in blocks the copy stays
    in cache, which measured 3 to 10 times faster for a few rows and never slower.

    Args:
        matrix: (rows, n).
        x: (n, p).
        counts: (n,) bool.

    Returns:
        (rows, p), in the dtype of ``x``.
    """
    share, rest = divmod(x.shape[0], n_client_devices())
    if in_a_device() or n_client_devices() == 1 or rest or matrix.shape[0] > share:
        return _multiply(matrix, x, counts, x.dtype)

    def partial_sums(matrix: Array, x: Array, counts: Array) -> Array:
        return lax.psum(_multiply(matrix, x, counts, matrix.dtype), CLIENTS)

    # One sum over the devices after the loop, not one in each of its steps: two sums of which one is in a loop can make
    # the devices of a CPU wait for each other for ever (docs/devices.md). More rows than a device has clients are left
    # to XLA, for each device would hold them all.
    specs = (PartitionSpec(None, CLIENTS), PartitionSpec(CLIENTS), PartitionSpec(CLIENTS))
    spread = jax.shard_map(partial_sums, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return spread(matrix, x, counts).astype(x.dtype)


def _multiply(matrix: Array, x: Array, counts: Array, dtype: jnp.dtype) -> Array:
    """`multiply` of the rows of one device, in ``dtype``."""

    def block(part: Array) -> Array:
        part = jnp.where(counts[:, None], part, 0).astype(matrix.dtype)
        return jnp.matmul(matrix, part, precision=lax.Precision.HIGHEST)

    return map_columns(block, x, matrix.shape[0], width(max(x.shape[0], matrix.shape[0])), dtype)


def matrices(stacked: Any) -> list[Array]:
    """Every leaf of a stacked pytree (or one array) as (rows, scalars); reshapes only, no copy."""
    return [tree.as_matrix(leaf) for leaf in jax.tree.leaves(stacked)]
