"""Who takes part: uniform, common to all methods, and dealt fairly to devices."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax
from fljax.devices.mesh import over_devices
from fljax.rounds.clock import over_selection, with_availability, with_deadline
from fljax.rounds.cohort import CohortKeys, balanced_order, cohort_of, sample_cohort
from fljax.rounds.named_samplings import SAMPLINGS, by_size, fixed, poisson, sampling_of, shuffled, table, uniform
from fljax.rounds.sampling import Sampling, cohort_size
from fljax.run.one_round import split_key
from tests.algorithms.round_by_round import jitted, simulate
from tests.rounds.drawn import draw_cohort
from tests.slow import slow, slow_rows


@pytest.mark.parametrize(("share", "n", "size"), [(1.0, 20, 20), (0.1, 100, 10), (0.001, 100, 1), (0.25, 10, 2)])
def test_cohort_size(share, n, size):
    assert cohort_size(share, n) == size


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=r"participation=.*choose 0 < participation <= 1"):
        cohort_size(share, 10)


def cohorts(key, federation, size, dropout=None, n_rounds=2000):
    draw = jax.jit(jax.vmap(lambda r: sample_cohort(key, r, federation, size, dropout)[1:4:2]))
    return jax.tree.map(np.asarray, draw(jnp.arange(n_rounds, dtype=jnp.int32)))


def test_every_client_is_drawn_equally_often_and_never_twice(key, federation):
    ids, active = cohorts(key, federation, 4)
    assert all(len(set(row)) == 4 for row in ids)
    assert active.all()
    counts = np.bincount(ids.ravel(), minlength=9)
    # Binomial(2000, 4/9): standard deviation 22; five of them.
    np.testing.assert_allclose(counts, 2000 * 4 / 9, atol=5 * 22.3)


def test_dropout_has_its_rate_and_leaves_someone(key, federation):
    ids, active = cohorts(key, federation, 4, 0.7)
    assert active.any(axis=1).all()
    # Who stays where all would drop out is anybody: each of 9 clients counts as often, within five deviations.
    counts = np.bincount(ids[active], minlength=9)
    np.testing.assert_allclose(counts, active.sum() / 9, atol=5 * np.sqrt(active.sum() / 9))
    # Those whom the rule keeps: P(all four drop) = 0.7^4, one of four then stays.
    expected = 0.3 + 0.7**4 / 4
    np.testing.assert_allclose(active.mean(), expected, atol=5 * np.sqrt(0.25 / 8000))
    # Whoever stays where more drop out stays where fewer do: the last one was the nearest to staying.
    assert (active | ~cohorts(key, federation, 4, 0.95)[1]).all()


def test_who_drops_out_does_not_follow_what_clients_draw(key, federation):
    key_1, key_2 = jax.random.split(key)

    @jax.jit
    def is_active(dropout, clients):
        keys = CohortKeys(key, dropout, clients)
        return cohort_of(keys, jnp.int32(0), federation, 9, jnp.float32(0.5)).active

    np.testing.assert_array_equal(is_active(key_1, key_1), is_active(key_1, key_2))
    assert (np.asarray(is_active(key_1, key_1)) != is_active(key_2, key_1)).any()


def test_with_poisson_sampling_nobody_stays_because_the_others_dropped_out(key, federation):
    draw = poisson(0.5).of(9)
    draw_rounds = jax.jit(jax.vmap(lambda t: draw_cohort(key, t, federation, draw, jnp.float32(0.9))))
    all_cohorts = draw_rounds(jnp.arange(2000, dtype=jnp.int32))
    is_there = np.zeros((2000, 9), bool)
    np.put_along_axis(is_there, np.asarray(all_cohorts.ids), np.asarray(all_cohorts.active), axis=1)
    # Binomial(2000, 0.05): standard deviation 10; and as many rounds of nobody as nine clients by themselves make.
    np.testing.assert_allclose(is_there.sum(0), 100, atol=50)
    np.testing.assert_allclose((~is_there.any(1)).mean(), 0.95**9, atol=5 * np.sqrt(0.25 / 2000))
    np.testing.assert_allclose(all_cohorts.expected, 0.45, rtol=1e-6)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (uniform(0.5), None),
        (poisson(0.5), 4.5),
        (table(((0, 1), (2, 3, 4, 5))), 3.0),
        (over_selection(uniform(), np.arange(1.0, 10.0), 3), 3.0),
        (with_deadline(uniform(), np.arange(1.0, 10.0), 3.0), 3.0),
        (with_availability(poisson(0.5), np.full(9, 0.5)), 2.25),
    ],
)
def test_as_many_are_expected_as_come_on_average(key, federation, sampling, expected):
    assert sampling.expected(9) == expected
    draw = sampling.of(9)
    count_active = jax.jit(jax.vmap(lambda t: draw_cohort(key, t, federation, draw, None).active.sum()))
    mean_active = float(count_active(jnp.arange(2000, dtype=jnp.int32)).mean())
    np.testing.assert_allclose(mean_active, draw.size if expected is None else expected, atol=5 * 3 / np.sqrt(2000))


def test_a_clients_key_depends_on_seed_round_and_id_only(key, federation):
    cohort_of_4 = draw_cohort(key, np.int32(3), federation, 4, None)
    keys, keys_of_next_round = (
        np.asarray(jax.random.key_data(draw_cohort(key, np.int32(r), federation, 9, None).key)) for r in (3, 4)
    )
    np.testing.assert_array_equal(jax.random.key_data(cohort_of_4.key), keys[np.asarray(cohort_of_4.ids)])
    assert not np.array_equal(keys_of_next_round, keys)


def test_dealing_balances_the_shares():
    size = jnp.asarray([100, 1, 90, 2, 80, 3])
    shares = np.asarray(size[balanced_order(jnp.arange(6), size, 2)]).reshape(2, 3).sum(axis=1)
    np.testing.assert_array_equal(shares, [100 + 80 + 2, 90 + 3 + 1])


def test_devices_change_the_order_only(key, federation):
    cohort = draw_cohort(key, np.int32(0), federation, 4, None)
    with over_devices():
        cohort_over_devices = jax.jit(lambda: sample_cohort(key, jnp.int32(0), federation, 4, None))()
    order = np.argsort(np.asarray(cohort_over_devices.ids))
    np.testing.assert_array_equal(np.asarray(cohort_over_devices.ids)[order], cohort.ids)
    np.testing.assert_array_equal(np.asarray(cohort_over_devices.data.size)[order], cohort.data.size)


def ids_of(sampling, key, federation, n_rounds=2000):
    """(rounds, places) ids and who is there."""
    draw = sampling.of(federation.train.n_clients)
    draw_rounds = jax.jit(jax.vmap(lambda r: sample_cohort(key, r, federation, draw, None)[1:4:2]))
    return jax.tree.map(np.asarray, draw_rounds(jnp.arange(n_rounds, dtype=jnp.int32)))


def test_uniform_is_what_a_number_of_clients_means(key, federation):
    for actual, expected in zip(ids_of(uniform(4 / 9), key, federation), cohorts(key, federation, 4), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_one_draw_by_size_has_each_client_as_often_as_its_size_says(key, federation):
    ids, active = ids_of(by_size(1 / 9), key, federation, 4000)
    assert active.all()
    share = np.asarray(federation.train.size) / np.asarray(federation.train.size).sum()
    counts = np.bincount(ids.ravel(), minlength=9)
    # Chi-squared of 8 degrees of freedom is above 26 once in a thousand.
    assert ((counts - 4000 * share) ** 2 / (4000 * share)).sum() < 26


def test_draws_by_size_are_without_replacement_and_take_clients_without_examples_last(key, federation):
    train = federation.train._replace(size=federation.train.size.at[2].set(0))
    ids, _ = ids_of(by_size(8 / 9), key, federation._replace(train=train), 50)
    assert all(len(set(row)) == 8 for row in ids)
    assert not (ids == 2).any()


def test_poisson_draws_each_client_with_its_probability_and_independently(key, federation):
    ids, active = ids_of(poisson(0.3), key, federation, 4000)
    assert ids.shape == (4000, 9)  # 2.7 + 6 deviations of 1.4 are more than all
    is_there = np.zeros((4000, 9))
    np.put_along_axis(is_there, ids, active, axis=1)
    np.testing.assert_allclose(is_there.mean(axis=0), 0.3, atol=5 * np.sqrt(0.21 / 4000))
    np.testing.assert_allclose(is_there.sum(axis=1).var(), 9 * 0.21, rtol=0.15)  # of a binomial
    assert (is_there.sum(axis=1) == 0).any()  # 0.7^9 = 4 % of the rounds have nobody


def test_poisson_draws_alike_where_there_are_fewer_places_than_clients(key):
    """1,000 clients, 51 places: who is drawn has a place, whoever it is."""
    sampling, size = poisson(0.02), jnp.ones(1000, jnp.int32)
    draw = partial(sampling.draw, round=jnp.int32(0), size=size, n=sampling.of(1000).size)
    ids, active = jax.device_get(jax.jit(jax.vmap(draw))(jax.random.split(key, 4000)))
    assert ids.shape == (4000, 51)
    assert (np.diff(ids) > 0).all()
    is_there = np.zeros((4000, 1000), bool)
    np.put_along_axis(is_there, ids, active, axis=1)
    np.testing.assert_allclose(is_there.mean(axis=0), 0.02, atol=6 * np.sqrt(0.02 * 0.98 / 4000))
    np.testing.assert_allclose(is_there.sum(axis=1).mean(), 20, atol=5 * np.sqrt(19.6 / 4000))
    np.testing.assert_allclose(is_there.sum(axis=1).var(), 19.6, rtol=0.15)  # of a binomial


def test_more_participants_than_places_are_rarer_than_one_round_in_a_hundred_million():
    """Few on average too, where a normal law says too little: epsilon counts on nobody taking another's place."""
    n, share = (part.ravel() for part in np.meshgrid([5, 30, 100, 1000, 100_000], np.geomspace(1e-6, 0.99, 60)))
    places = [
        poisson(float(probability)).of(int(n_clients)).size for n_clients, probability in zip(n, share, strict=True)
    ]
    assert stats.binom.sf(places, n, share).max() < 1e-8


