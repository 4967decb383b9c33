"""Clients in turn: everyone's turn comes, separations hold, and what is left is uniform."""

import math
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.rounds import least_recent
from fljax.rounds.memory import Seen

draw_of = partial(jax.jit, static_argnums=(0, 4))(
    lambda draw, key, round, size, n, last: draw(key, round, size, n, last)
)


@partial(jax.jit, static_argnums=0)
def update_of(update, last, round, ids, active):
    nothing = jnp.zeros(ids.shape, jnp.float32)
    return update(last, Seen(round, ids, active, jnp.ones(ids.shape, jnp.int32), nothing))


def cohorts(sampling, n_clients, n_rounds, seed=0, comes=lambda r, ids: np.ones(len(ids), bool)):
    """The ids of each round of a run."""
    n, last, size = sampling.n_places(n_clients), sampling.memory.init(n_clients), jnp.ones(n_clients, jnp.int32)
    rows = []
    for r in range(n_rounds):
        key = jax.random.fold_in(jax.random.key(seed), r)
        ids, active = map(np.asarray, draw_of(sampling.draw, key, jnp.int32(r), size, n, last))
        assert active.all()
        last = update_of(sampling.memory.update, last, jnp.int32(r), ids, comes(r, ids))
        rows.append(ids)
    return np.array(rows)


def gaps(rows, n_clients):
    """Rounds between successive samplings of each client."""
    return [np.diff([r for r, ids in enumerate(rows) if i in ids]) for i in range(n_clients)]


@pytest.mark.parametrize(("n", "m"), [(9, 3), (10, 3), (7, 4), (5, 1), (6, 6)])
def test_everyones_turn_comes(n, m):
    rows = cohorts(least_recent(m / n), n, 4 * math.ceil(n / m))
    turn = math.ceil(n / m)
    for first in range(len(rows) - turn + 1):
        assert set(rows[first : first + turn].ravel()) == set(range(n))
    assert all((gap >= n // m).all() and (gap <= turn).all() for gap in gaps(rows, n))


@pytest.mark.parametrize(("n", "m", "separation"), [(9, 3, 2), (10, 2, 4), (10, 2, 5), (8, 3, 1)])
def test_a_separation_is_kept_and_no_more(n, m, separation):
    rows = cohorts(least_recent(m / n, separation), n, 60)
    assert min(gap.min() for gap in gaps(rows, n)) == separation
    assert all(len(set(ids)) == m for ids in rows)


def test_a_separation_is_kept_when_few_are_there():
    """Places stay empty; those who filled them were not sampled, and do not rest."""
    sampling, rng = least_recent(0.2, separation=4), np.random.default_rng(0)
    n, last, n_clients = 4, sampling.memory.init(20), 20
    sampled_in, n_empty = [[] for _ in range(n_clients)], 0
    for r in range(60):
        is_there = rng.random(n_clients) < 0.4
        key, size = jax.random.fold_in(jax.random.key(0), r), jnp.asarray(is_there.astype(np.int32))
        ids, active = map(np.asarray, draw_of(sampling.draw, key, jnp.int32(r), size, n, last))
        rested = [i for i in range(n_clients) if is_there[i] and (not sampled_in[i] or r - sampled_in[i][-1] >= 4)]
        assert set(ids[active]) <= set(rested)
        assert active.sum() == min(n, len(rested))
        assert len(set(ids)) == n
        for i in ids[active]:
            sampled_in[i].append(r)
        n_empty += n - active.sum()
        last = update_of(sampling.memory.update, last, jnp.int32(r), ids, active)
    assert n_empty > 20
    assert min(np.diff(rounds).min() for rounds in sampled_in) == sampling.once_in == sampling.separation


def test_all_clients_that_have_rested_are_equally_likely():
    """Six of eight, after a cohort of two: of the 15 pairs each about as often."""
    sampling, size = least_recent(0.25, separation=2), jnp.ones(8, jnp.int32)
    last = jnp.array([0, 3, -9, 1, 3, 2, 0, -9], jnp.int32)  # it is round 4: clients 1 and 4 have just been sampled
    keys = jax.random.split(jax.random.key(1), 3000)
    ids = jax.jit(jax.vmap(lambda key: sampling.draw(key, jnp.int32(4), size, 2, last)[0]))(keys)
    counts = Counter(map(tuple, np.asarray(ids).tolist()))
    assert len(counts) == 15
    assert not {1, 4} & {i for pair in counts for i in pair}
    assert max(abs(count - 200) for count in counts.values()) < 5 * math.sqrt(200)  # standard deviations


def test_those_of_one_cohort_are_mixed_with_others():
    """Not the same groups in every turn, as if the clients were dealt with by their ids."""
    rows = cohorts(least_recent(3 / 10), 10, 40)
    assert len({tuple(ids) for ids in rows.tolist()}) > 30
    assert cohorts(least_recent(1 / 3), 9, 1, seed=0).tolist() != cohorts(least_recent(1 / 3), 9, 1, seed=1).tolist()


def test_permuted_clients_are_chosen_as_they_were():
    last, size = jnp.array([5, 2, 9, 0, 7, 4], jnp.int32), jnp.ones(6, jnp.int32)
    draw = least_recent(0.5).draw
    ids, _ = draw_of(draw, jax.random.key(0), jnp.int32(10), size, 3, last)
    np.testing.assert_array_equal(ids, [1, 3, 5])
    order = np.array([3, 5, 0, 1, 4, 2])
    permuted, _ = draw_of(draw, jax.random.key(0), jnp.int32(10), size, 3, last[order])
    np.testing.assert_array_equal(np.sort(order[permuted]), ids)


def test_who_is_sampled_and_does_not_come_has_had_its_turn():
    """A device that is always late would otherwise take a place in all rounds."""
    rows = cohorts(least_recent(1 / 3), 9, 6, comes=lambda r, ids: ids != 4)
    np.testing.assert_array_equal(np.bincount(rows.ravel(), minlength=9), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: least_recent(0.0), "participation=0.0 is not a share"),
        (lambda: least_recent(0.5, separation=0), "separation=0 is not positive; choose separation >= 1, or None"),
        (lambda: least_recent(0.4, separation=1.5), "separation=1.5 is not a whole number"),
        (
            lambda: least_recent(0.4, separation=3).of(10),
            "separation=3: 4 of 10 clients participate in a round, so that a client is needed again after 2; choose "
            "separation <= 2, or fewer participants",
        ),
    ],
)
def test_turns_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_equal_ones_are_the_same():
    assert least_recent(0.5) is least_recent(np.float32(0.5))
    assert least_recent(0.25, 2) is least_recent(0.25, separation=np.int64(2))
    assert dict(least_recent(0.25, 2).about) == {"sampling": "least_recent", "participation": 0.25, "separation": 2}


@pytest.mark.slow
def test_in_a_run_everyone_participates(averaging, federation, key):
    _, metrics = fljax.simulate(averaging, fljax.fedavg.Hyper(), federation, key, 6, sampling=least_recent(1 / 3))
    for turn in (metrics["ids"][:3], metrics["ids"][3:]):
        np.testing.assert_array_equal(np.sort(turn, axis=None), range(9))
