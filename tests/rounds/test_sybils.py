"""FoolsGold's weights against its authors' pseudo-code in NumPy, and what doubles are worth in a run."""

import jax
import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import fljax
from fljax.rounds.uplink.sybils import fools_gold
from fljax.rounds.uplink.sybils import weights as weights_op_by_op
from tests.rounds.test_uplink import D, transformed

weights = jax.jit(weights_op_by_op)


def weights_by_hand(history, confidence=1.0):
    """Algorithm 1 of the paper, one pair after another."""
    n = len(history)
    # scikit-learn takes rows shorter than 1e-15 for zeros.
    cs = cosine_similarity(history / np.linalg.norm(history, axis=1, keepdims=True)) - np.eye(n)
    v = cs.max(axis=1)
    for i in range(n):
        for j in range(n):
            if v[i] < v[j]:
                cs[i, j] *= v[i] / v[j]
    alpha = np.clip(1 - cs.max(axis=1), 0, 1)
    alpha = alpha / alpha.max()
    alpha[alpha == 1] = 0.99
    with np.errstate(divide="ignore"):
        return np.clip(confidence * (np.log(alpha / (1 - alpha)) + 0.5), 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_the_paper_among_those_who_came(seed):
    rng = np.random.default_rng(seed)
    history = np.abs(rng.normal(size=(8, 30)))
    history[5] = history[2] * 3 + 1e-3 * rng.normal(size=30)
    history[[2, 5]] *= (1, 1e25, 1e-25, 1)[seed]  # squares that float32 cannot hold
    is_present = np.ones(8, bool)
    is_present[[0, 7][: seed % 3]] = False
    kappa = 1.0 + seed
    history_with_absent = np.where(is_present[:, None], history, 1e6)
    actual = np.asarray(weights(history_with_absent.astype(np.float32), is_present, kappa))
    np.testing.assert_allclose(actual[is_present], weights_by_hand(history[is_present], kappa), atol=2e-3)
    assert not actual[~is_present].any()
    assert actual[[2, 5]].max() == 0


def test_updates_are_summed_over_the_rounds_in_which_a_client_came():
    """Doubles are known by what they have sent in all; a round to which a client does not come adds nothing."""
    rng, memory, history = np.random.default_rng(1), None, np.zeros((5, D))
    constant_updates, size = np.abs(rng.normal(size=(5, D))), np.array([3.0, 1.0, 2.0, 4.0, 1.0])
    constant_updates[3] = 2 * constant_updates[1]
    for r in range(4):
        updates = (constant_updates + 0.02 * rng.normal(size=(5, D))).astype(np.float32)
        is_present = np.arange(5) != (r if r < 3 else -1)  # at last all have come
        result = transformed(fools_gold, updates, memory=memory, weight=np.where(is_present, size, 0), confidence=1.0)
        history[is_present] += updates[is_present]
        expected = np.zeros(5)
        expected[is_present] = size[is_present] * weights_by_hand(history[is_present])
        np.testing.assert_allclose(result.weight, expected, rtol=1e-3, atol=5e-3)
        np.testing.assert_array_equal(result.values, updates)
        memory = result.memory
        np.testing.assert_allclose(memory.clients, history, rtol=1e-5, atol=1e-5)
    assert result.weight[[1, 3]].max() == 0
    assert result.weight[[0, 2, 4]].min() > 0.5


def test_updates_beyond_float32_leave_the_weights_of_others_as_they_are():
    rng, is_present = np.random.default_rng(2), np.arange(5) != 0
    updates = np.abs(rng.normal(size=(5, D))).astype(np.float32)
    expected = transformed(fools_gold, updates, weight=is_present, confidence=1.0)
    for bad in (np.inf, np.nan):
        updates[0] = bad
        result = transformed(fools_gold, updates, weight=np.ones(5), confidence=1.0)
        np.testing.assert_array_equal(result.weight, expected.weight)
        np.testing.assert_array_equal(result.memory.clients, expected.memory.clients)
    updates[:2], memory = 3e38, None  # two that are alike, whose sums overflow in the second round
    for _ in range(2):
        result = transformed(fools_gold, updates, memory=memory, confidence=1.0)
        memory = result.memory
        assert np.isfinite(memory.clients).all()
        assert not result.weight[:2].any()
        assert result.weight[2:].max() > 0.9


def test_similar_honest_clients_are_taken_for_doubles_and_a_different_one_is_trusted():
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.normal(size=(2, 30)), 3, axis=0) + 0.1 * rng.normal(size=(6, 30))
    history = np.concatenate([groups, rng.normal(size=(1, 30))]).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(weights(history, np.ones(7, bool), 1.0)) > 0.99, [False] * 6 + [True])


def test_clients_that_sent_nothing_yet_are_finite():
    zeros, ones = (np.full((8, 30), value, np.float32) for value in (0, 1))
    assert np.isfinite(np.asarray(weights(zeros, np.ones(8, bool), 1.0))).all()
    assert not np.asarray(weights(ones, np.zeros(8, bool), 1.0)).any()


@pytest.mark.parametrize("chain", ["secure_sum+fools_gold", "fools_gold+secure_sum", "fools_gold+client_dp"])
def test_what_hides_single_updates_does_not_go_with_it(model, chain):
    with pytest.raises(ValueError, match=r"hides all but their|put it last"):
        fljax.compose(f"fedavg+{chain}")(model, fljax.Work(1, 8))