def test_a_round_of_nobody_changes_nothing(key, federation, averaging):
    first_without_clients, hyper = table(((), (0, 1))), fljax.fedavg.Hyper(lr=0.1)
    state_after_1, _ = simulate(averaging, hyper, federation, key, 1, sampling=first_without_clients)
    start = jitted(averaging.init)(split_key(key).init, hyper, federation.train)
    chex.assert_trees_all_close(state_after_1.server, start.server, rtol=1e-6)
    state_after_2, metrics = simulate(averaging, hyper, federation, key, 2, sampling=first_without_clients)
    assert not np.allclose(state_after_2.server["fc1"]["kernel"], start.server["fc1"]["kernel"])
    np.testing.assert_array_equal(metrics["active"], [[False, False], [True, True]])


def test_places_of_a_poisson_cohort_do_not_grow_with_the_federation():
    assert poisson(0.01).of(10_000).size == 164  # 100 + 6 sqrt(99), rounded up, and four
    assert poisson(1.0).of(50).size == 50


@pytest.mark.parametrize("seed", range(20))
def test_a_table_states_how_far_apart_the_rounds_of_a_client_are(seed):
    """Against counting over many repetitions of the rows."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(4, rng.integers(0, 3), replace=False).tolist() for _ in range(rng.integers(1, 7))]
    sampling = table([*rows, [0]])
    is_in = np.array([[i in row for i in range(4)] for row in [*rows, [0]]] * 60)
    counts, n_rounds = is_in.cumsum(axis=0), np.arange(1, len(is_in) + 1)[:, None]
    kept = [b for b in range(1, 61) if (counts <= -(-n_rounds // b)).all()]
    gaps = np.concatenate([np.diff(np.flatnonzero(column)) for column in is_in.T])
    assert (sampling.once_in, sampling.separation) == (max(kept), gaps.min())


def test_fixed_clients_and_tables_are_taken_at_their_word(key, federation):
    ids, active = ids_of(fixed((7, 2, 5)), key, federation, 3)
    np.testing.assert_array_equal(ids, [[2, 5, 7]] * 3)
    assert active.all()
    ids, active = ids_of(table([[8, 1], [4, -1], [0, 3]]), key, federation, 4)
    assert [set(row[is_there]) for row, is_there in zip(ids, active, strict=True)] == [{1, 8}, {4}, {0, 3}, {1, 8}]
    assert all(len(set(row)) == 2 for row in ids)


def test_dropout_is_among_those_who_are_there(key, federation):
    draw = table([[4], [0, 3]]).of(9)
    for r in range(20):
        cohort = draw_cohort(key, np.int32(r), federation, draw, np.float32(0.5 + 0.4 * (r < 6)))
        in_table = {4} if r % 2 == 0 else {0, 3}
        assert set(np.asarray(cohort.ids)[np.asarray(cohort.active)].tolist()) <= in_table
        assert cohort.active.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fixed(()), "rows name no client"),
        (lambda: fixed((1, 1)), r"rows\[0\]=\(1, 1\) names a client twice"),
        (lambda: table([[0], [-3]]), r"rows\[1\]"),
        (lambda: table([[0, 1.7]]), r"rows\[0\]: 1.7 is not a client's number"),
        (lambda: fixed((0, "a")), "ids: 'a' is not a client's number"),
        (lambda: sampling_of(uniform()._replace(about=()), 0.5), "participation=0.5 beside sampling=one of your own"),
        (lambda: fixed((9,)).of(9), "client 9 participates but there are 9 clients; give ids below 9"),
        (lambda: poisson(0.0).of(9), "participation=0.0"),
        (lambda: by_size(2.0).of(9), "participation=2.0"),
        (lambda: sampling_of(poisson(0.5), 0.5), "participation=0.5 beside sampling=poisson"),
        (lambda: sampling_of(None, 0.0), "participation=0.0 is not a share"),
        (lambda: uniform()._replace(once_in=0).of(9), "once_in=0 is not a number of rounds; give a whole number of at"),
        (
            lambda: uniform()._replace(separation=-1).of(9),
            "separation=-1 is not a number of rounds; give",
        ),
        (lambda: uniform()._replace(once_in=lambda n_clients: n_clients / 2).of(9), "once_in=4.5 is not a number of"),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("n_clients", "share", "n_rounds"), [(9, 0.34, 3), *slow_rows((10, 0.4, 3), (7, 1.0, 1), (5, 0.1, 5))]
)
def test_in_a_pass_every_client_participates_once(n_clients, share, n_rounds):
    """By counting; cohorts differ by one at most, and what follows a pass is another order."""
    sampling = shuffled(share, seed=3)
    n = sampling.n_places(n_clients)
    size, rounds = jnp.ones(n_clients, jnp.int32), jnp.arange(4 * n_rounds, dtype=jnp.int32)

    @partial(jax.jit, static_argnums=0)
    def drawn(sampling):
        return jax.vmap(lambda r: sampling.draw(jax.random.key(0), r, size, n))(rounds)

    ids, is_in = map(np.asarray, drawn(sampling))
    assert all(len(set(row)) == n and (np.diff(row) > 0).all() for row in ids)
    counts = is_in.sum(axis=1)
    assert counts.max() == n <= cohort_size(share, n_clients)
    assert counts.min() >= n - 1
    passes = [
        tuple(tuple(row[there]) for row, there in zip(ids[p:][:n_rounds], is_in[p:], strict=False))
        for p in range(0, len(ids), n_rounds)
    ]
    assert all(sorted(sum(one, ())) == list(range(n_clients)) for one in passes)
    assert len(set(passes)) > 1 or n_rounds == 1
    assert (sampling.expected(n_clients) or n) == pytest.approx(counts.mean())
    assert n_rounds in (1, 5) or (drawn(shuffled(share, seed=4))[0] != ids).any()


def test_equal_samplings_are_the_same_so_that_nothing_compiles_twice():
    assert poisson(0.5) is poisson(0.5)
    assert table([[1, 2]]) is table(np.array([[1, 2]]))
    assert shuffled(0.5, seed=2) is shuffled(np.float64(0.5), seed=np.int64(2)) is not shuffled(0.5)
    assert fixed([1, 2]) is fixed(np.array([1, 2])) is fixed((1, 2))
    by_chance = {"uniform", "by_size", "power_of_choice", "oort", "poisson", "shuffled", "least_recent"}
    assert set(SAMPLINGS) == by_chance | {"fixed", "table"}


@pytest.mark.parametrize("make", [uniform, by_size, poisson, shuffled])
def test_a_share_is_a_number_of_any_kind_and_nothing_else(make):
    assert make(jnp.float32(0.5)) is make(0.5) is make(np.float64(0.5))
    for share, message in (
        (0, "participation=0 is not a share"),
        ([0.5], "is not a number"),
        ("half", "is not a number"),
    ):
        with pytest.raises(ValueError, match=message):
            make(share)


def test_ids_are_sequences():
    with pytest.raises(ValueError, match="ids=3 is not a sequence"):
        fixed(3)
    with pytest.raises(ValueError, match="3 is not a row"):
        table(3)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: (np.array([0.0, 1.0]), np.ones(2, bool)), "drew .2,. of float32"),
        (lambda: ([0, 1, 2], np.ones(3, bool)), r"drew \(3,\) of int32"),
        (lambda: (np.arange(2), np.ones(2)), "of float"),
        (lambda: np.arange(2), "give ids"),
        (lambda: None, "a NoneType"),
        (lambda: ([0, 99], np.ones(2, bool)), "client 99 of [0-9]+; give ids from 0 to"),
        (lambda: ([-1, 1], np.ones(2, bool)), "client -1"),
        (lambda: ([2, 2], np.ones(2, bool)), "client 2 twice"),
    ],
)
def test_what_a_sampling_of_ones_own_draws_is_checked(key, federation, averaging, draw, message):
    own_sampling = Sampling(lambda key, round, size, n: draw(), lambda n_clients: 2, (("sampling", "own"),))
    with pytest.raises(ValueError, match=message):
        fljax.simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1, sampling=own_sampling)


@pytest.mark.parametrize("run", [fljax.simulate, *slow(fljax.train)])
@pytest.mark.parametrize(
    ("ids_in_round", "message"),
    [
        (lambda round: jnp.array([0, 2]) + jnp.array([2, 0]) * jnp.where(round > 1, 1, 0), "client 2 twice"),
        *slow_rows((lambda round: jnp.array([0, 8]) + round, "client 9 of 9; give ids from 0 to 8")),
    ],
)
def test_draws_in_later_rounds_are_checked_too(key, federation, averaging, run, ids_in_round, message):
    own_sampling = Sampling(lambda key, round, size, n: (ids_in_round(round), jnp.ones(2, bool)), lambda n_clients: 2)
    with pytest.raises(ValueError, match=message):
        run(averaging, fljax.fedavg.Hyper(), federation, key, 3, sampling=own_sampling)


@pytest.mark.slow
def test_numpys_numbers_are_drawn_as_jaxs(key, federation, averaging):
    own_sampling = Sampling(
        lambda key, round, size, n: ([0, 2], [True, True]), lambda n_clients: 2, (("sampling", "own"),)
    )
    _, metrics = fljax.simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1, sampling=own_sampling)
    np.testing.assert_array_equal(metrics["ids"], [[0, 2]])
