"""The duration of a run's rounds, in simulated seconds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

OF_SECONDS = ("ids", "active", "n_missing", "candidates")
"""The metrics from which the seconds of rounds are computed."""


class Timing(NamedTuple):
    """The end of a round; static, hashable. A round lasts until the slowest client that counts has finished.

    If clients are asked for their loss, the round begins when the last of them has answered.
    """

    seconds: tuple[float, ...] = ()  # (clients,) of each client's round
    deadline: float | None = None  # in seconds: a round with a missing client lasts until then
    count: int | None = None  # number of participants that is enough; None: all sampled clients
    ends: tuple[float, ...] = ()  # (rounds,) ends of rounds, whoever participates; (): computed from ``seconds``
    asking: tuple[float, ...] = ()  # (clients,) until a client that is asked has answered; (): asking takes no time

    def check(self, n_clients: int) -> None:
        """Raises ValueError if rounds of ``n_clients`` clients have no end, or there is not one number per client."""
        if not self.ends and len(self.seconds) != n_clients:
            numbers = f"{len(self.seconds)} seconds of clients' rounds, but there are {n_clients} clients"
            raise ValueError(f"the timing has {numbers}; give one number per client, or the ends of rounds")

    def of_rounds(self, first: int, metrics: Mapping[str, Any]) -> np.ndarray:
        """(rounds,) seconds of rounds from ``first`` on, computed from `OF_SECONDS`, as far as a run has them.

        Without ``n_missing``, clients that are not active are missing.
        """
        ids, active = np.asarray(metrics["ids"]), np.asarray(metrics["active"])
        if self.ends:
            lengths = np.diff(self.ends, prepend=0.0)
            return lengths[(first + np.arange(len(ids))) % len(lengths)]
        durations, asking = np.where(active, np.asarray(self.seconds)[ids], 0.0).max(axis=1), np.zeros(len(ids))
        if self.asking and "candidates" in metrics:
            asked = np.asarray(metrics["candidates"])
            asking = np.where(asked >= 0, np.asarray(self.asking)[asked], 0.0).max(axis=1)
        if self.deadline is None:
            return asking + durations
        n_active = active.sum(axis=1)
        is_complete = np.asarray(metrics.get("n_missing", ids.shape[1] - n_active)) == 0
        ends_early = is_complete if self.count is None else is_complete | (n_active >= self.count)
        return asking + np.where(ends_early, durations, self.deadline)
