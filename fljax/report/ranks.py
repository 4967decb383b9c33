"""Mean ranks of methods over several data settings, and a test of their differences.

As Demšar recommends (Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006): scores on different
data have different scales, ranks do not.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Ranked(NamedTuple):
    """The ranks of the methods that have a score in every data setting; 1 is the best."""

    mean: dict[str, float]  # method -> its mean rank; equal scores share the mean of their ranks
    p_value: float | None  # of Friedman's test; None with fewer than three methods or three settings
    critical_difference: float | None = None  # of two mean ranks, at the 5 % level (Nemenyi); None without the test


def rank_methods(scores: Mapping[str, Mapping[str, float]], sign: int) -> Ranked:
    """Ranks of methods within each data setting, and their means.

    Args:
        scores: data setting -> method -> its score; a method that lacks one, or has NaN, is not ranked.
        sign: 1 if higher is better, -1 if lower is.

    Raises:
        ValueError: there is no data setting, or ``sign`` is neither 1 nor -1.
    """
    from scipy import stats

    if not scores:
        raise ValueError("scores is empty; give the scores of at least one data setting")
    if sign not in (1, -1):
        raise ValueError(f"sign={sign!r} is not allowed; choose 1 if higher is better, -1 if lower is")
    settings = list(scores.values())
    methods = [name for name in settings[0] if all(np.isfinite(setting.get(name, np.nan)) for setting in settings)]
    if not methods:
        return Ranked({}, None)
    table = np.array([[setting[name] for name in methods] for setting in settings], np.float64)
    ranks = stats.rankdata(-sign * table, axis=1)
    can_test = len(methods) >= 3 and len(settings) >= 3 and not (ranks == ranks[:, :1]).all()
    p_value = float(stats.friedmanchisquare(*table.T).pvalue) if can_test else None
    critical_difference = _critical_difference(len(methods), len(settings)) if can_test else None
    return Ranked(dict(zip(methods, map(float, ranks.mean(axis=0)), strict=True)), p_value, critical_difference)


def _critical_difference(n_methods: int, n_settings: int) -> float:
    """Nemenyi's: mean ranks that are further apart differ at the 5 % level, whichever pair of all methods it is."""
    from scipy import stats

    quantile = float(stats.studentized_range.ppf(0.95, n_methods, np.inf)) / 2**0.5
    return quantile * (n_methods * (n_methods + 1) / (6 * n_settings)) ** 0.5
