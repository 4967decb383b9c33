"""The best round of a run: by its tests, on the validation split where that is tested."""

from collections.abc import Collection, Mapping

import numpy as np

from fljax.metrics.headline import VALIDATION, measures_of


def judged_by(metrics: Mapping[str, np.ndarray]) -> str:
    """The metric that decides which round is best: the headline, on the validation split if that is tested."""
    headline = measures_of(metrics).headline
    return VALIDATION + headline if VALIDATION + headline in metrics else headline


def best_round(metrics: Mapping[str, np.ndarray]) -> int | None:
    """The round, counted from 0, that is best by `judged_by`, the first of equal ones; None if none was tested."""
    values = np.asarray(metrics[judged_by(metrics)])
    return int(np.nanargmax(values)) if (~np.isnan(values)).any() else None


def at_best_validation(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """(rounds,) the headline's test value in the best round so far by validation; NaN before the first test."""
    headline = measures_of(metrics).headline
    validated = np.nan_to_num(np.asarray(metrics[VALIDATION + headline], np.float64), nan=-np.inf)
    best_before = np.maximum.accumulate(np.append(-np.inf, validated))[:-1]
    best_rounds = np.maximum.accumulate(np.where(validated > best_before, np.arange(len(validated)), -1))
    return np.where(best_rounds < 0, np.nan, np.asarray(metrics[headline])[best_rounds])


def measures_by_validation(metrics: Collection[str]) -> list[str]:
    """The name of `at_best_validation` in a run with these metrics; [] if it has no validation tests."""
    measures = measures_of(metrics)
    return [measures.by_validation] if VALIDATION + measures.headline in metrics else []
