"""The samplings by name, and the sampling of a run."""

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.argument_kinds import checked_kinds
from fljax.placement import whole
from fljax.rounds.by_loss import power_of_choice
from fljax.rounds.in_turn import least_recent
from fljax.rounds.oort import oort
from fljax.rounds.passes import shuffled
from fljax.rounds.sampling import Sampling, cohort_size, ids_by_size, share_of_clients
from fljax.types import Description, Key


def uniform(participation: float = 1.0) -> Sampling:
    """A share ``participation`` of the clients, in (0, 1], uniformly without replacement.

    Raises:
        ValueError: ``participation`` is not a number in (0, 1].
    """
    return _uniform(float(share_of_clients(participation)))


@cache
def _uniform(participation: float) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        ids = jnp.arange(size.shape[0], dtype=jnp.int32)
        if n < size.shape[0]:
            # The n least uniform numbers, without sorting all: the cost of a round must not grow with the federation.
            ids = jnp.sort(lax.top_k(-whole(jax.random.uniform(key, ids.shape, jnp.float32)), n)[1]).astype(jnp.int32)
        return ids, jnp.ones(n, bool)

    return Sampling(draw, lambda n: cohort_size(participation, n), _about("uniform", participation))


def by_size(participation: float = 1.0) -> Sampling:
    """A share ``participation`` of the clients, one after another without replacement, each with probability ~ n_i.

    A client without examples is sampled only if no other is left. Averages then usually have equal weights
    (``weighting="uniform"``), because the sizes have counted in the sampling (Li et al., ICLR 2020).

    Raises:
        ValueError: ``participation`` is not a number in (0, 1].
    """
    return _by_size(float(share_of_clients(participation)))


@cache
def _by_size(participation: float) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        return ids_by_size(key, size, n), jnp.ones(n, bool)

    return Sampling(draw, lambda n: cohort_size(participation, n), _about("by_size", participation))


def poisson(participation: float = 1.0) -> Sampling:
    """Each client participates with probability ``participation``, independently of the others; a round may be empty.

    A cohort has places for the mean plus 6 standard deviations plus 4, where the 4 are for small federations. If more
    clients are sampled, in fewer than one round in a hundred million, those with the largest random numbers are left
    out. Empty places are computed but do not count.

    Raises:
        ValueError: ``participation`` is not a number in (0, 1].
    """
    return _poisson(float(share_of_clients(participation)))


@cache
def _poisson(participation: float) -> Sampling:
    def n_places(n_clients: int) -> int:
        mean = participation * n_clients
        return min(n_clients, math.ceil(mean + 6 * math.sqrt(mean * (1 - participation))) + 4)

    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        numbers = whole(jax.random.uniform(key, size.shape, jnp.float32))
        ids = jnp.sort(lax.top_k(-numbers, n)[1]).astype(jnp.int32)
        return ids, numbers[ids] < participation

    return Sampling(draw, n_places, _about("poisson", participation))


def drawn_share(participation: float) -> float:
    """The probability with which `poisson` samples a client: ``participation`` rounded up to a multiple of 2^-23.

    Random numbers of float32 are such multiples.
    """
    return min(1.0, math.ceil(float(np.float32(participation)) * _NUMBERS) / _NUMBERS)


_NUMBERS = 2**23


def fixed(ids: Sequence[int]) -> Sampling:
    """The same clients in every round.

    Raises:
        ValueError: no client is named, or a client twice.
    """
    return _fixed(client_ids(ids))


def client_ids(ids: Any) -> tuple[int, ...]:
    """``ids`` as whole numbers.

    Raises:
        ValueError: they are not a sequence, or one is not a whole number.
    """
    if not np.iterable(ids):
        raise ValueError(f"ids={ids!r} is not a sequence; give the ids of the clients, such as [0, 3]")
    return tuple(_id("ids", i) for i in ids)


@cache
def _fixed(ids: tuple[int, ...]) -> Sampling:
    return table((ids,))._replace(about=(("sampling", "fixed"), ("ids", ids)))


