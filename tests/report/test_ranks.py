"""Mean ranks over data settings, against their definition and Friedman's statistic written out."""

import numpy as np
import pytest
from scipy import stats

from fljax.report.ranks import rank_methods


def scores_of(table, methods="abcdef"):
    return {f"data {i}": dict(zip(methods, row, strict=False)) for i, row in enumerate(table)}


def by_counting(row, sign):
    """Rank of each score: 1 and how many are better, and half of those that are equal."""
    n_better = (sign * row[None, :] > sign * row[:, None]).sum(axis=1)
    return 1 + n_better + ((row[None, :] == row[:, None]).sum(axis=1) - 1) / 2


@pytest.mark.parametrize("sign", [1, -1])
def test_ranks_are_counted_and_the_test_is_friedmans(sign):
    rng = np.random.default_rng(0)
    for ties in (False, True):
        table = rng.integers(0, 4, (7, 5)).astype(float) if ties else rng.random((7, 5))
        ranked = rank_methods(scores_of(table), sign)
        ranks = np.array([by_counting(row, sign) for row in table])
        np.testing.assert_allclose([ranked.mean[name] for name in "abcde"], ranks.mean(axis=0))
        n, k = ranks.shape
        spread = ((ranks - (k + 1) / 2) ** 2).sum() / (n * (k - 1))  # (k^2 + k) / 12 without ties
        statistic = n * ((ranks.mean(axis=0) - (k + 1) / 2) ** 2).sum() / spread
        assert ranked.p_value == pytest.approx(stats.chi2.sf(statistic, k - 1))


@pytest.mark.parametrize(("k", "quantile"), [(3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_nemenyis(k, quantile):
    """Table 5 of Demšar's paper, and its example: four classifiers on 14 data sets, 1.25."""
    ranked = rank_methods(scores_of(np.random.default_rng(0).random((14, k)), "abcdefghij"), 1)
    assert ranked.critical_difference == pytest.approx(quantile * np.sqrt(k * (k + 1) / (6 * 14)), rel=1e-3)
    assert k != 4 or round(ranked.critical_difference, 2) == 1.25


def test_only_methods_with_a_score_everywhere_are_ranked():
    scores = scores_of([[0.3, 0.2, 0.9, 0.5], [0.1, 0.4, np.nan, 0.2], [0.5, 0.1, 0.7, 0.3]])
    del scores["data 0"]["d"]
    ranked = rank_methods(scores, 1)
    assert ranked.mean == {"a": pytest.approx(4 / 3), "b": pytest.approx(5 / 3)}
    assert ranked.p_value is None  # of two methods there is no such test
    assert rank_methods(scores_of([[0.3, 0.2, 0.1]] * 2), 1).p_value is None  # nor of two data settings
    assert rank_methods(scores_of([[0.3] * 3] * 3), 1).p_value is None  # nor of equals
    assert rank_methods({"x": {"a": np.nan}}, 1) == ({}, None, None)


@pytest.mark.parametrize(("scores", "sign", "message"), [({}, 1, "scores is empty"), ({"x": {"a": 1.0}}, 0, "sign=0")])
def test_what_cannot_be_ranked_is_said(scores, sign, message):
    with pytest.raises(ValueError, match=message):
        rank_methods(scores, sign)
