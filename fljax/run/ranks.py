"""Methods over several data settings: their mean ranks, and whether these differ by more than chance.

As Demšar recommends (Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006): scores of different
data are not of one scale, ranks are.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Ranked(NamedTuple):
    """Methods that have a score in every data setting, by their ranks there: 1 is the best."""

    mean: dict[str, float]  # method -> its mean rank; equal scores share the mean of their ranks
    p_value: float | None  # of Friedman's test; None with fewer than three methods or three settings


def rank_methods(scores: Mapping[str, Mapping[str, float]], sign: int) -> Ranked:
    """Ranks of methods within each data setting, and their means.

    Args:
        scores: data setting -> method -> its score; a method that lacks one, or has NaN, is not ranked.
        sign: 1 where more is better, -1 where less is.

    Raises:
        ValueError: no data setting, or another sign.
    """
    from scipy import stats

    if not scores:
        raise ValueError("scores are empty; give those of a data setting at least")
    if sign not in (1, -1):
        raise ValueError(f"sign={sign!r} is neither; choose 1 where more is better, -1 where less is")
    settings = list(scores.values())
    methods = [name for name in settings[0] if all(np.isfinite(one.get(name, np.nan)) for one in settings)]
    if not methods:
        return Ranked({}, None)
    table = np.array([[one[name] for name in methods] for one in settings], np.float64)
    ranks = stats.rankdata(-sign * table, axis=1)
    enough = len(methods) >= 3 and len(settings) >= 3 and not (ranks == ranks[:, :1]).all()
    p_value = float(stats.friedmanchisquare(*table.T).pvalue) if enough else None
    return Ranked(dict(zip(methods, map(float, ranks.mean(axis=0)), strict=True)), p_value)
