"""What attackers send: against NumPy in float64 and against the inequalities that the papers state."""

from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

from fljax.attacks import updates
from fljax.rounds.uplink import Memory
from fljax.server.krum import krum
from tests.rounds.test_uplink import message, trip_of

N, D, IDS = 11, 40, (2, 5, 9)
ABSENT = 7
OTHERS = [i for i in range(N) if i not in IDS]
HONEST = [i for i in OTHERS if i != ABSENT]


@pytest.fixture
def values():
    values = np.random.default_rng(0).normal(0.3, 1, size=(N, D)).astype(np.float32)
    values[ABSENT] = 1e6  # takes no part, so that nothing may depend on it
    return values


@cache
def compiled(craft, start):
    """What everyone sends of ``values`` in a round: one program a craft, whatever the round."""
    transform, weight = updates.crafted(craft, IDS, start), np.where(np.arange(N) == ABSENT, 0, 1)

    def send(values, round):
        return transform.apply(SimpleNamespace(), Memory(), message(values, weight), trip_of(round, N))[1].values

    return jax.jit(send)


def sent_by_attackers(craft, values, start=0, round=0):
    updates_sent = np.asarray(compiled(craft, start)(values, np.int32(round)))
    np.testing.assert_array_equal(updates_sent[OTHERS], values[OTHERS])  # the honest send what they have
    return updates_sent[list(IDS)]


def moments(values):
    honest_values = values[HONEST].astype(np.float64)
    return honest_values.mean(axis=0), honest_values.std(axis=0)


def test_signs_scales_and_inner_products(values):
    mean, _ = moments(values)
    np.testing.assert_array_equal(sent_by_attackers(updates.sign_flip(2.0), values), -2 * values[list(IDS)])
    np.testing.assert_array_equal(sent_by_attackers(updates.scaled(4.0), values), 4 * values[list(IDS)])
    np.testing.assert_allclose(
        sent_by_attackers(updates.ipm(0.5), values), np.tile(-0.5 * mean, (3, 1)), rtol=1e-4, atol=1e-6
    )


def test_a_little_is_enough_has_the_papers_z(values):
    mean, std = moments(values)
    np.testing.assert_allclose(sent_by_attackers(updates.alie(1.5), values)[0], mean - 1.5 * std, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        sent_by_attackers(updates.alie(None), values)[0], mean - z_of(10, 3) * std, rtol=1e-4, atol=1e-5
    )
    craft, participants = jax.jit(updates.alie(None)), np.delete(values, ABSENT, axis=0)[:9]
    for m in (1, 2, 4):  # an odd number of participants is halved downwards
        actual = craft(updates.Seen(participants, np.arange(9) >= m, np.arange(9) < m, None))
        mean, std = participants[m:].mean(axis=0, dtype=np.float64), participants[m:].std(axis=0, dtype=np.float64)
        np.testing.assert_allclose(actual, mean - z_of(9, m) * std, rtol=1e-4, atol=1e-5)


def z_of(n, m):
    """Baruch et al.'s: s honest ones of n participants, of whom m attack, make a majority with the attackers."""
    s = n // 2 + 1 - m
    return stats.norm.ppf((n - m - s) / (n - m))


