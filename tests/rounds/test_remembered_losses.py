"""Power of choice by the losses of earlier rounds, against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.rounds import by_size, power_of_choice
from fljax.rounds.memory import Seen, remembering
from fljax.rounds.sampling import ids_by_size
from fljax.run.one_round import first_state, run_round

THIRD = 1 / 3
EVERYONE = power_of_choice(THIRD, candidates=3, memory=True)
SIZE = jnp.array([9, 5, 8, 7, 7, 6, 9, 4, 8], jnp.int32)

draw_of = partial(jax.jit, static_argnums=(0, 4))(
    lambda draw, key, round, size, n, last: draw(key, round, size, n, last)
)


@jax.jit
def updated_of(last, ids, active, loss):
    nothing = jnp.zeros(ids.shape, jnp.float32)
    return EVERYONE.memory.update(last, Seen(jnp.int32(0), ids, active, jnp.ones_like(ids), nothing, loss))


def chosen_by_numpy(last, candidates, n):
    """The candidates with the largest losses: those never sampled, then by loss, where -inf stands for the mean."""
    known = {i: loss for i, loss in last.items() if np.isfinite(loss)}
    mean = np.mean(list(known.values())) if known else 0
    losses = {i: last.get(i, np.inf) for i in candidates}
    ranked = sorted(candidates, key=lambda i: mean if losses[i] == -np.inf else losses[i], reverse=True)
    return ranked, n, [i for i in candidates if losses[i] == np.inf]


@pytest.mark.parametrize("sampling", [EVERYONE, power_of_choice(THIRD, candidates=1.5, memory=True)])
def test_the_largest_losses_that_are_known_are_chosen(sampling):
    """With candidates for all places everyone is one; a third of those sampled do not come."""
    rng, last, memory = np.random.default_rng(0), {}, sampling.memory.init(9)
    n_candidates = int(3 * dict(sampling.about)["candidates"] + 0.5)
    for r in range(25):
        key = jax.random.fold_in(jax.random.key(3), r)
        ids, active = map(np.asarray, draw_of(sampling.draw, key, jnp.int32(r), SIZE, 3, memory))
        candidates = np.asarray(ids_by_size(key, SIZE, n_candidates)).tolist()
        ranked, n, unknown = chosen_by_numpy(last, candidates, 3)
        assert active.all()
        assert set(ids) <= set(candidates)
        if len(unknown) <= n:
            np.testing.assert_array_equal(ids, sorted(ranked[:n]))
        else:
            assert set(ids) <= set(unknown)
        loss, came = rng.gamma(2.0, size=3).astype(np.float32), rng.random(3) > 1 / 3
        memory = updated_of(memory, ids, came, loss)
        for i, value, has_come in zip(ids, loss, came, strict=True):
            last[i] = value if has_come else last.get(i, -np.inf)
        np.testing.assert_array_equal(memory, [last.get(i, np.inf) for i in range(9)])


def test_permuted_clients_are_chosen_as_they_were():
    last, order = jnp.array([0.3, 2.0, 0.1, 5.0, -jnp.inf, 0.2, 4.0, 0.4, 1.0]), np.array([4, 8, 0, 6, 2, 7, 1, 3, 5])
    ids, _ = draw_of(EVERYONE.draw, jax.random.key(0), jnp.int32(9), SIZE, 3, last)
    np.testing.assert_array_equal(ids, [1, 3, 6])
    permuted, _ = draw_of(EVERYONE.draw, jax.random.key(0), jnp.int32(9), SIZE[order], 3, last[order])
    np.testing.assert_array_equal(np.sort(order[permuted]), ids)


def test_those_never_sampled_come_in_random_order():
    """By their ids, the first rounds would have the clients of the first groups."""
    cohorts = set()
    for seed in range(20):
        ids, _ = draw_of(EVERYONE.draw, jax.random.key(seed), jnp.int32(0), SIZE, 3, jnp.full(9, jnp.inf))
        cohorts.add(tuple(np.asarray(ids).tolist()))
    assert len(cohorts) > 10
    assert {i for cohort in cohorts for i in cohort} == set(range(9))


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_the_least(loss):
    last = updated_of(jnp.full(9, jnp.inf), jnp.arange(9), jnp.ones(9, bool), jnp.arange(9.0).at[7].set(loss))
    for n in (3, 8):
        ids, _ = draw_of(EVERYONE.draw, jax.random.key(0), jnp.int32(1), SIZE, n, last)
        np.testing.assert_array_equal(ids, sorted([8, 6, 5, 4, 3, 2, 1, 0][:n]))
    never_there = last.at[0].set(-jnp.inf)  # as much as the mean of the others, 27 / 7
    ids, _ = draw_of(EVERYONE.draw, jax.random.key(0), jnp.int32(1), SIZE, 5, never_there)
    np.testing.assert_array_equal(ids, [0, 4, 5, 6, 8])


def test_one_candidate_per_participant_is_sampling_by_size():
    key, last = jax.random.key(5), jnp.arange(9.0)
    ids, _ = draw_of(power_of_choice(THIRD, candidates=1, memory=True).draw, key, jnp.int32(0), SIZE, 3, last)
    np.testing.assert_array_equal(ids, by_size(THIRD).draw(key, jnp.int32(0), SIZE, 3)[0])


def test_in_a_run_the_training_losses_decide(averaging, federation, key):
    """As NumPy finds from the metrics; nobody is asked, and a participant sends one number more."""
    draw, hyper = EVERYONE.of(9), fljax.fedavg.Hyper(lr=0.2)
    algorithm, last = remembering(averaging, EVERYONE.memory), {}
    one_round = jax.jit(partial(run_round, algorithm, draw))
    state = first_state(algorithm.init, key, hyper, federation.train)
    for r in range(7):
        state, metrics = one_round(hyper, federation, key, None, state, jnp.int32(r))
        ranked, n, unknown = chosen_by_numpy(last, range(9), 3)
        assert len(unknown) == max(0, 9 - 3 * r)
        if not unknown:
            np.testing.assert_array_equal(metrics["ids"], sorted(ranked[:n]))
        last |= dict(zip(np.asarray(metrics["ids"]).tolist(), np.asarray(metrics["loss"]).tolist(), strict=True))
        np.testing.assert_array_equal(metrics["uplink"], 16 * 4 + 4 + 1)
        assert "candidates" not in metrics
    assert len(last) == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"examples": 5}, "examples=5: with memory=True candidates compute no loss; leave one of them out"),
        ({"candidates": 0.5}, "candidates=0.5 per participant"),
        ({"participation": 0}, "participation=0 is not a share"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        power_of_choice(**{"memory": True, **settings})
    with pytest.raises(ValueError, match="memory='yes' is not a choice; choose True or False"):
        power_of_choice(memory="yes")


def test_without_a_memory_it_is_described_as_before():
    """So that older runs are resumed."""
    assert dict(power_of_choice(0.5).about).keys() == {"sampling", "participation", "candidates", "examples"}
    assert dict(EVERYONE.about)["memory"] is True
    assert power_of_choice(THIRD, 3.0, memory=True) is EVERYONE
