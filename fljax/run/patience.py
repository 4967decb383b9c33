"""Early stopping: a run ends when its tests have been no better for so many rounds."""

from collections.abc import Collection, Mapping

import numpy as np

from fljax.run.headline import VALIDATION, measures_of


def judged_by(metrics: Mapping[str, np.ndarray]) -> str:
    """The metric that says which round is best: the headline, on the validation split where that is tested too."""
    headline = measures_of(metrics).scores[0]
    return VALIDATION + headline if VALIDATION + headline in metrics else headline


def best_round(metrics: Mapping[str, np.ndarray]) -> int | None:
    """The round, counted from 0, that is best by `judged_by`, of equals the first; None: none was tested."""
    values = np.asarray(metrics[judged_by(metrics)])
    return int(np.nanargmax(values)) if (~np.isnan(values)).any() else None


def at_best_validation(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """(rounds,) the headline's test in the round that was, until then, best on the validation split; NaN before any."""
    headline = measures_of(metrics).scores[0]
    validated = np.nan_to_num(np.asarray(metrics[VALIDATION + headline], np.float64), nan=-np.inf)
    before = np.maximum.accumulate(np.append(-np.inf, validated))[:-1]
    at = np.maximum.accumulate(np.where(validated > before, np.arange(len(validated)), -1))
    return np.where(at < 0, np.nan, np.asarray(metrics[headline])[at])


def measures_by_validation(metrics: Collection[str]) -> list[str]:
    """What `at_best_validation` is called of a run with these metrics; none where it was not validated."""
    measures = measures_of(metrics)
    return [measures.by_validation] if VALIDATION + measures.scores[0] in metrics else []


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
            self.made += 1
            if value > self.best:  # False of NaN, which a round without a test has
                self.best, self.best_at = value, self.made

    def until(self, n_rounds: int) -> int:
        """The number of rounds after which the run ends if no test until then is better."""
        return min(-(-(self.best_at + self.rounds) // self.every) * self.every, n_rounds)
