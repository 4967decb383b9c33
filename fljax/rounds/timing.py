"""The duration of a run's rounds, in simulated seconds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Timing(NamedTuple):
    """The end of a round; static, hashable. A round lasts until the slowest client that counts has finished."""

    seconds: tuple[float, ...] = ()  # (clients,) of each client's round
    deadline: float | None = None  # in seconds: a round with a missing client lasts until then
    count: int | None = None  # number of participants that is enough; None: all sampled clients
    ends: tuple[float, ...] = ()  # (rounds,) ends of rounds, whoever participates; (): computed from ``seconds``

    def check(self, n_clients: int) -> None:
        """Raises ValueError if rounds of ``n_clients`` clients have no end, or there is not one number per client."""
        if not self.ends and len(self.seconds) != n_clients:
            numbers = f"{len(self.seconds)} seconds of clients' rounds, but there are {n_clients} clients"
            raise ValueError(f"the timing has {numbers}; give one number per client, or the ends of rounds")

    def of_rounds(self, first: int, metrics: Mapping[str, Any]) -> np.ndarray:
        """(rounds,) seconds of rounds from ``first`` on, computed from their ``ids``, ``active`` and ``n_missing``.

        Without ``n_missing``, clients that are not active are missing.
        """
        ids, active = np.asarray(metrics["ids"]), np.asarray(metrics["active"])
        if self.ends:
            lengths = np.diff(self.ends, prepend=0.0)
            return lengths[(first + np.arange(len(ids))) % len(lengths)]
        durations = np.where(active, np.asarray(self.seconds)[ids], 0.0).max(axis=1)
        if self.deadline is None:
            return durations
        n_active = active.sum(axis=1)
        is_complete = np.asarray(metrics.get("n_missing", ids.shape[1] - n_active)) == 0
        ends_early = is_complete if self.count is None else is_complete | (n_active >= self.count)
        return np.where(ends_early, durations, self.deadline)
