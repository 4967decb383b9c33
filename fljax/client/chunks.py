"""Chunks of clients that run side by side, one chunk after another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.types import Examples


def chunked(fn: Callable[..., Any], at_once: int, n_kinds: int = 1) -> Callable[..., Any]:
    """``fn(pool, shared, index, size, *rows)`` of one client, mapped over chunks of ``at_once`` of them.

    Clients of a chunk are of similar size. With ``n_kinds`` above 1 they are of one kind, the last of ``rows``, which
    ``fn`` then gets unbatched.
    """
    if at_once == 1:
        return lambda pool, shared, *rows: lax.map(lambda row: fn(pool, shared, *row), rows)

    def run(pool: Examples, shared: Any, index: Array, size: Array, *rows: Any) -> Any:
        def side_by_side(chunk: Any) -> Any:
            return jax.vmap(lambda *row: fn(pool, shared, *row))(*chunk)

        if size.shape[0] == at_once:
            return side_by_side((index, size, *rows))
        order = by_size(size, at_once)
        out = lax.map(side_by_side, jax.tree.map(lambda leaf: leaf[order], (index, size, *rows)))
        return _unchunked(out, jnp.argsort(order.reshape(-1)))

    def run_kinds(pool: Examples, shared: Any, index: Array, size: Array, *rows: Any) -> Any:
        def side_by_side(chunk: Any) -> Any:
            kind, *chunk_rows = chunk
            return jax.vmap(lambda *row: fn(pool, shared, *row, kind))(*chunk_rows)

        kind = rows[-1]
        member, place = by_kind(kind, size, at_once, n_kinds)
        client = jnp.maximum(member, 0)
        index, size, *own_rows = jax.tree.map(lambda leaf: leaf[client], (index, size, *rows[:-1]))
        size = jnp.where(member >= 0, size, 0)  # an empty place takes no step
        return _unchunked(lax.map(side_by_side, (kind[client[:, 0]], index, size, *own_rows)), place)

    return run if n_kinds == 1 else run_kinds


def _unchunked(out: Any, place: Array) -> Any:
    """Results (chunks, at_once, ...), one for each client, by its place in the chunks."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[place], out)


def by_size(size: Array, at_once: int) -> Array:
    """(chunks, at_once) clients from the largest to the smallest, so that a chunk's loops are of similar length."""
    return jnp.argsort(-size, stable=True).reshape(-1, at_once)


def by_kind(kind: Array, size: Array, at_once: int, n_kinds: int) -> tuple[Array, Array]:
    """Clients in chunks of one kind each, and from the largest to the smallest of a kind.

    Args:
        kind: (clients,) from 0 to ``n_kinds - 1``.
        size: (clients,).
        at_once: places of a chunk.
        n_kinds: number of kinds, which bounds the chunks that are not full.

    Returns:
        (chunks, at_once) the client in each place, -1 in empty ones, which are a chunk's last; (clients,) each client's
        place, counted over all chunks.
    """
    n = size.shape[0]
    n_chunks = (n + n_kinds * (at_once - 1)) // at_once
    count = (kind[:, None] == jnp.arange(n_kinds, dtype=jnp.int32)[None]).sum(0, dtype=jnp.int32)
    n_chunks_of_kind = -(-count // at_once)
    first_chunk, first_rank = (jnp.cumsum(part, dtype=jnp.int32) - part for part in (n_chunks_of_kind, count))
    order = jnp.lexsort((-size, kind)).astype(jnp.int32)
    of_kind = kind[order]
    place = first_chunk[of_kind] * at_once + jnp.arange(n, dtype=jnp.int32) - first_rank[of_kind]
    member = jnp.full(n_chunks * at_once, -1, jnp.int32).at[place].set(order)
    return member.reshape(n_chunks, at_once), jnp.zeros(n, jnp.int32).at[order].set(place)
