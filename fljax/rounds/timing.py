"""How long the rounds of a run last, in simulated seconds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Timing(NamedTuple):
    """When a round is over; static, hashable. A round lasts until the slowest client that counts is done."""

    seconds: tuple[float, ...] = ()  # (clients,) of each client's round
    deadline: float | None = None  # in seconds: a round in which somebody is missing lasts until then
    count: int | None = None  # participants that are enough; None: all that were asked
    ends: tuple[float, ...] = ()  # (rounds,) at which rounds end whoever takes part; (): it follows from ``seconds``

    def check(self, n_clients: int) -> None:
        """Raises ValueError where rounds of so many clients would have no end, or not every client its seconds."""
        if not self.ends and len(self.seconds) != n_clients:
            given = f"{len(self.seconds)} seconds, of a client's round each, and there are {n_clients} clients"
            raise ValueError(f"the timing has {given}; give a number for each, or the ends of rounds")

    def of_rounds(self, first: int, metrics: Mapping[str, Any]) -> np.ndarray:
        """(rounds,) seconds of the round ``first`` and those after it, of their ``ids``, ``active`` and ``n_missing``.

        Without ``n_missing`` whoever is not active is missing.
        """
        ids, active = np.asarray(metrics["ids"]), np.asarray(metrics["active"])
        if self.ends:
            lengths = np.diff(self.ends, prepend=0.0)
            return lengths[(first + np.arange(len(ids))) % len(lengths)]
        taken = np.where(active, np.asarray(self.seconds)[ids], 0.0).max(axis=1)
        if self.deadline is None:
            return taken
        n_there = active.sum(axis=1)
        complete = np.asarray(metrics.get("n_missing", ids.shape[1] - n_there)) == 0
        enough = complete if self.count is None else complete | (n_there >= self.count)
        return np.where(enough, taken, self.deadline)
