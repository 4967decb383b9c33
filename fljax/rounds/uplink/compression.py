"""Compression: top-k, random-k, quantisation, signs, low rank, and error feedback.

- top-k, signs: Seide et al., Interspeech 2014; Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599;
  Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847 (error feedback, scaled signs)
- random-k: Konecny et al., 2016, https://arxiv.org/abs/1610.05492
- quantisation: Alistarh et al. (QSGD), NeurIPS 2017, https://arxiv.org/abs/1610.02132
- low rank: Vogels et al. (PowerSGD), NeurIPS 2019, https://arxiv.org/abs/1905.13727
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.keys import uniforms
from fljax.matrices import one_sided_jacobi, orthonormal
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.uplink.chain import NOTHING, Memory, Transform
from fljax.rounds.uplink.largest import largest
from fljax.rounds.uplink.message import FLOAT_BITS, Message, Trip, dense, n_numbers
from fljax.types import Key

BUCKET = 512
"""Numbers of an update that share one quantisation scale, which is sent too (QSGD's bucket size)."""
MOST_RANK = 8
"""The largest rank of `low_rank`; its arrays have this many columns."""


@hyper
class TopKHyper:
    top_share: Scalar = number(
        0.1, "share of an update's numbers that are sent (the largest ones); 1: all", above=0, most=1
    )


def _top_k(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    message, d = message.multiplied_out(), message.values.shape[1]
    k = _n_sent(hyper.top_share, d)
    is_sent, n_largest = largest(message.values, k)
    n_values = jnp.minimum(message.n_values, jnp.where(k < d, n_largest.astype(jnp.float32), float(d)))
    return memory, message._replace(values=jnp.where(is_sent, message.values, 0.0), n_values=n_values)


top_k = Transform(_top_k, name="top_k")
"""Only the largest numbers of an update are sent, with their indices."""


@hyper
class RandomKHyper:
    random_share: Scalar = number(
        0.1, "share of an update's numbers that are sent, drawn in each round; 1: all", above=0, most=1
    )


def _random_k(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    message, d = message.multiplied_out(), message.values.shape[1]
    share = jnp.asarray(hyper.random_share, jnp.float32)
    is_sent = uniforms(trip.key, d) < share
    values = jnp.where(is_sent, message.values / share, 0.0)
    # Of a dense message, zeros are sent too; of a sparse one, the numbers that remain.
    n_places = is_sent.sum(axis=1).astype(jnp.float32) * (message.n_places / d)
    n_nonzero = jnp.minimum(n_places, (values != 0).sum(axis=1).astype(jnp.float32))
    n_values = jnp.where(message.n_values < message.n_places, n_nonzero, n_places)
    extra = message.extra + FLOAT_BITS
    return memory, message._replace(values=values, n_values=n_values, n_places=n_places, extra=extra)


_DIVIDES = "random_k divides what it sends by its share, so that the error fed back would grow; use top_k"
random_k = Transform(_random_k, not_fed_back=_DIVIDES, name="random_k")
"""Each number is sent with probability ``random_share`` and divided by it, which preserves the mean.

The indices follow from a seed of 32 bits, which is sent instead of them.
"""


@hyper
class QuantizeHyper:
    bits: Scalar = number(8, "bits of a number, including its sign, rounded; 32: not quantised", least=2, most=32)


def _quantize(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    message, bits = message.multiplied_out(), jnp.round(jnp.asarray(hyper.bits, jnp.float32))
    levels = jnp.exp2(jnp.minimum(bits, 24.0) - 1) - 1

    def coarse(buckets: Array, random: Array) -> tuple[Array, Array]:
        scale = _largest_magnitude(buckets)
        level = jnp.where(scale > 0, jnp.abs(buckets) / jnp.where(scale > 0, scale, 1.0), 0.0) * levels
        rounds_up = random < level - jnp.floor(level)
        rounded = jnp.sign(buckets) * (jnp.floor(level) + rounds_up.astype(jnp.float32)) * (scale / levels)
        return rounded.reshape(len(rounded), -1), (scale > 0).sum(axis=(1, 2)).astype(jnp.float32)

    values, (n, d) = message.values, message.values.shape
    n_whole, n_rest = divmod(d, BUCKET)
    random = jax.vmap(lambda key: _uniform(key, (-(-d // BUCKET), BUCKET)))(trip.key)
    # The rest is rounded apart: with a padded bucket, whose end is cut off again, all would take a third longer.
    whole = values[:, : d - n_rest].reshape(n, n_whole, BUCKET), random[:, :n_whole]
    rest = values[:, None, d - n_rest :], random[:, n_whole:, :n_rest]
    rounded, n_scales = zip(*(coarse(*part) for part in (whole, rest) if part[0].size), strict=True)
    is_exact = bits >= FLOAT_BITS
    return memory, message._replace(
        values=jnp.where(is_exact, values, jnp.concatenate(rounded, axis=1)),
        bits=jnp.minimum(message.bits, bits),
        scales=jnp.where(is_exact, message.scales, FLOAT_BITS * sum(n_scales)),
    )


def _largest_magnitude(buckets: Array) -> Array:
    """(rows, buckets, 1), from the ends of both signs: XLA's CPU backend would first write all absolute values."""
    unbounded = [jnp.float32(-jnp.inf), jnp.float32(jnp.inf)]
    most, least = lax.reduce(
        [buckets, buckets], unbounded, lambda ends, x: [jnp.maximum(ends[0], x[0]), jnp.minimum(ends[1], x[1])], (2,)
    )
    return jnp.maximum(most, -least)[:, :, None]


def _uniform(key: Key, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in [0, 1), ``(buckets, numbers)``: 8 own bits each, and 16 bits shared by the bucket.

    This needs a quarter of the random bits; the shared bits contribute less than 1/256 to a number.
    """
    key_own, key_shared = jax.random.split(key)
    words = jax.random.bits(key_own, (shape[0], shape[1] // 4), jnp.uint32)
    own_bits = lax.bitcast_convert_type(words, jnp.uint8).reshape(shape).astype(jnp.float32)
    shared_bits = jax.random.bits(key_shared, (shape[0], 1), jnp.uint16).astype(jnp.float32)
    return (own_bits + (shared_bits + 0.5) / 2.0**16) / 2.0**8


quantize = Transform(_quantize, name="quantize")
"""Stochastic rounding to ``2^(bits-1) - 1`` levels of the bucket's largest number, which preserves the mean (QSGD)."""


def _sign(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    message = message.multiplied_out()
    values = message.values
    n_signs = (values != 0).sum(axis=1).astype(jnp.float32)
    scale = (jnp.abs(values).sum(axis=1) / jnp.maximum(n_signs, 1))[:, None]
    bits = jnp.where(n_signs < message.n_places, math.log2(3), 1.0)  # 0 is a third symbol
    return memory, message._replace(
        values=jnp.sign(values) * scale, bits=bits, scales=jnp.full_like(message.scales, FLOAT_BITS)
    )


sign = Transform(_sign, name="sign")
"""One bit per number: its sign, times the mean of the absolute values; log2(3) bits if some numbers are 0.

The mean is over nonzero numbers, and zeros stay 0; in Karimireddy et al. the sum is divided by the number of all.
"""


@hyper
class LowRankHyper:
    rank: Scalar = number(2, "rank of the approximation of each matrix", least=1, most=MOST_RANK)


def _low_rank(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    rank = jnp.round(jnp.asarray(hyper.rank, jnp.float32))
    ends = np.cumsum([int(np.prod(shape)) for shape in trip.shapes])[:-1]
    parts = [
        flat.reshape(len(flat), *_matrix_shape(shape))
        for flat, shape in zip(jnp.split(message.values, ends, axis=1), trip.shapes, strict=True)
    ]
    matrices = [i for i, shape in enumerate(trip.shapes) if len(shape) > 1]
    approximations = {i: jax.vmap(_approximation, (0, 0, None))(trip.part(i).key, parts[i], rank) for i in matrices}
    n_sent, sent_parts = jnp.zeros_like(message.n_values), []
    for i, part in enumerate(parts):
        _, rows, columns = part.shape
        numbers = rank * (rows + columns)
        is_factored = (numbers < rows * columns) & (i in approximations)  # otherwise the matrix is sent unchanged
        sent_parts.append(jnp.where(is_factored, approximations.get(i, part), part).reshape(len(part), -1))
        n_sent += jnp.where(is_factored, numbers, float(rows * columns))
    # Earlier transforms of the numbers no longer matter: all factors are new numbers, sent unchanged.
    uncompressed = dense(message, jnp.concatenate(sent_parts, axis=1))
    return memory, uncompressed._replace(n_values=n_sent, n_places=n_sent, factored=True)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a parameter as a matrix."""
    return int(np.prod(shape[:-1])), (shape or (1,))[-1]


def _approximation(key: Array, matrix: Array, rank: Array) -> Array:
    """A matrix of rank ``rank`` near ``matrix``: the best one in the subspace found by two power iterations."""
    n_columns = min(MOST_RANK, *matrix.shape)
    random = jax.random.normal(key, (matrix.shape[1], n_columns), jnp.float32)
    p = orthonormal(tree.product(matrix, random))
    p = orthonormal(tree.product(matrix, tree.product(matrix.T, p)))
    q, rotation = one_sided_jacobi(tree.product(matrix.T, p))
    is_used = (jnp.arange(n_columns, dtype=jnp.float32) < rank).astype(jnp.float32)[None, :]
    return tree.product(tree.product(p, rotation) * is_used, q.T)


low_rank = Transform(_low_rank, name="low_rank")
"""For every matrix two factors are sent, (rows, rank) and (columns, rank), if they are fewer numbers (PowerSGD).

It should be the last compression: top_k, random_k, quantize or sign after it change numbers of the matrix, so that its
factors are useless, and traffic is counted accordingly.
"""


@checked_kinds
def error_feedback(rest: Transform) -> Transform:
    """The client keeps what ``rest`` of the chain loses of an update, and adds it to its next one.

    Raises:
        ValueError: nothing is lost, or it must not be fed back.
    """
    if rest is NOTHING:
        raise ValueError(
            "error_feedback keeps what the bricks after it lose, but no brick comes after it; add one, such as top_k"
        )
    if rest.not_fed_back:
        raise ValueError(f"error_feedback: {rest.not_fed_back}")

    def init(hyper: Any, n_clients: int, shapes: tuple) -> Memory:
        inner = rest.init(hyper, n_clients, shapes)
        return Memory(inner.server, (jnp.zeros((n_clients, n_numbers(shapes)), jnp.float32), inner.clients))

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        lost, inner = memory.clients
        corrected = message.values + lost
        inner, sent = rest.apply(hyper, Memory(memory.server, inner), dense(message, corrected), trip)
        # The server leaves out a message that is not finite. What it lost would never be finite again.
        is_received = (message.weight > 0) & jnp.isfinite(sent.values).all(axis=1)
        return Memory(
            inner.server, (jnp.where(is_received[:, None], corrected - sent.values, lost), inner.clients)
        ), sent

    reason = "a second error_feedback after it would add the same error twice; leave one out"
    own = {"not_fed_back": reason, "name": "error_feedback", "follows_mask": False, "feeds_back": True}
    return rest._replace(apply=apply, init=init, **own)


def _n_sent(share: Any, d: int) -> Array:
    return jnp.clip(jnp.round(jnp.asarray(share, jnp.float32) * d), 1, d).astype(jnp.int32)
