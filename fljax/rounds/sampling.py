"""Sampling: which clients participate in a round.

A `Sampling` is a value: `fljax.rounds.uniform`, `by_size`, `poisson`, `fixed` or `table`. Their draws depend only on
the run's key and the round, so every method has the same cohorts. Those of `fljax.rounds.by_loss` see the losses, and
those with a `SamplingMemory` what the server has seen of earlier rounds.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.placement import whole
from fljax.ranges import real, said
from fljax.rounds.draw_checks import check_draw
from fljax.rounds.memory import SamplingMemory
from fljax.rounds.timing import Timing
from fljax.shown import with_choices
from fljax.types import Description, Key

Losses = Callable[..., Array]
"""``(ids (m,), examples=None) -> (m,)`` mean training losses of these clients, with the models that they would be
tested with, on so many of their examples, drawn in each round; None: on all. They are inf for a client without a model,
NaN for one without examples, and -inf for one that is absent or not available, or whose id is -1."""


class Sampling(NamedTuple):
    """How the participants of a round are sampled; static, hashable."""

    draw: Callable[..., tuple[Array, Array]]
    """``(key, round (), size (clients,), n) -> (n,) distinct ids, and which of them participate``, bool; if
    ``by_loss``, of ``(key, round, size, n, loss)``. With a ``memory``, that is the last argument of all, and ``size``
    is 0 for clients that are absent or not available, which should not be drawn before others."""
    n_places: Callable[[int], int]  # number of clients -> places in a cohort: the shape of a round
    about: Description = ()  # name and choices
    timing: Timing | None = None  # how long rounds last; None: unknown
    ask: Callable[..., tuple[Array, Array]] | None = None
    """As ``draw``, but including sampled clients that do not come; None: all sampled clients come."""
    cut: Callable[[Array, Array], Array] | None = None
    """``(ids, active) -> active``: which of the present clients that did not drop out count; None: all of them."""
    effort: Callable[[Key, Array, Array], Array] | None = None
    """``(key, ids, round) -> (n,)`` share of its local work that each client does in a round, in (0, 1]; None: all."""
    by_loss: bool = False
    """Whether ``draw`` and ``ask`` take the function ``loss`` (`Losses`), by which they see the clients' losses."""
    memory: SamplingMemory | None = None  # what it keeps between rounds; None: nothing
    once_in: int | Callable[[int], int] = 1
    """b, or a function of the number of clients: a client participates in at most ceil(r / b) of the first r rounds,
    whoever is absent. Epsilon relies on it."""
    separation: int | Callable[[int], int] = 1
    """b, or a function of the number of clients: a client participates at most once in any b consecutive rounds,
    whoever is absent, so that ``once_in`` is at least b. Noise that is correlated over b rounds relies on it."""

    def __repr__(self) -> str:
        choices = dict(self.about)
        return with_choices(choices.pop("sampling", "Sampling"), choices)

    def of(self, n_clients: int) -> "Draw":
        """The sampling for a federation of ``n_clients`` clients.

        Raises:
            ValueError: the sampling names clients that the federation does not have, or has numbers for other clients;
                or a user's own sampling does not draw a cohort, or draws a client twice, in round 0, or its ``once_in``
                or ``separation`` is not a number of rounds.
        """
        n_places = self.n_places(n_clients)
        if self.timing is not None:
            self.timing.check(n_clients)
        if not getattr(self.draw, "__module__", "").startswith("fljax."):
            first_memory = None if self.memory is None else self.memory.init
            check_draw(self.draw, n_clients, n_places, self.by_loss, first_memory)
        lengths = {name: _n_rounds(name, getattr(self, name), n_clients) for name in ("once_in", "separation")}
        known: dict[str, Any] = {name: length for name, length in lengths.items() if callable(getattr(self, name))}
        return Draw(self._replace(**known) if known else self, n_places)

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
        elif about.get("sampling") == "shuffled":
            mean = n_clients / rounds_of_a_pass(about["participation"], n_clients)
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


def _n_rounds(name: str, value: Any, n_clients: int) -> int:
    length = value(n_clients) if callable(value) else value
    if not isinstance(length, int | np.integer) or length < 1:
        raise ValueError(f"{said(name, length)} is not a number of rounds; give a whole number of at least 1")
    return int(length)


def cohort_size(participation: float, n_clients: int) -> int:
    """``max(1, round(participation * n_clients))`` participants per round.

    Raises:
        ValueError: ``participation`` is not in (0, 1].
    """
    return max(1, round(share_of_clients(participation) * n_clients))


def rounds_of_a_pass(participation: float, n_clients: int) -> int:
    """The number of rounds in which `fljax.rounds.shuffled` samples every client once."""
    return -(-n_clients // cohort_size(participation, n_clients))


def share_of_clients(participation: float) -> float:
    """``participation``, unchanged.

    Raises:
        ValueError: it is not in (0, 1].
    """
    if not 0 < real("participation", participation) <= 1:
        of_many = f"; {participation:g} of n clients are {participation:g} / n" if participation > 1 else ""
        raise ValueError(
            f"participation={participation} is not a share of the clients; choose 0 < participation <= 1{of_many}"
        )
    return participation


def ids_by_size(key: Key, size: Array, n: int) -> Array:
    """(n,) ids of different clients in ascending order, one after another drawn with probability ~ n_i."""
    # The largest values of log n_i + Gumbel noise are such a sample (Yellott 1977).
    ticket = jnp.log(size.astype(jnp.float32)) + jax.random.gumbel(key, size.shape, jnp.float32)
    return jnp.sort(lax.top_k(whole(ticket), n)[1]).astype(jnp.int32)
