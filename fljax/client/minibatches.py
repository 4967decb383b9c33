"""Minibatches: the order of a client's examples in a pass, and the rows of each batch."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.types import Key

Sizes = TypeVar("Sizes", Array, np.ndarray)


def n_batches(size: Sizes, batch_size: int | None) -> Sizes:
    """Number of batches in a pass over ``size`` examples: ceil(size / batch_size); None: one batch, or 0 for size 0."""
    return size.clip(0, 1) if batch_size is None else -(-size // batch_size)


_PACKED = 512  # positions that fit beside a float's 23 random bits
_LAST = np.uint32(2**32 - _PACKED)


def shuffled(key: Key, index: Array, size: Array) -> Array:
    """``index`` (capacity,) with its first ``size`` entries in random order.

    The order does not depend on the capacity: entry i's random number is the same for every length.
    """
    place = jnp.arange(index.shape[0], dtype=jnp.uint32)
    numbers = jnp.where(place < size.astype(jnp.uint32), jax.random.bits(key, index.shape, jnp.uint32) & _LAST, _LAST)
    if index.shape[0] > _PACKED:
        return index[jnp.argsort(numbers)]
    # The low bits hold the position, which also breaks ties as a stable sort does: sorting one array is much faster.
    return index[(jnp.sort(numbers | place) % np.uint32(_PACKED)).astype(jnp.int32)]


def batch_rows(order: Array, size: Array, step: Array, batch_size: int | None) -> tuple[Array, Array]:
    """Rows (batch,) of batch ``step`` and their weights: 1, or 0 past the client's last example.

    Places past the end repeat the client's own examples, so that a batch never has another client's. With
    ``batch_size`` None, a batch has as many places as ``order``, the capacity.
    """
    n_places = order.shape[0] if batch_size is None else batch_size
    position = step * n_places + jnp.arange(n_places)
    return order[position % jnp.maximum(size, 1)], (position < size).astype(jnp.float32)
