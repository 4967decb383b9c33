"""Early stopping: a run ends when its tests have not improved for a number of rounds, or when the user's function says
so."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from fljax.devices import hosts
from fljax.metrics.best_round import judged_by


class Ender(Protocol):
    """An object that may end a run before its last round."""

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Receives the metrics of further rounds."""
        ...

    def until(self, n_rounds: int) -> int:
        """The round up to which the run may continue before it asks again; the present round ends the run."""
        ...


class Patience:
    """Ends a run at the first test at least ``rounds`` rounds after the best one so far.

    It depends only on the rounds' metrics, so neither the lengths of chunks nor a resume changes where a run ends.
    """

    def __init__(self, rounds: int, evaluate_every: int) -> None:
        self.rounds, self.every = rounds, evaluate_every
        self.made, self.best, self.best_at = 0, -np.inf, 0  # rounds so far; the best test, and its round

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Receives the metrics of further rounds."""
        for value in metrics[judged_by(metrics)]:
            self.took_one(value)

    def took_one(self, value: float) -> None:
        """Receives the judging metric of one further round; NaN if it was not tested."""
        self.made += 1
        if value > self.best:  # False of NaN
            self.best, self.best_at = value, self.made

    def until(self, n_rounds: int) -> int:
        """The number of rounds after which the run ends if no test until then is better."""
        return min(-(-(self.best_at + self.rounds) // self.every) * self.every, n_rounds)


def ends_after(metrics: Mapping[str, np.ndarray], rounds: int, evaluate_every: int) -> int | None:
    """The number of rounds after which `Patience` ends a run with these metrics; None if it does not so far."""
    patience = Patience(rounds, evaluate_every)
    for value in np.asarray(metrics[judged_by(metrics)]):
        patience.took_one(value)
        if patience.until(patience.made + evaluate_every) <= patience.made:
            return patience.made
    return None


Stop = Callable[[int, dict[str, Any]], bool]
"""``stop(round, metrics)``: the number of rounds so far, and the metrics of the last of them, which was tested."""


class Stopping:
    """Ends a run at the first test for which ``stop`` returns True.

    ``stop`` is called after every test, in order, and after a resume again for the earlier tests, so that its memory of
    them is restored and the run ends at the same test.
    """

    def __init__(self, stop: Stop, evaluate_every: int) -> None:
        self.stop, self.every = stop, evaluate_every
        self.made, self.ended = 0, False

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Receives the metrics of further rounds.

        Raises:
            ValueError: ``stop`` returns neither True nor False.
        """
        for i in range(len(metrics["ids"])):
            if self.ended:  # a folder may have more rounds
                return
            self.made += 1
            if self.made % self.every == 0:
                answer = self.stop(self.made, {name: value[i] for name, value in metrics.items()})
                if not isinstance(answer, bool | np.bool):
                    raise ValueError(
                        f"stop returned {answer!r} after round {self.made}; return True to end the run, else False"
                    )
                (ended,) = hosts.agreed(int(answer))
                self.ended = bool(ended)

    def until(self, n_rounds: int) -> int:
        """The round of the next test, or of the test that ended the run."""
        return self.made if self.ended else min((self.made // self.every + 1) * self.every, n_rounds)
