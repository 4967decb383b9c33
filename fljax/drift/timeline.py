"""The description of a drift on a federation: whose data each client has in each stage, and in which version."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fljax.types import Description, Federation

Version = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""``(x, y) -> (x, y)``: examples as they are after a change."""


class Timeline(NamedTuple):
    """A drift on one federation; every array has one row per stage, and row 0 is the initial state."""

    owner: np.ndarray  # (stages, clients) int: whose data each client has
    version: np.ndarray  # (stages, clients) int: 0: unchanged, v: changed by ``versions[v - 1]``
    there: np.ndarray  # (stages, clients) bool: clients that can participate and are tested
    versions: tuple[Version, ...] = ()

    @staticmethod
    def of(n_stages: int, n_clients: int) -> "Timeline":
        """Nothing changes."""
        shape = (n_stages, n_clients)
        owner = np.broadcast_to(np.arange(n_clients), shape)
        return Timeline(owner.copy(), np.zeros(shape, int), np.ones(shape, bool))


class Drift(NamedTuple):
    """How a federation changes, and when; static."""

    name: str
    timeline: Callable[[Federation], Timeline] | None = None  # None: it does not change
    start: int = 0  # the first round after the first change
    changes: int = 0
    every: int = 1  # rounds between two changes
    about: Description = ()

    @property
    def begins(self) -> tuple[int, ...]:
        """The first round of every stage."""
        return 0, *(self.start + self.every * c for c in range(self.changes))
