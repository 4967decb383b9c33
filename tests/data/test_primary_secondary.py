"""DC-PFL's primary and secondary classes, and its bands of heterogeneity."""

import numpy as np
import pytest
from scipy import stats

from fljax.data import partition
from fljax.data.divergence import mean_kld, symmetric_kld
from fljax.data.partition.dcpfl import _counts, draw_shares, share_table
from tests.slow import slow_rows

from .counting import histograms


def test_primary_secondary_on_the_papers_numbers(make_examples):
    federation = partition.primary_secondary(*make_examples(60_000, 10_000), 50, seed=0)
    np.testing.assert_array_equal(federation.train.size, 1200)
    np.testing.assert_array_equal(federation.test.size, 240)
    share = np.sort(histograms(federation)[0] / 1200, axis=1)[:, ::-1]
    assert np.all((share[:, 0] >= 0.398) & (share[:, 0] <= 0.602))
    assert np.all((share[:, 1] >= 0.198) & (share[:, 1] <= 0.402))
    assert np.ptp(share[:, 2:], axis=1).max() <= 1 / 1200 + 1e-9


def test_shares_are_one_pair_for_all_or_one_for_each(make_examples):
    data = make_examples(60_000, 10_000)
    pair_for_all, pair_for_each = (
        np.sort(histograms(partition.primary_secondary(*data, 50, seed=1, shares=shares))[0], axis=1)[:, ::-1]
        for shares in ("generation", "client")
    )
    # The first two columns are what the largest classes have; rest images are spread in whole numbers.
    assert np.ptp(pair_for_all[:, :2], axis=0).max() == 0
    assert np.ptp(pair_for_each[:, :2], axis=0).min() > 0.1 * 1200
    with pytest.raises(ValueError, match="shares='both': give generation or client"):
        partition.primary_secondary(*data, 50, shares="both")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("band", "low", "high"), [("mid", 1 / 3, 2 / 3), *slow_rows(("low", 0, 1 / 3), ("high", 2 / 3, 1))]
)
def test_bands_are_equal_thirds_of_a_hundred_draws(make_examples, band, low, high):
    """A federation's table is one of the 100, and lies in its third of their range; all of the third is in use."""
    data, positions = make_examples(5000, 1000), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tables = np.stack([draw_shares(rng, 12, 10) for _ in range(100)])
        spread = np.array([mean_divergence(table) for table in tables])
        counts = histograms(partition.primary_secondary(*data, 12, seed=seed, band=band, examples=400))[0]
        (row,) = np.flatnonzero((np.abs(tables * 400 - counts) < 1).all(axis=(1, 2)))  # largest remainders: within one
        positions.append((spread[row] - spread.min()) / np.ptp(spread))
    assert low <= min(positions) <= max(positions) <= high
    if band != "low":  # the ends of the range are rare, so only the inner edges are sure to be reached
        assert min(positions) < low + 0.05
    if band != "high":
        assert max(positions) > high - 0.05


def test_what_does_not_divide_goes_to_the_largest_remainders():
    share = np.array([[0.59, 0.3, 0.11], [0.45, 0.28, 0.27]])
    np.testing.assert_array_equal(_counts(share, 10), [[6, 3, 1], [4, 3, 3]])


def test_any_band_is_the_first_draw(make_examples):
    federation = partition.primary_secondary(*make_examples(5000, 1000), 12, seed=3, band="any", examples=400)
    table = draw_shares(np.random.default_rng(3), 12, 10)
    assert np.abs(table * 400 - histograms(federation)[0]).max() < 1


def mean_divergence(share, floor=1e-4):
    """The mean of (KL(P_i|P_j) + KL(P_j|P_i)) / 2 over pairs i < j, as DC-PFL writes it, floor on every share."""
    p = (share + floor) / (1 + floor * share.shape[1])
    i, j = np.triu_indices(len(p), 1)
    kl = lambda a, b: (a * np.log(a / b)).sum(axis=1)  # noqa: E731
    return (kl(p[i], p[j]) + kl(p[j], p[i])).mean() / 2


def generations(shares, n=100, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([mean_divergence(draw_shares(rng, 50, 10, shares)) for _ in range(n)])


def test_shares_of_a_generation_spread_the_bands_and_those_of_clients_do_not():
    """Over 100 generations, 50 clients, 10 classes, as DC-PFL generates them."""
    by_generation = np.stack([generations("generation", seed=seed) for seed in range(4)])
    by_client = generations("client")
    # The least is that of shares 0.4 and 0.2; the greatest depends on how near to 1 the shares of one draw come.
    order = np.random.default_rng(0).permuted(np.tile(np.arange(10), (50, 1)), axis=1)
    assert mean_divergence(share_table(order, np.array([0.4]), np.array([0.2]))) == pytest.approx(0.79, abs=0.04)
    assert np.all((by_generation.min(axis=1) > 0.75) & (by_generation.min(axis=1) < 0.95))
    assert np.all((by_generation.max(axis=1) > 3.3) & (by_generation.max(axis=1) < 6.9))
    assert 1.5 < by_client.min() < by_client.max() < 2.2
    assert np.ptp(by_generation, axis=1).min() > 4 * np.ptp(by_client)


@pytest.mark.parametrize(("floor", "published"), [(1e-3, 4.84), (1e-4, 6.9), (1e-5, 8.63)])
def test_without_other_classes_the_smoothing_gives_the_divergences_of_the_motivation(floor, published):
    """p + s = 1: the motivation's 4.84 to 8.63, which no draw with other classes reaches."""
    order = np.random.default_rng(0).permuted(np.tile(np.arange(10), (50, 1)), axis=1)
    table = share_table(order, np.array([0.6]), np.array([0.4]))
    np.testing.assert_allclose(table.sum(axis=1), 1)
    assert mean_kld(table, floor) == pytest.approx(mean_divergence(table, floor), rel=1e-9)
    assert mean_kld(table, floor) == pytest.approx(published, abs=0.25)


def test_symmetric_kld_agrees_with_scipy():
    counts = np.random.default_rng(0).integers(0, 9, size=(5, 4)) + np.eye(5, 4, dtype=int)
    p = counts / counts.sum(axis=1, keepdims=True) + 1e-4
    expected = [[(stats.entropy(a, b) + stats.entropy(b, a)) / 2 for b in p] for a in p]  # entropy() renormalises
    np.testing.assert_allclose(symmetric_kld(counts), expected, rtol=1e-6, atol=1e-12)
