"""Early stopping: a run ends when its tests have been no better for so many rounds, or when its user says so."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np

from fljax.run import hosts
from fljax.run.headline import VALIDATION, measures_of


def judged_by(metrics: Mapping[str, np.ndarray]) -> str:
    """The metric that says which round is best: the headline, on the validation split where that is tested too."""
    headline = measures_of(metrics).headline
    return VALIDATION + headline if VALIDATION + headline in metrics else headline


def best_round(metrics: Mapping[str, np.ndarray]) -> int | None:
    """The round, counted from 0, that is best by `judged_by`, of equals the first; None: none was tested."""
    values = np.asarray(metrics[judged_by(metrics)])
    return int(np.nanargmax(values)) if (~np.isnan(values)).any() else None


def at_best_validation(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """(rounds,) the headline's test in the round that was, until then, best on the validation split; NaN before any."""
    headline = measures_of(metrics).headline
    validated = np.nan_to_num(np.asarray(metrics[VALIDATION + headline], np.float64), nan=-np.inf)
    before = np.maximum.accumulate(np.append(-np.inf, validated))[:-1]
    at = np.maximum.accumulate(np.where(validated > before, np.arange(len(validated)), -1))
    return np.where(at < 0, np.nan, np.asarray(metrics[headline])[at])


def measures_by_validation(metrics: Collection[str]) -> list[str]:
    """What `at_best_validation` is called of a run with these metrics; none where it was not validated."""
    measures = measures_of(metrics)
    return [measures.by_validation] if VALIDATION + measures.headline in metrics else []


class Ender(Protocol):
    """What may end a run before its last round."""

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of further rounds."""
        ...

    def until(self, n_rounds: int) -> int:
        """The number of rounds that can be made before it is asked again; those that were made: the run ends."""
        ...


class Patience:
    """How far a run goes: to the first test at least ``rounds`` rounds after the best one so far.

    It follows from the rounds' metrics alone: neither the lengths of chunks nor a resume changes where a run ends.
    """

    def __init__(self, rounds: int, evaluate_every: int) -> None:
        self.rounds, self.every = rounds, evaluate_every
        self.made, self.best, self.best_at = 0, -np.inf, 0  # rounds made; the best test, and rounds made by then

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of further rounds."""
        for value in metrics[judged_by(metrics)]:
            self.took_one(value)

    def took_one(self, value: float) -> None:
        """Takes what a further round is judged by; NaN where it was not tested."""
        self.made += 1
        if value > self.best:  # False of NaN
            self.best, self.best_at = value, self.made

    def until(self, n_rounds: int) -> int:
        """The number of rounds after which the run ends if no test until then is better."""
        return min(-(-(self.best_at + self.rounds) // self.every) * self.every, n_rounds)


def ends_after(metrics: Mapping[str, np.ndarray], rounds: int, evaluate_every: int) -> int | None:
    """The number of rounds after which `Patience` ends a run with these metrics; None: it does not, so far."""
    waits = Patience(rounds, evaluate_every)
    for value in np.asarray(metrics[judged_by(metrics)]):
        waits.took_one(value)
        if waits.until(waits.made + evaluate_every) <= waits.made:
            return waits.made
    return None


Stop = Callable[[int, dict[str, Any]], bool]
"""``stop(round, metrics)``: the number of rounds made, and the metrics of the last of them, which was tested."""


class Stopping:
    """How far a run goes that is ended by ``stop``: to the first test of which it says True.

    It is asked after every test, in order, and after a resume again of those before: where a run ends follows from the
    metrics, whatever ``stop`` remembers of them.
    """

    def __init__(self, stop: Stop, evaluate_every: int) -> None:
        self.stop, self.every = stop, evaluate_every
        self.made, self.ended = 0, False

    def took(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of further rounds.

        Raises:
            ValueError: ``stop`` gives neither True nor False.
        """
        for i in range(len(metrics["ids"])):
            if self.ended:  # a folder may have more rounds
                return
            self.made += 1
            if self.made % self.every == 0:
                answer = self.stop(self.made, {name: value[i] for name, value in metrics.items()})
                if not isinstance(answer, bool | np.bool):
                    raise ValueError(
                        f"stop gave {answer!r} after round {self.made}; give True to end the run, else False"
                    )
                (ended,) = hosts.agreed(int(answer))
                self.ended = bool(ended)

    def until(self, n_rounds: int) -> int:
        """The round of the next test, or that of the test after which the run ends."""
        return self.made if self.ended else min((self.made // self.every + 1) * self.every, n_rounds)
