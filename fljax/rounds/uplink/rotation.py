"""Random rotations, by which compression loses as little of an uneven update as of an even one.

Suresh, Yu, Kumar, McMahan: Distributed Mean Estimation with Limited Communication, ICML 2017,
https://arxiv.org/abs/1611.00429; with signs: Vargaftik et al.: DRIVE, NeurIPS 2021, https://arxiv.org/abs/2105.08339.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.rounds.uplink.chain import NOTHING, Memory, Transform
from fljax.rounds.uplink.message import FLOAT_BITS, Message, Trip, dense
from fljax.types import Key


@checked_kinds
def rotate(rest: Transform) -> Transform:
    """``rest`` of the chain works on a random rotation of an update, and the server rotates the result back.

    A rotation spreads an update's length over all numbers alike, so that ``rotate+quantize`` and ``rotate+sign`` lose
    the same share of any update: signs ``1 - 2/pi``, as they have the scale of least error; times ``pi/2`` (a server's
    learning rate) they preserve the mean. Each client has a rotation of its own in each round, from a seed of 32 bits;
    all have a common one if the server only sees sums. Clipping to a Euclidean norm and normal noise may come before or
    after it; an L1 norm changes.

    Raises:
        ValueError: nothing follows, or what follows remembers updates from round to round.
    """
    if rest is NOTHING:
        raise ValueError(
            "rotate changes what the bricks after it lose, but no brick comes after it; add one, such as quantize"
        )
    if rest.feeds_back or rest.sees_each:
        raise ValueError(
            f"rotate comes before {rest.name}, which remembers updates, but rotations differ from round to round; "
            f"write {rest.name} before it"
        )

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        n = message.values.shape[0]
        keys = jnp.broadcast_to(trip.server_key, (n,)) if rest.needs else trip.key
        keys = jax.vmap(lambda key: jax.random.fold_in(key, _ROTATION))(keys)
        memory, sent = rest.apply(hyper, memory, dense(message, rotated(keys, message.values)), trip)
        return memory, sent._replace(values=rotated_back(keys, sent.values), extra=sent.extra + FLOAT_BITS)

    return rest._replace(apply=apply, name="rotate", follows_mask=False)


_ROTATION = 0x726F7461


def rotated(keys: Key, values: Array) -> Array:
    """Rows (n, d), each times a random orthogonal matrix of its key (n,).

    With K the largest power of two up to d, the first K numbers are changed, and then the last K: each time by random
    signs and a Walsh-Hadamard transform. So no row is padded, which would add up to d numbers to those that are sent.
    """
    size, signs = _size_and_signs(keys, values)
    values = _joined(_hadamard(values[:, :size] * signs[:, 0]), values[:, size:])
    if size == values.shape[1]:
        return values
    return _joined(values[:, :-size], _hadamard(values[:, -size:] * signs[:, 1]))


def rotated_back(keys: Key, values: Array) -> Array:
    """The inverse of `rotated`."""
    size, signs = _size_and_signs(keys, values)
    if size < values.shape[1]:
        values = _joined(values[:, :-size], _hadamard(values[:, -size:]) * signs[:, 1])
    return _joined(_hadamard(values[:, :size]) * signs[:, 0], values[:, size:])


def _size_and_signs(keys: Key, values: Array) -> tuple[int, Array]:
    """K, and (n, 2, K) random signs."""
    size = 1 << (values.shape[1].bit_length() - 1)
    return size, jax.vmap(lambda key: jax.random.rademacher(key, (2, size), jnp.float32))(keys)


def _joined(first: Array, last: Array) -> Array:
    return jnp.concatenate([first, last], axis=1)


def _hadamard(rows: Array) -> Array:
    """Rows (n, K) times the Walsh-Hadamard matrix over the root of K, which is its own inverse."""
    n, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.reshape(n, -1, 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rows = jnp.stack([first + second, first - second], axis=2).reshape(n, size)
        half *= 2
    return rows / jnp.sqrt(jnp.float32(size))