def test_fang_sends_values_beyond_the_honest_ones_against_the_mean(values):
    mean, _ = moments(values)
    # Both signs of the extreme next to which an attacker stays, for a mean of either sign.
    values = values + np.where(np.arange(D) % 4 == 0, 5 * np.sign(mean), 0).astype(np.float32)
    low, high = values[HONEST].min(axis=0), values[HONEST].max(axis=0)
    near_end = np.where(mean > 0, low, high)
    far_end = np.where((near_end > 0) == (mean > 0), near_end / 3, near_end * 3)
    actual = np.concatenate([sent_by_attackers(updates.fang(3.0), values, round=r) for r in range(20)])
    share = (actual - near_end) / (far_end - near_end)
    assert ((share >= -1e-4) & (share <= 1 + 1e-4)).all()
    for has_sign in (near_end > 0, near_end < 0):
        for mean_has_sign in (mean > 0, mean < 0):
            assert stats.kstest(share[:, has_sign & mean_has_sign].ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_as_far_as_the_honest_distances_allow_and_no_further(values, name):
    mean, std = moments(values)
    honest_values = values[HONEST].astype(np.float64)
    actual = sent_by_attackers(getattr(updates, name)(), values)[0].astype(np.float64)
    gamma = float(((mean - actual) / std).mean())
    np.testing.assert_allclose(actual, mean - gamma * std, rtol=1e-3, atol=1e-4)

    def reach(point):
        squared_distance = ((honest_values - point) ** 2).sum(axis=1)
        return squared_distance.max() if name == "min_max" else squared_distance.sum()

    limit = max(reach(honest_value) for honest_value in honest_values)
    assert reach(mean - gamma * std) <= limit * 1.001
    assert reach(mean - (gamma + 0.01) * std) > limit


def test_many_deviations_are_a_short_way_where_most_agree():
    """Of a hundred honest ones 98 send 0 and two 1 and -1, 2 apart: sigma is 0.14, and -1 is as far as may be."""
    participants, is_attacker = np.zeros((101, 1), np.float32), np.arange(101) == 100
    participants[[3, 8], 0], participants[100] = [1, -1], 50
    actual = jax.jit(updates.min_max())(updates.Seen(participants, ~is_attacker, is_attacker, None))
    np.testing.assert_allclose(actual, [-1], atol=1e-5)


def test_where_nobody_honest_takes_part_attackers_send_what_they_have(values):
    transform = updates.crafted(updates.ipm(1.0), tuple(range(N)), 0)
    arguments = SimpleNamespace(), Memory(), message(values), trip_of(0, N)
    np.testing.assert_array_equal(transform.apply(*arguments)[1].values, values)


def test_free_riders_send_nothing_or_noise_of_the_honest_length(values):
    assert not sent_by_attackers(updates.free_rider(0.0), values).any()
    mean_norm = np.linalg.norm(values[HONEST].astype(np.float64), axis=1).mean()
    free_rider = updates.free_rider(1.0)
    actual = np.concatenate([sent_by_attackers(free_rider, values, round=r) for r in range(20)])
    assert stats.kstest(actual.ravel() / (mean_norm / np.sqrt(D)), "norm").pvalue > 1e-3


def test_nobody_attacks_before_the_first_round_of_it(values):
    flip = updates.sign_flip(1.0)
    np.testing.assert_array_equal(sent_by_attackers(flip, values, start=3, round=2), values[list(IDS)])
    np.testing.assert_array_equal(sent_by_attackers(flip, values, start=3, round=3), -values[list(IDS)])


def test_krum_is_not_moved_by_a_flip_and_a_mean_is(values):
    updates_sent = values.copy()
    updates_sent[list(IDS)] = sent_by_attackers(updates.scaled(50.0), values)
    is_present = np.arange(N) != ABSENT
    chosen = np.asarray(jax.jit(krum, static_argnums=1)(updates_sent, 3, is_present))
    squared_distances = (
        (updates_sent[is_present][:, None].astype(np.float64) - updates_sent[is_present][None]) ** 2
    ).sum(-1)
    n_near = len(squared_distances) - 3 - 2
    score = [np.sort(np.delete(row, i))[:n_near].sum() for i, row in enumerate(squared_distances)]
    np.testing.assert_allclose(chosen, updates_sent[is_present][int(np.argmin(score))], rtol=1e-6)
    honest_mean = values[HONEST].mean(axis=0)
    assert (
        np.linalg.norm(chosen - honest_mean) < np.linalg.norm(updates_sent[is_present].mean(axis=0) - honest_mean) / 3
    )
