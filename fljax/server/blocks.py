"""Loops over column blocks of the parameter axis, for functions of all clients at once, without copying all clients.

If clients are spread over devices, these loops spread the columns instead: with one exchange before and one after the
loop, each device processes a share of the columns of all clients. XLA alone would put an exchange into every step, and
two exchanges, one of them in a loop, can make the devices of a CPU wait for each other for ever (docs/devices.md).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from fljax import tree
from fljax.placement import CLIENTS, in_a_device, n_client_devices, whole

ENTRIES = 2**20
"""Scalars in one block of the matrix with the most rows: 4 MB in float32, which stays in cache."""


Blocks = Callable[[Array | int, int], Array]
"""``(begin, width) -> (rows, width)``: columns of a matrix, which may be on several devices."""


def width(rows: int, entries: int = ENTRIES) -> int:
    """Number of columns in a block of ``rows`` rows: about ``entries`` scalars, a multiple of 64, at least 64."""
    return max(64, entries // max(rows, 1) // 64 * 64)


def add_blocks(part: Callable[..., Any], total: Any, x: Array, *arguments: Array, columns: int) -> Any:
    """``total`` plus ``part(block, *arguments)`` for all consecutive column blocks of ``x``.

    The loop has a static length, so it works under jit and vmap and can be differentiated in both modes. The last,
    narrower block is handled outside the loop; nothing is padded.

    Args:
        part: ``(block (n, width), *arguments)`` -> a summand with the structure and shapes of ``total``.
        total: any pytree.
        x: (n, p), one row per client.
        *arguments: other arguments of ``part`` that may have gradients; whole on every device.
        columns: width of a block, static.
    """
    n_devices, (n, p) = _n_devices(), x.shape
    if n_devices == 1 or p < 2 * columns:  # without a loop XLA does as well
        return _add_blocks(lambda block: part(block, *arguments), total, (_blocks_of(x),), p, columns)
    share = p // n_devices

    def of_a_device(x: Array, *arguments: Array) -> Any:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), total)
        blocks = (_blocks_of_all(x, n, share),)
        return lax.psum(_add_blocks(lambda block: part(block, *arguments), zeros, blocks, share, columns), CLIENTS)

    specs = (PartitionSpec(CLIENTS), *[PartitionSpec()] * len(arguments))
    spread = jax.shard_map(of_a_device, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    summed = _plus(total, spread(_padded(x, n_devices), *arguments))
    return _plus(summed, part(whole(x[:, share * n_devices :]), *arguments)) if p % n_devices else summed


def add_blocks_by_row(part: Callable[..., Array], total: Array, x: Array, *others: Array, columns: int) -> Array:
    """`add_blocks` if the rows of ``x`` do not affect each other: each device processes its own, without an exchange.

    Args:
        part: takes a block (n, width) of ``x`` and one (rows_i, width) of each other matrix, returns (n, ...).
        total: (n, ...).
        x: (n, p), one row per client.
        *others: (rows_i, p), whole on every device.
        columns: width of a block, static.

    Returns:
        (n, ...).
    """
    n_devices, (n, p) = _n_devices(), x.shape

    def of_a_device(total: Array, x: Array, *others: Array) -> Array:
        return _add_blocks(part, total, tuple(map(_blocks_of, (x, *others))), p, columns)

    if n_devices == 1 or p < 2 * columns:
        return of_a_device(total, x, *others)
    by_client, on_every_device = PartitionSpec(CLIENTS), PartitionSpec()
    specs = (by_client, by_client, *[on_every_device] * len(others))
    spread = jax.shard_map(of_a_device, in_specs=specs, out_specs=by_client, check_vma=False)
    return spread(_padded(total, n_devices), _padded(x, n_devices), *others)[:n]


def _add_blocks(part: Callable[..., Any], total: Any, matrices: tuple[Blocks, ...], p: int, columns: int) -> Any:
    """`add_blocks` on one device, over ``p`` columns."""

    def add(begin: Array | int, width: int, total: Any) -> Any:
        return _plus(total, part(*(blocks(begin, width) for blocks in matrices)))

    n_blocks, n_rest = divmod(p, columns)
    if n_blocks > 1:
        total = lax.fori_loop(0, n_blocks, lambda i, total: add(i * columns, columns, total), total)
    elif n_blocks == 1:
        total = add(0, columns, total)
    return add(n_blocks * columns, n_rest, total) if n_rest else total


def _plus(total: Any, summand: Any) -> Any:
    return jax.tree.map(jnp.add, total, summand)


def map_columns(
    f: Callable[[Array], Array], x: Array, rows: int, columns: int, dtype: jnp.dtype | None = None
) -> Array:
    """``f`` of every column block, joined along the columns: for functions that treat columns independently.

    Args:
        f: (n, width) -> (rows, width).
        x: (n, p), one row per client.
        rows: number of rows of the result, static.
        columns: width of a block, static.
        dtype: dtype of the result; None: that of ``x``.

    Returns:
        (rows, p).
    """
    n_devices, (n, p), dtype = _n_devices(), x.shape, x.dtype if dtype is None else dtype
    if n_devices == 1:
        return _map_columns(f, _blocks_of(x), p, rows, columns, dtype)
    share = -(-p // n_devices)

    def of_a_device(x: Array) -> Array:
        return _map_columns(f, _blocks_of_all(x, n, share), share, rows, columns, dtype)

    over_columns = PartitionSpec(None, CLIENTS)
    spread = jax.shard_map(of_a_device, in_specs=PartitionSpec(CLIENTS), out_specs=over_columns, check_vma=False)
    return spread(_padded(x, n_devices, n_devices))[:, :p]


def _map_columns(
    f: Callable[[Array], Array], blocks: Blocks, p: int, rows: int, columns: int, dtype: jnp.dtype
) -> Array:
    """`map_columns` on one device, over ``p`` columns."""
    if p < 2 * columns:
        return f(blocks(0, p)).astype(dtype)
    # All blocks have the same width; if p is not a multiple of it, the last block begins earlier and overlaps the one
    # before: computing a few columns twice costs less than compiling ``f`` for a narrower block.
    n_blocks = -(-p // columns)
    columns = -(-p // n_blocks // 64) * 64

    def body(i: Array, out: Array) -> Array:
        begin = jnp.minimum(i * columns, p - columns)
        return lax.dynamic_update_slice_in_dim(out, f(blocks(begin, columns)).astype(dtype), begin, axis=1)

    return lax.fori_loop(0, n_blocks, body, jnp.zeros((rows, p), dtype))


def _blocks_of(matrix: Array) -> Blocks:
    return lambda begin, width: lax.dynamic_slice_in_dim(matrix, begin, width, axis=1)


def _blocks_of_all(x: Array, n: int, share: int) -> Blocks:
    """A device's ``share`` of the columns of all ``n`` clients; ``x`` holds all columns of the device's own clients.

    The parts that other devices send are kept as received, and each block is assembled on demand, as a copy in cache.
    XLA's all-to-all, which would assemble everything at once, took twice as long on two devices of a CPU.
    """
    n_devices, me, n_own = n_client_devices(), lax.axis_index(CLIENTS), x.shape[0]
    parts = [(me, x, me * share)]
    for step in range(1, n_devices):
        receiver, sender = (me + step) % n_devices, (me - step) % n_devices
        sent = lax.dynamic_slice_in_dim(x, receiver * share, share, axis=1)
        pairs = [(device, (device + step) % n_devices) for device in range(n_devices)]
        parts.append((sender, lax.ppermute(sent, CLIENTS, pairs), jnp.zeros_like(me)))

    def blocks(begin: Array | int, width: int) -> Array:
        block = jnp.zeros((n_own * n_devices, width), x.dtype)
        for device, rows, offset in parts:
            piece = lax.dynamic_slice_in_dim(rows, offset + begin, width, axis=1)
            block = lax.dynamic_update_slice_in_dim(block, piece, device * n_own, axis=0)
        return lax.optimization_barrier(block)[:n]

    return blocks


def _padded(x: Array, *multiples: int) -> Array:
    """``x`` with zeros appended, so that the lengths of its first axes are multiples of ``multiples``."""
    padding = [(0, -size % multiple) for size, multiple in zip(x.shape, multiples, strict=False)]
    return jnp.pad(x, padding + [(0, 0)] * (x.ndim - len(padding))) if any(after for _, after in padding) else x


def multiply(matrix: Array, x: Array, is_counted: Array) -> Array:
    """``matrix @ x`` over the rows of ``x`` where ``is_counted``; the other rows have no effect, even if they are NaN.

    Selecting first would copy all of ``x`` (a matrix product does not fuse with a selection). In blocks, the copy stays
    in cache: measured 3 to 10 times faster for a few rows and never slower.

    Args:
        matrix: (rows, n).
        x: (n, p).
        is_counted: (n,) bool.

    Returns:
        (rows, p), in the dtype of ``x``.
    """

    def block(x: Array, matrix: Array = matrix, is_counted: Array = is_counted) -> Array:
        part = jnp.where(is_counted[:, None], x, 0).astype(matrix.dtype)
        return tree.product(matrix, part)

    rows, (n, p) = matrix.shape[0], x.shape
    n_devices, columns = _n_devices(), width(max(n, rows))
    if n_devices > 1 and n % n_devices == 0 and rows <= n // n_devices:
        # Few rows: adding up the devices' partial products moves less data than exchanging the columns of all clients.

        def of_a_device(matrix: Array, x: Array, is_counted: Array) -> Array:
            partial_product = _map_columns(
                lambda x: block(x, matrix, is_counted), _blocks_of(x), p, rows, columns, matrix.dtype
            )
            return lax.psum(partial_product, CLIENTS)

        specs = (PartitionSpec(None, CLIENTS), PartitionSpec(CLIENTS), PartitionSpec(CLIENTS))
        spread = jax.shard_map(of_a_device, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
        return spread(matrix, x, is_counted).astype(x.dtype)
    if n_devices > 1 and p < 2 * columns:
        return block(x).astype(x.dtype)  # without a loop XLA does as well
    return map_columns(block, x, rows, columns)


def _n_devices() -> int:
    """Number of devices that clients are spread over; 1 inside one device's part of the program."""
    return 1 if in_a_device() else n_client_devices()


def matrices(stacked: Any) -> list[Array]:
    """Every leaf of a stacked pytree (or one array) as (rows, scalars); without a copy."""
    return [tree.as_matrix(leaf) for leaf in jax.tree.leaves(stacked)]