def table(rows: Sequence[Sequence[int]]) -> Sampling:
    """Round r has the clients of row r, counted from 0; after the last row, the first one follows again.

    Args:
        rows: ids of each round, as a sequence of sequences or (rounds, places) integers. Shorter rows, and ids of -1,
            leave places of the cohort empty.

    Raises:
        ValueError: there is no row, no client is named, a client is named twice in a row, or an id is below -1.
    """
    if not_rows := [row for row in (rows if np.iterable(rows) else [rows]) if not np.iterable(row)]:
        raise ValueError(
            f"rows: {not_rows[0]!r} is not a row; give a sequence of ids for each round, such as [[0, 1], [2]]"
        )
    return _table(tuple(tuple(_id(f"rows[{r}]", i) for i in row if i != -1) for r, row in enumerate(rows)))


def _id(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not a client's number; give whole numbers from 0") from None


@cache
def _table(rows: tuple[tuple[int, ...], ...]) -> Sampling:
    if not any(rows):
        raise ValueError("rows name no client; give the ids of each round's participants")
    for r, row in enumerate(rows):
        if len(set(row)) < len(row) or min(row, default=0) < 0:
            raise ValueError(f"rows[{r}]={row} names a client twice, or none; give distinct ids >= 0")
    places, largest = max(map(len, rows)), max(map(max, filter(None, rows)))

    def n_places(n_clients: int) -> int:
        if largest >= n_clients:
            raise ValueError(
                f"client {largest} participates but there are {n_clients} clients; give ids below {n_clients}"
            )
        return places

    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        # Empty places are filled with clients that are not in the row, so that ids stay distinct.
        filled = np.empty((len(rows), n), np.int32)
        for filled_row, row in zip(filled, rows, strict=True):
            other_clients = (i for i in range(size.shape[0]) if i not in row)
            filled_row[:] = sorted([*row, *(next(other_clients) for _ in range(n - len(row)))])
        is_in_row = np.stack([np.isin(filled_row, row) for filled_row, row in zip(filled, rows, strict=True)])
        r = round % len(rows)
        return jnp.asarray(filled)[r], jnp.asarray(is_in_row)[r]

    once_in, separation = rests(rows)
    return Sampling(draw, n_places, (("sampling", "table"), ("rows", rows)), once_in=once_in, separation=separation)


def rests(rows: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The largest `Sampling.once_in` and `Sampling.separation` that a table promises, whose rows are repeated."""
    turns: dict[int, list[int]] = {}
    for r, row in enumerate(rows):
        for i in row:
            turns.setdefault(i, []).append(r)
    # A client may come for the (j + 1)-th time in round t if t >= once_in * j; after many rounds, j is its share of t.
    once_in = min(t // j for turn in turns.values() for j, t in enumerate([*turn[1:], len(rows)], 1))
    return once_in, min(int(np.diff([*turn, turn[0] + len(rows)]).min()) for turn in turns.values())


SAMPLINGS: dict[str, Callable[..., Sampling]] = {
    "uniform": uniform,
    "by_size": by_size,
    "power_of_choice": power_of_choice,
    "oort": oort,
    "poisson": poisson,
    "shuffled": shuffled,
    "least_recent": least_recent,
    "fixed": fixed,
    "table": table,
}
"""Name -> function that makes the sampling."""


@checked_kinds
def sampling_of(sampling: Sampling | None, participation: float) -> Sampling:
    """The sampling of a run: the given one, or `uniform` with the run's participation.

    Raises:
        ValueError: both are given, or ``participation`` is not in (0, 1].
    """
    if sampling is None:
        return uniform(participation)
    if participation != 1:
        name = dict(sampling.about).get("sampling", "one of your own")
        raise ValueError(f"participation={participation} beside sampling={name}; give it to the sampling instead")
    return sampling


def _about(name: str, participation: float) -> Description:
    return ("sampling", name), ("participation", participation)
