"""The k largest numbers in each row of a matrix, without a sort."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

SAMPLE = 4096
"""Sample size per row for a first guess, by a sort."""
FEW = 64
"""A bracket with fewer numbers is divided into quarters; one with more, near the expected position of the k-th."""


class _Bracket(NamedTuple):
    """Bounds on the k-th largest of each row: ``low <= it < high``."""

    low: Array  # (rows,) uint32
    high: Array
    n_low: Array  # (rows,) int32 numbers of at least ``low``, k or more
    n_high: Array  # numbers of at least ``high``, fewer than k


def largest(values: Array, k: Array) -> tuple[Array, Array]:
    """The k largest numbers of each row by absolute value, including ties with the smallest of them.

    Args:
        values: (rows, d) float32 or narrower.
        k: () int32 from 1 to d.

    Returns:
        (rows, d) bool, which numbers are among them; (rows,) int32, their count, without zeros if k < d.
    """
    magnitude = jnp.abs(values).astype(jnp.float32)  # also for bfloat16, whose values are all float32 values
    size = lax.bitcast_convert_type(magnitude, jnp.uint32)  # in the order of the absolute values
    rows, d = size.shape
    initial = _Bracket(
        *(jnp.full(rows, end, jnp.uint32) for end in (0, 2**32 - 1)), *(jnp.full(rows, n, jnp.int32) for n in (d, 0))
    )

    def is_open(bracket: _Bracket) -> Array:
        return jnp.any((bracket.n_low > k) & (bracket.high - bracket.low > 1))

    def closer(bracket: _Bracket) -> _Bracket:
        return _narrowed(bracket, size, _evenly(bracket, k), k)

    narrowed = lax.cond(is_open(initial), lambda: _narrowed(initial, size, _guesses(size, k), k), lambda: initial)
    final = lax.while_loop(is_open, closer, narrowed)
    return size >= final.low[:, None], jnp.where(final.low > 0, final.n_low, final.n_high)


def _guesses(size: Array, k: Array) -> list[Array]:
    """Three numbers around the k-th largest, from a sample of each row."""
    sample = jnp.sort(size[:, :: -(-size.shape[1] // SAMPLE)], axis=1)
    n, share = sample.shape[1], k.astype(jnp.float32) / size.shape[1]
    slack = 4 * jnp.sqrt(n * share * (1 - share)) + 1
    places = (1 - share) * n + jnp.stack([-slack, jnp.zeros_like(slack), slack])
    return [sample[:, place] for place in jnp.clip(places, 0, n - 1).astype(jnp.int32)]


def _evenly(bracket: _Bracket, k: Array) -> list[Array]:
    """Three numbers in the bracket: around the k-th if numbers were evenly spread, and the middle."""
    span = bracket.high - bracket.low
    n_inside = (bracket.n_low - bracket.n_high).astype(jnp.float32)
    share, slack = (bracket.n_low - k).astype(jnp.float32) / n_inside, 2 / jnp.sqrt(n_inside)
    is_few = n_inside < FEW
    parts = (jnp.where(is_few, 0.25, share - slack), jnp.full_like(share, 0.5), jnp.where(is_few, 0.75, share + slack))
    steps = [(jnp.clip(part, 0, 0.999) * span.astype(jnp.float32)).astype(jnp.uint32) for part in parts]
    return [bracket.low + jnp.clip(step, 1, jnp.maximum(span, 2) - 1) for step in steps]


def _narrowed(bracket: _Bracket, size: Array, trials: list[Array], k: Array) -> _Bracket:
    """The bracket after the counts of numbers that are at least as large as each trial."""
    # One reduction of three sums: XLA's CPU backend reads the rows once, whereas a single sum would first write all its
    # terms to memory.
    counts = lax.reduce(
        [(size >= trial[:, None]).astype(jnp.int32) for trial in trials],
        [jnp.int32(0)] * len(trials),
        lambda total, terms: [a + b for a, b in zip(total, terms, strict=True)],
        (1,),
    )
    low, high, n_low, n_high = bracket
    for trial, count in zip(trials, counts, strict=True):
        is_reached = count >= k
        low, n_low = (
            jnp.where(is_reached, jnp.maximum(low, trial), low),
            jnp.where(is_reached, jnp.minimum(n_low, count), n_low),
        )
        high = jnp.where(is_reached, high, jnp.minimum(high, trial))
        n_high = jnp.where(is_reached, n_high, jnp.maximum(n_high, count))
    return _Bracket(low, high, n_low, n_high)
