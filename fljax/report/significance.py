"""Comparison of methods over seeds: means, standard deviations, paired differences and their significance.

All methods of a seed have the same federation, cohorts and initial model, so the scores of a seed are paired: the
difference between two methods varies far less than either score.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fljax.ranges import real


class Interval(NamedTuple):
    """A mean and its Student confidence interval; the ends are NaN with fewer than two values, and if all are equal:
    these do not show how far others would vary. With a value that is NaN, all are NaN."""

    mean: float
    low: float
    high: float

    def within(self, least: float, greatest: float) -> "Interval":
        """The interval without its parts beyond the values that a mean can have: with few values Student's interval
        exceeds them by far. If its own mean is beyond them (a loss of the user's may be negative), it is unchanged."""
        if not least <= self.mean <= greatest:
            return self
        low, high = (end if math.isnan(end) else min(max(end, least), greatest) for end in self[1:])
        return Interval(self.mean, low, high)


class Compared(NamedTuple):
    """One method over the seeds, and its difference to the baseline."""

    algorithm: str
    n_seeds: int  # seeds with finite scores
    mean: float
    deviation: float  # standard deviation of the scores, n - 1 in the denominator; NaN with one seed
    interval: Interval
    difference: Interval | None  # paired, this method minus the baseline; None for the baseline, and without pairs
    p_value: float | None  # of the paired t-test, two-sided; None with one pair, or if all differences are equal
    p_holm: float | None  # the same, with Holm's correction for the number of tests
    p_wilcoxon: float | None  # of Wilcoxon's signed-rank test, which needs six seeds to get below 0.05
    n_pairs: int = 0  # seeds of the difference


def compare_scores(
    scores: Mapping[str, Sequence[float] | np.ndarray],
    baseline: str | None = None,
    confidence: float = 0.95,
    apart: Collection[str] = (),
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> list[Compared]:
    """Each method's scores, and its paired difference to the ``baseline``.

    Args:
        scores: method -> (seeds,) scores, in the same order of seeds; NaN if a run has none.
        baseline: the method that the others are compared with; None: the first.
        confidence: of the intervals, in (0, 1).
        apart: methods whose scores are not paired with those of the ``baseline``, for example because they have other
            clients: they get no difference.
        limits: the least and the greatest possible score, see `fljax.metrics.headline.limits`; intervals end there, and
            those of differences at the greatest possible difference.

    Raises:
        ValueError: there is no method or no such baseline, scores differ in length, or ``confidence`` is out of range.
    """
    _check_confidence(confidence)
    table = {name: np.asarray(values, np.float64) for name, values in scores.items()}
    if not table:
        raise ValueError("scores is empty; give the scores of at least one method")
    for name, values in table.items():
        if values.ndim != 1:
            raise ValueError(f"scores of {name!r} have shape {values.shape}; give (seeds,), one score per seed")
    if len({len(values) for values in table.values()}) > 1:
        raise ValueError(f"scores have {[len(values) for values in table.values()]} seeds; give each method the same")
    baseline_name = next(iter(table)) if baseline is None else baseline
    if baseline_name not in table:
        raise ValueError(f"baseline={baseline_name!r} is not a method; choose one of {', '.join(table)}")
    rows = [
        _against(name, values, None if name == baseline_name or name in apart else table[baseline_name], confidence)
        for name, values in table.items()
    ]
    corrected = holm([row.p_value for row in rows])
    return [_within(row, *limits)._replace(p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _within(row: Compared, least: float, greatest: float) -> Compared:
    most_apart = greatest - least
    return row._replace(
        interval=row.interval.within(least, greatest),
        difference=row.difference and row.difference.within(-most_apart, most_apart),
    )


def _against(name: str, values: np.ndarray, baseline: np.ndarray | None, confidence: float) -> Compared:
    finite = values[np.isfinite(values)]
    mean = float(finite.mean()) if len(finite) else float("nan")
    deviation = float(finite.std(ddof=1)) if len(finite) > 1 else float("nan")
    interval = interval_of(finite, confidence)
    pairs = np.zeros(len(values), bool) if baseline is None else np.isfinite(values) & np.isfinite(baseline)
    if baseline is None or not pairs.any():
        return Compared(name, len(finite), mean, deviation, interval, None, None, None, None)
    ours, theirs = values[pairs], baseline[pairs]
    step = max(_step(ours), _step(theirs), 1e-36)
    rounded = np.rint((ours - theirs) / step) * step
    if not np.ptp(rounded) > step:
        alike = Interval(float((ours - theirs).mean()), float("nan"), float("nan"))
        return Compared(name, len(finite), mean, deviation, interval, alike, None, None, None, len(ours))
    from scipy import stats  # here, as its import takes as long as a small run

    difference = interval_of(ours - theirs, confidence)
    tests = float(stats.ttest_rel(ours, theirs).pvalue), None, float(stats.wilcoxon(rounded).pvalue)
    return Compared(name, len(finite), mean, deviation, interval, difference, *tests, len(ours))


def _step(values: np.ndarray) -> float:
    """A few steps of float32: scores are known up to these, and closer ones count as equal."""
    return 4 * float(np.finfo(np.float32).eps) * float(np.abs(values).max())


def interval_of(values: np.ndarray, confidence: float = 0.95) -> Interval:
    """The mean of independent values and its Student confidence interval, see `Interval`.

    Raises:
        ValueError: ``confidence`` is not in (0, 1).
    """
    _check_confidence(confidence)
    if not np.isfinite(values).all():
        return Interval(float(values.mean()), float("nan"), float("nan"))
    if len(values) < 2 or not np.ptp(values) > _step(values):
        mean = float(values[0]) if len(values) else float("nan")
        return Interval(mean, float("nan"), float("nan"))
    from scipy.special import stdtrit  # here, as its import takes as long as a small run

    mean, standard_error = float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5
    half_width = float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * standard_error
    return Interval(mean, mean - half_width, mean + half_width)


def _check_confidence(confidence: float) -> None:
    if not 0 < real("confidence", confidence) < 1:
        raise ValueError(f"confidence={confidence} is out of its range; choose 0 < confidence < 1, such as 0.95")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of several p-values: it controls the probability of one or more false findings among the tests.

    None, for nothing tested, stays None and does not count.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(tested):
        highest = max(highest, min(1.0, p * (len(tested) - rank)))
        corrected[i] = highest
    return corrected
