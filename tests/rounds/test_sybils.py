"""FoolsGold's weights against its authors' pseudo-code in NumPy, and what doubles are worth in a run."""

import jax
import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import fljax
from fljax.rounds.uplink.sybils import fools_gold
from fljax.rounds.uplink.sybils import weights as weights_op_by_op
from tests.rounds.test_uplink import D, sent

weights = jax.jit(weights_op_by_op)


def by_hand(history, confidence=1.0):
    """Algorithm 1 of the paper, one pair after another."""
    n = len(history)
    cs = cosine_similarity(history) - np.eye(n)
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
    came = np.ones(8, bool)
    came[[0, 7][: seed % 3]] = False
    kappa = 1.0 + seed
    spoilt = np.where(came[:, None], history, 1e6)
    found = np.asarray(weights(spoilt.astype(np.float32), came, kappa))
    np.testing.assert_allclose(found[came], by_hand(history[came], kappa), atol=2e-3)
    assert not found[~came].any()
    assert found[[2, 5]].max() == 0


def test_updates_are_summed_over_the_rounds_in_which_a_client_came():
    """Doubles are known by what they have sent in all; a round to which a client does not come adds nothing."""
    rng, memory, history = np.random.default_rng(1), None, np.zeros((5, D))
    lasting, size = np.abs(rng.normal(size=(5, D))), np.array([3.0, 1.0, 2.0, 4.0, 1.0])
    lasting[3] = 2 * lasting[1]
    for r in range(4):
        updates = (lasting + 0.02 * rng.normal(size=(5, D))).astype(np.float32)
        came = np.arange(5) != (r if r < 3 else -1)  # at last all have come
        ours = sent(fools_gold, updates, memory=memory, weight=np.where(came, size, 0), confidence=1.0)
        history[came] += updates[came]
        expected = np.zeros(5)
        expected[came] = size[came] * by_hand(history[came])
        np.testing.assert_allclose(ours.weight, expected, rtol=1e-3, atol=5e-3)
        np.testing.assert_array_equal(ours.values, updates)
        memory = ours.memory
        np.testing.assert_allclose(memory.clients, history, rtol=1e-5, atol=1e-5)
    assert ours.weight[[1, 3]].max() == 0
    assert ours.weight[[0, 2, 4]].min() > 0.5


def test_honest_clients_of_one_kind_are_doubles_and_whoever_is_unlike_them_is_believed():
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.normal(size=(2, 30)), 3, axis=0) + 0.1 * rng.normal(size=(6, 30))
    history = np.concatenate([groups, rng.normal(size=(1, 30))]).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(weights(history, np.ones(7, bool), 1.0)) > 0.99, [False] * 6 + [True])


def test_clients_that_sent_nothing_yet_are_finite():
    nothing, ones = (np.full((8, 30), value, np.float32) for value in (0, 1))
    assert np.isfinite(np.asarray(weights(nothing, np.ones(8, bool), 1.0))).all()
    assert not np.asarray(weights(ones, np.zeros(8, bool), 1.0)).any()


@pytest.mark.parametrize("chain", ["secure_sum+fools_gold", "fools_gold+secure_sum", "fools_gold+client_dp"])
def test_what_hides_single_updates_does_not_go_with_it(model, chain):
    with pytest.raises(ValueError, match=r"hides all but their|put it last"):
        fljax.compose(f"fedavg+{chain}")(model, fljax.Work(1, 8))
