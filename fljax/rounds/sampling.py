"""Sampling: which clients participate in a round.

A `Sampling` is a value: `uniform`, `by_size`, `poisson`, `fixed` or `table`. Their draws depend only on the run's key
and the round, so every method has the same cohorts. Those of `fljax.rounds.by_loss` see the clients' losses.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.argument_kinds import checked_kinds
from fljax.placement import whole
from fljax.ranges import real
from fljax.rounds.draw_checks import check_draw
from fljax.rounds.timing import Timing
from fljax.types import Description, Key

Losses = Callable[[Array], Array]
"""``(ids (m,)) -> (m,)`` mean training losses of these clients, with the models that they would be tested with."""


class Sampling(NamedTuple):
    """How the participants of a round are sampled; static, hashable."""

    draw: Callable[..., tuple[Array, Array]]
    """``(key, round (), size (clients,), n) -> (n,) distinct ids, and which of them participate``, bool; if
    ``by_loss``, of ``(key, round, size, n, loss)``."""
    n_places: Callable[[int], int]  # number of clients -> places in a cohort: the shape of a round
    about: Description = ()  # name and choices
    timing: Timing | None = None  # how long rounds last; None: unknown
    ask: Callable[..., tuple[Array, Array]] | None = None
    """As ``draw``, but including sampled clients that do not come; None: all sampled clients come."""
    cut: Callable[[Array, Array], Array] | None = None
    """``(ids, active) -> active``: which of the present clients that did not drop out count; None: all of them."""
    effort: Callable[[Key, Array], Array] | None = None
    """``(key, ids) -> (n,)`` share of its local work that each client does in a round, in (0, 1]; None: all of it."""
    by_loss: bool = False
    """Whether ``draw`` and ``ask`` take the function ``loss`` (`Losses`), by which they see the clients' losses."""

    def of(self, n_clients: int) -> "Draw":
        """The sampling for a federation of ``n_clients`` clients.

        Raises:
            ValueError: the sampling names clients that the federation does not have, or has numbers for other clients;
                or a user's own sampling does not draw a cohort, or draws a client twice, in round 0.
        """
        n_places = self.n_places(n_clients)
        if self.timing is not None:
            self.timing.check(n_clients)
        if not getattr(self.draw, "__module__", "").startswith("fljax."):
            check_draw(self.draw, n_clients, n_places, self.by_loss)
        return Draw(self, n_places)

    @property
    def is_independent(self) -> bool:
        """Whether clients participate independently of each other: Poisson sampling without limits on the cohort."""
        about = dict(self.about)
        return about.get("sampling") == "poisson" and about.keys() <= _KEEP_INDEPENDENT

    def expected(self, n_clients: int, dropout: Any = None) -> Any:
        """Mean number of participants per round, if each drops out with probability ``dropout``; None: all places.

        With a deadline or probabilities of availability, it assumes that all clients are sampled equally often.
        """
        about = dict(self.about)
        places = mean = float(self.n_places(n_clients))
        if about.get("sampling") == "poisson":
            mean = about["participation"] * n_clients
        elif about.get("sampling") == "table":
            mean = float(np.mean([len(row) for row in about["rows"]]))
        if "deadline" in about:
            mean *= float(np.mean(np.asarray(about["seconds"]) <= about["deadline"]))
        mean *= float(np.mean(about.get("available", 1.0)))
        if dropout is not None:
            return jnp.minimum(mean * (1 - jnp.asarray(dropout, jnp.float32)), about.get("first", math.inf))
        mean = min(mean, about.get("first", mean))
        return None if mean == places else mean


EFFORT = ("stragglers", "least_effort", "whole_epochs", "effort")
"""Names in a sampling's description that concern partial work, see `fljax.rounds.effort`."""

_KEEP_INDEPENDENT = {"sampling", "participation", "deadline", "seconds", "available", *EFFORT}
"""Names that the description of a sampling with independent participants may have."""


class Draw(NamedTuple):
    """A sampling and the number of places in its cohorts, for which a program is compiled."""

    sampling: Sampling
    size: int


def cohort_size(participation: float, n_clients: int) -> int:
    """``max(1, round(participation * n_clients))`` participants per round.

    Raises:
        ValueError: ``participation`` is not in (0, 1].
    """
    return max(1, round(share_of_clients(participation) * n_clients))


def share_of_clients(participation: float) -> float:
    """``participation``, unchanged.

    Raises:
        ValueError: it is not in (0, 1].
    """
    if not 0 < real("participation", participation) <= 1:
        raise ValueError(f"participation={participation} is not a share of the clients; choose 0 < participation <= 1")
    return participation


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


def ids_by_size(key: Key, size: Array, n: int) -> Array:
    """(n,) ids of different clients in ascending order, one after another drawn with probability ~ n_i."""
    # The largest values of log n_i + Gumbel noise are such a sample (Yellott 1977).
    ticket = jnp.log(size.astype(jnp.float32)) + jax.random.gumbel(key, size.shape, jnp.float32)
    return jnp.sort(lax.top_k(whole(ticket), n)[1]).astype(jnp.int32)


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

    return Sampling(draw, n_places, (("sampling", "table"), ("rows", rows)))


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
