"""Samplings that see the clients' losses: against NumPy, with every driver, and what their clients send."""

import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.data.federation import select
from fljax.devices.mesh import over_devices
from fljax.drift import drifting, swap_labels
from fljax.drift.stages import at
from fljax.metrics.cost import megabytes_over_rounds, traffic_of_clients
from fljax.metrics.losses import client_losses
from fljax.metrics.target import reach
from fljax.rounds import by_size, power_of_choice
from fljax.rounds.clock import with_availability, with_deadline
from fljax.rounds.cohort import cohort_of, sample_cohort
from fljax.rounds.sampling import Draw, Sampling, ids_by_size
from fljax.run.one_round import first_state, round_keys, run_round
from fljax.types import ModelTable, State
from tests.algorithms.table import CASES

HYPER = fljax.fedavg.Hyper(lr=0.2)
THIRD = 1 / 3  # of the nine clients
SAMPLING = power_of_choice(THIRD, candidates=1.5)
P = 16 * 4 + 4  # parameters of the plainest model


@pytest.fixture(scope="module")
def run(averaging, federation):
    """A run of three rounds: the state before each of them, and the metrics of each."""
    key, one_round = jax.random.key(0), jax.jit(partial(run_round, averaging, SAMPLING.of(9)))
    states, rounds = [first_state(averaging.init, key, HYPER, federation.train)], []
    for r in range(3):
        state, metrics = one_round(HYPER, federation, key, None, states[-1], jnp.int32(r))
        states.append(state)
        rounds.append(jax.tree.map(np.asarray, metrics))
    return states, {name: np.stack([row[name] for row in rounds]) for name in rounds[0]}


def losses_by_numpy(params, data):
    """(clients,) mean cross-entropy of logistic regression."""
    return np.array([losses.mean() for losses in losses_of_examples(params, data)])


def losses_of_examples(params, data):
    """The cross-entropy of each example of each client."""
    layer, losses = params["fc1"], []
    for index, size in zip(np.asarray(data.index), np.asarray(data.size), strict=True):
        x, y = (np.asarray(part)[index[:size]] for part in (data.pool.x, data.pool.y))
        logits = x.reshape(size, -1).astype(np.float64) @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(size), y])
    return losses


def test_the_candidates_with_the_largest_losses_participate(key, federation, run):
    states, metrics = run
    for r in range(3):
        candidates = np.asarray(ids_by_size(round_keys(key, jnp.int32(r)).cohort.ids, federation.train.size, 5))
        losses = losses_by_numpy(states[r].server, federation.train)[candidates]
        np.testing.assert_array_equal(metrics["ids"][r], sorted(candidates[np.argsort(-losses)[:3]]))
        np.testing.assert_array_equal(metrics["candidates"][r], candidates)
    assert len(np.unique(metrics["candidates"], axis=0)) > 1


def test_the_losses_are_those_of_the_deployed_models(key, federation, averaging, run):
    ids = jnp.array([4, 0, 7])
    losses = client_losses(
        averaging, HYPER, key, run[0][-1], federation.train, ids, asked=select(federation.train, ids)
    )
    np.testing.assert_allclose(losses, losses_by_numpy(run[0][-1].server, federation.train)[ids], rtol=1e-5)


@pytest.mark.slow
def test_a_client_without_a_model_comes_first_and_one_without_examples_last(key, federation, averaging):
    size = federation.train.size.at[2].set(0)
    data = federation.train._replace(size=size)
    models = jax.vmap(lambda k: averaging.init(k, HYPER, data).server)(jax.random.split(key, 2))
    table = ModelTable(models, jnp.array([0, 1, 0, -1, 1, 0, 1, 0, 1]))
    algorithm = averaging._replace(deploy=lambda *_: table)
    losses = np.asarray(client_losses(algorithm, HYPER, key, State((), ()), data, jnp.arange(9), asked=data))
    expected = [losses_by_numpy(tree.row(models, r), federation.train) for r in (0, 1)]
    for i in range(9):
        value = {2: np.nan, 3: np.inf}.get(i, expected[int(table.row[i])][i] if i not in (2, 3) else 0)
        np.testing.assert_allclose(losses[i], value, rtol=1e-5)
    ids = jnp.array([8, 3, 1, 2])
    of_some = client_losses(algorithm, HYPER, key, State((), ()), data, ids, asked=select(data, ids))
    np.testing.assert_allclose(of_some, losses[ids], rtol=1e-6)
    draw = power_of_choice(THIRD, candidates=3).draw
    ids, _ = draw(key, jnp.int32(0), size, 3, lambda ids, examples: jnp.asarray(losses)[ids])
    ranked = np.argsort(-np.where(np.isnan(losses), -np.inf, losses))
    np.testing.assert_array_equal(ids, np.sort(ranked[:3]))
    assert 3 in ids
    ids, active = draw(key, jnp.int32(0), size, 8, lambda ids, _: jnp.full(ids.shape, jnp.nan))  # no model works
    assert 2 not in ids
    assert active.all()


@pytest.mark.parametrize("others", [2.0, -5.0])
def test_a_client_whose_loss_is_nan_comes_after_the_others_that_have_examples(key, others):
    size = jnp.array([9, 0, 9, 9, 9, 9])
    losses = jnp.array([others, jnp.inf, jnp.nan, others, -jnp.inf, others])
    draw = power_of_choice(1.0).draw
    for n, expected, participate in ((3, [0, 3, 5], [1, 1, 1]), (4, [0, 2, 3, 5], [1, 1, 1, 1])):
        ids, active = draw(key, jnp.int32(0), size, n, lambda ids, _: losses[ids])
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(active, participate)
    ids, active = draw(key, jnp.int32(0), size, 6, lambda ids, _: losses[ids])
    np.testing.assert_array_equal(ids, range(6))
    np.testing.assert_array_equal(active, ids != 4)


def losses_seen(algorithm, federation, key, state, *asked):
    """A function of the round that returns the losses that a sampling sees if it asks for those of (ids, examples)."""
    losses = []

    def draw(key, round, size, n_places, loss):
        losses[:] = [loss(jnp.array(ids), examples=n) for ids, n in asked]
        return jnp.arange(2), jnp.ones(2, bool)

    sampling = Sampling(draw, lambda n_clients: 2, (("sampling", "own"),), by_loss=True)

    def one_round(r):
        run_round(algorithm, Draw(sampling, 2), HYPER, federation, key, None, state, r)
        return losses

    return jax.jit(one_round)


def test_the_losses_are_those_of_the_data_that_clients_have_in_the_round(key, federation, averaging):
    changing = drifting(federation, swap_labels(classes=(0, 1), share=1.0, start=2))
    state = first_state(averaging.init, key, HYPER, federation.train)
    seen = losses_seen(averaging, changing, key, state, (range(9), None))
    expected = [losses_by_numpy(state.server, at(changing, r).train) for r in (1, 2)]
    for r in (1, 2):
        np.testing.assert_allclose(seen(jnp.int32(r))[0], expected[r - 1], rtol=1e-5)
    assert not np.allclose(*expected)


def test_losses_of_some_examples_are_drawn_for_each_client_in_each_round(key, federation, averaging):
    """Each is the mean over as many examples of the client, all if it has fewer, whoever else is asked."""
    data, n = federation.train, 3
    data = data._replace(size=data.size.at[4].set(2))
    state = first_state(averaging.init, key, HYPER, data)
    models = jax.vmap(lambda k: averaging.init(k, HYPER, data).server)(jax.random.split(key, 2))
    row = np.array([0, 1, 0, 1, 1, 0, 1, 0, 1])
    algorithm = averaging._replace(deploy=lambda *_: ModelTable(models, jnp.asarray(row)))
    seen = losses_seen(algorithm, federation._replace(train=data), key, state, (range(9), n), ([6, 2], n))
    of_all, of_two = map(np.asarray, seen(jnp.int32(0)))
    of_each = [losses_of_examples(tree.row(models, r), data)[i] for i, r in enumerate(row)]
    for loss, some in zip(of_all, of_each, strict=True):
        means = [np.mean(part) for part in itertools.combinations(some, min(n, len(some)))]
        assert np.isclose(means, loss, rtol=1e-5).any()
    np.testing.assert_allclose(of_two, of_all[[6, 2]], rtol=1e-6)
    in_another_round = np.asarray(seen(jnp.int32(1))[0])
    assert (abs(in_another_round - of_all) > 1e-6).sum() == 8  # the fifth client has two examples in all


@pytest.mark.parametrize(("candidates", "n_asked"), [(1.1, 55), (1.11, 56), (2.0, 100), (5.0, 100)])
def test_candidates_are_so_many_per_participant_rounded_up_at_most_all(candidates, n_asked):
    """1.1 times 50 is 55, though as floating-point numbers a little more."""
    asked = []

    def loss(ids, _):
        asked.extend(ids.tolist())
        return jnp.zeros(ids.shape)

    power_of_choice(0.5, candidates).draw(jax.random.key(0), jnp.int32(0), jnp.ones(100, jnp.int32), 50, loss)
    assert len(set(asked)) == len(asked) == n_asked


def test_candidates_may_ask_for_losses_of_some_examples():
    taken = []

    def loss(ids, examples):
        taken.append(examples)
        return -ids.astype(jnp.float32)

    for examples in (None, 7):
        sampling = power_of_choice(0.2, candidates=5, examples=examples)
        sampling.draw(jax.random.key(0), jnp.int32(0), jnp.ones(10, jnp.int32), 2, loss)
        assert dict(sampling.about)["examples"] == examples
    assert taken == [None, 7]


@pytest.mark.slow
def test_one_candidate_per_participant_is_sampling_by_size(key, federation, averaging):
    runs = [
        fljax.simulate(averaging, HYPER, federation, key, 2, sampling=sampling)
        for sampling in (power_of_choice(THIRD, candidates=1), by_size(THIRD))
    ]
    chex.assert_trees_all_equal(runs[0][0], runs[1][0])
    np.testing.assert_array_equal(runs[0][1]["ids"], runs[1][1]["ids"])


def test_candidates_receive_a_model_and_send_a_number(run):
    metrics = run[1]
    np.testing.assert_array_equal(metrics["uplink"], np.full((3, 3), P + 1.0))
    traffic = traffic_of_clients(metrics, 9)
    n_asked = np.bincount(metrics["candidates"].ravel(), minlength=9)
    n_trained = np.bincount(metrics["ids"].ravel(), minlength=9)
    np.testing.assert_allclose(traffic.downlink, 4.0 * P * n_asked)
    np.testing.assert_allclose(traffic.uplink, 4.0 * (P * n_trained + n_asked))
    for name, total in traffic._asdict().items():
        over_rounds = megabytes_over_rounds(metrics, name, 9)
        np.testing.assert_allclose(over_rounds[-1], total.mean() / 1e6)
        np.testing.assert_allclose(over_rounds, over_rounds[0] * np.arange(1, 4))
    reached = reach(metrics | {"accuracy_macro": np.array([0.0, 0.5, 0.5])}, 0.5, n_clients=9)
    assert reached.megabytes_down == pytest.approx(megabytes_over_rounds(metrics, "downlink", 9)[1])


def test_a_candidate_that_drops_out_has_sent_its_loss_alone(run):
    metrics = {name: value[:1] for name, value in run[1].items()}
    active = np.array([[True, False, True]])
    traffic = traffic_of_clients(metrics | {"active": active}, 9)
    assert traffic.uplink[metrics["ids"][0, 1]] == 4
    received = metrics | {"active": active, "downlink": np.array([[10.0, 100, 30]])}
    of_idle = np.setdiff1d(metrics["candidates"], metrics["ids"][active])
    np.testing.assert_array_equal(traffic_of_clients(received, 9).downlink[of_idle], 4 * 20)  # the others' mean
    nobody = traffic_of_clients(metrics | {"active": np.zeros((1, 3), bool)}, 9)
    np.testing.assert_array_equal(nobody.downlink, 0)
    assert nobody.uplink.sum() == 4 * 5


def test_clients_that_are_not_there_are_not_asked(key, federation, averaging):
    there = jnp.arange(9) % 2 == 0
    draw, state = power_of_choice(THIRD, candidates=3).of(9), first_state(averaging.init, key, HYPER, federation.train)
    one_round = jax.jit(partial(run_round, averaging, draw))
    _, metrics = one_round(HYPER, federation._replace(there=there), key, None, state, jnp.int32(0))
    np.testing.assert_array_equal(metrics["candidates"], np.where(np.arange(9) % 2 == 0, np.arange(9), -1))
    assert (
        traffic_of_clients({name: np.asarray(value)[None] for name, value in metrics.items()}, 9).uplink[1::2].sum()
        == 0
    )


@pytest.mark.slow
def test_who_is_late_is_missing(key, federation, averaging, run):
    one_round = jax.jit(partial(run_round, averaging, with_deadline(SAMPLING, [*range(1, 10)], 8).of(9)))
    for r in range(3):
        metrics = one_round(HYPER, federation, key, None, run[0][r], jnp.int32(r))[1]
        np.testing.assert_array_equal(metrics["ids"], run[1]["ids"][r])
        np.testing.assert_array_equal(metrics["candidates"], run[1]["candidates"][r])
        np.testing.assert_array_equal(metrics["active"], metrics["ids"] < 8)
        assert metrics["n_missing"] == 3 - metrics["active"].sum()


LOSSES = np.array([3.0, 9.0, 1.0, 8.0, 2.0, 7.0, 6.0, 4.0, 5.0], np.float32)


def losses_given(ids, examples=None):
    return jnp.asarray(LOSSES)[ids]


def test_who_does_not_answer_sends_no_loss_and_is_not_chosen(key, federation):
    """The largest losses of those candidates that are there and available; the round does not wait for the others."""
    there = np.arange(9) != 3
    some_there = federation._replace(there=jnp.asarray(there))
    sampling = with_deadline(with_availability(power_of_choice(THIRD, candidates=1.5), [0.5] * 9), [1] * 9, 1)

    @jax.jit
    def cohort(r):
        drawn = cohort_of(round_keys(key, r).cohort, r, some_there, sampling.of(9), None, losses_given)
        return drawn.ids, drawn.active, drawn.candidates, drawn.n_missing

    n_present, n_answers = [], []
    for r in range(30):
        ids, active, candidates, n_missing = map(np.asarray, cohort(jnp.int32(r)))
        answered = candidates[candidates >= 0]
        asked = np.asarray(ids_by_size(round_keys(key, jnp.int32(r)).cohort.ids, federation.train.size, 5))
        assert set(answered) <= set(asked) - {3}
        np.testing.assert_array_equal(ids[active], np.sort(answered[np.argsort(-LOSSES[answered])[:3]]))
        assert n_missing == 0
        n_present.append(active.sum())
        n_answers.append(len(answered))
    np.testing.assert_array_equal(n_present, np.minimum(n_answers, 3))
    assert {0, 1, 2, 4} <= set(n_answers) <= {0, 1, 2, 3, 4, 5}


def test_who_is_not_available_is_missing_if_it_was_chosen_without_its_loss(key, federation):
    """Whichever of two limits it does not keep."""
    some_examples = []

    def draw(key, round, size, n, loss):
        loss(jnp.array([0, 1]), examples=7)
        return jnp.array([4, 5]), jnp.ones(2, bool)

    def loss_of(ids, examples):
        some_examples.append(examples)
        return losses_given(ids)

    own_sampling = Sampling(draw, lambda n_clients: 2, (("sampling", "own"),), by_loss=True)
    sampling = with_availability(with_availability(own_sampling, [0.5] * 5 + [1] * 4), [1] * 5 + [0.5] * 4)
    sampling = with_deadline(sampling, [1] * 9, 1)

    @jax.jit
    def cohort(r):
        drawn = cohort_of(round_keys(key, r).cohort, r, federation, sampling.of(9), None, loss_of)
        return drawn.active, drawn.n_missing, drawn.candidates

    drawn = [cohort(jnp.int32(r)) for r in range(20)]
    assert {int(active.sum()) for active, _, _ in drawn} == {0, 1, 2}
    assert all(n_missing == 2 - active.sum() for active, n_missing, _ in drawn)
    assert {tuple(np.asarray(ids).tolist()) for *_, ids in drawn} == {(0, 1), (0, -1), (-1, 1), (-1, -1)}
    assert set(some_examples) == {7}


def loss_of_each(key, round, size, n, loss):
    return jnp.sort(jax.lax.top_k(-loss(jnp.arange(size.shape[0])), n)[1]), jnp.ones(n, bool)


@pytest.mark.slow
def test_who_participates_unasked_sends_no_loss(key, federation, averaging):
    def draw(key, round, size, n, loss):
        loss([2, 3])
        loss(jnp.array([7, -1, 3]))
        return jnp.array([8, 3]), jnp.ones(2, bool)

    own_sampling = Sampling(draw, lambda n_clients: 2, (("sampling", "own"),), by_loss=True)
    _, metrics = fljax.simulate(averaging, HYPER, federation, key, 1, sampling=own_sampling)
    np.testing.assert_array_equal(metrics["candidates"], [[2, 3, 7, -1, 3]])
    np.testing.assert_array_equal(metrics["ids"], [[3, 8]])
    np.testing.assert_array_equal(metrics["uplink"], [[P + 1, P]])
    np.testing.assert_array_equal(traffic_of_clients(metrics, 9).uplink / 4, [0, 0, 1, P + 1, 0, 0, 0, 1, P])


def test_a_sampling_of_ones_own_sees_the_losses(key, federation, averaging):
    own_sampling = Sampling(loss_of_each, lambda n_clients: 2, (("sampling", "easiest"),), by_loss=True)
    _, metrics = fljax.simulate(averaging, HYPER, federation, key, 1, sampling=own_sampling)
    begin = first_state(averaging.init, key, HYPER, federation.train)
    easiest = np.argsort(losses_by_numpy(begin.server, federation.train))[:2]
    np.testing.assert_array_equal(metrics["ids"], [sorted(easiest)])
    np.testing.assert_array_equal(metrics["candidates"], [np.arange(9)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: power_of_choice(0.5, candidates=0.5),
            "candidates=0.5 per participant; choose a finite number >= 1",
        ),
        (lambda: power_of_choice(0.5, candidates=float("inf")), "candidates=inf per participant; choose a finite"),
        (lambda: power_of_choice(0.5, examples=0), "examples=0 is not positive; choose examples >= 1, or None"),
        (lambda: power_of_choice(0.5, candidates=float("nan")), "candidates=nan"),
        (lambda: power_of_choice(0.0), "participation=0.0 is not a share"),
    ],
)
def test_a_power_of_choice_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def asks(ids):
    """A draw that asks for the losses of ``ids(size)``."""

    def draw(key, round, size, n, loss):
        loss(ids(size))
        return jnp.arange(n), jnp.ones(n, bool)

    return draw


def asks_in(transformation):
    """A draw that asks for losses inside of a transformation."""

    def draw(key, round, size, n, loss):
        transformation(lambda i: loss(jnp.arange(2) + i)[0], size.shape[0] + round)
        return jnp.arange(n), jnp.ones(n, bool)

    return draw


@pytest.mark.parametrize(
    ("draw", "by_loss", "message"),
    [
        (asks(lambda size: 3), True, r"asks for the losses of \(\) of int32; give ids \(m,\), whole numbers"),
        (asks(lambda size: size > 1), True, r"asks for the losses of \(9,\) of bool"),
        (asks(lambda size: "all"), True, "asks for the losses of a str"),
        (asks(lambda size: [0, 9]), True, "asks for the loss of client 9; give ids from 0 to 8, or -1 for nobody"),
        (asks(lambda size: [-2]), True, "asks for the loss of client -2"),
        (
            lambda key, round, size, n: (jnp.arange(n), jnp.ones(n, bool)),
            True,
            r"draw cannot be called with \(key, round, size, n, loss\); give it these arguments",
        ),
        (
            loss_of_each,
            False,
            r"draw cannot be called with \(key, round, size, n\); give it these arguments, or say by_loss=True",
        ),
        (asks_in(lambda f, i: jax.vmap(f)(i + jnp.arange(2))), True, "asks for losses inside a function of JAX"),
        (asks_in(lambda f, i: jax.lax.map(f, i + jnp.arange(2))), True, "asks for losses inside a function of JAX"),
        (
            asks_in(lambda f, i: jax.lax.cond(i > 0, f, lambda i: 0.0, i)),
            True,
            "call loss outside of it, with the ids of all clients that are asked",
        ),
    ],
)
def test_a_draw_that_asks_wrongly_is_refused(key, federation, averaging, draw, by_loss, message):
    sampling = Sampling(draw, lambda n_clients: 2, (("sampling", "own"),), by_loss=by_loss)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            lambda key: fljax.simulate(averaging, HYPER, federation, key, 1, sampling=sampling)[1]["ids"], key
        )


def test_cohorts_by_loss_need_models(key, federation):
    with pytest.raises(ValueError, match="chooses clients by their losses, but there is no model"):
        sample_cohort(key, jnp.int32(0), federation, power_of_choice(0.5).of(9), None)


def test_epsilon_does_not_hold_for_clients_that_are_chosen_by_loss(key, federation, model):
    private = fljax.compose("fedavg+client_dp")
    with pytest.raises(ValueError, match="asks clients for their losses, which have no noise"):
        fljax.simulate(
            private(model, fljax.Work(1, 8)), private.Hyper(), federation, key, 1, sampling=power_of_choice(0.5)
        )


@pytest.mark.slow
def test_a_resumed_run_in_a_folder_is_the_run(federation, averaging, run, tmp_path):
    for n_rounds in (1, 3):
        trained = fljax.train(
            averaging, HYPER, federation, jax.random.key(0), n_rounds, sampling=SAMPLING, folder=tmp_path
        )
    for name in ("ids", "candidates", "uplink"):
        np.testing.assert_array_equal(trained.metrics[name], run[1][name])
    chex.assert_trees_all_close(trained.state, run[0][-1], rtol=1e-6)


@pytest.mark.slow
def test_runs_of_a_sweep_choose_by_their_own_losses(key, federation, averaging):
    rates = [0.05, 0.5]
    swept = fljax.sweep(averaging, fljax.fedavg.Hyper(lr=rates), federation, key, 1, 4, sampling=SAMPLING)
    for point, lr in enumerate(rates):
        _, metrics = fljax.simulate(
            averaging, fljax.fedavg.Hyper(lr=lr), federation, jax.random.fold_in(key, 0), 4, sampling=SAMPLING
        )
        for name in ("ids", "candidates", "uplink"):
            np.testing.assert_array_equal(swept[name][point, 0], metrics[name])
    assert (np.asarray(swept["ids"])[0] != np.asarray(swept["ids"])[1]).any()


@pytest.mark.slow
def test_over_devices_the_same_clients_are_chosen(federation, averaging, run):
    with over_devices():
        _, metrics = fljax.simulate(averaging, HYPER, federation, jax.random.key(0), 3, sampling=SAMPLING)
    for name in ("ids", "candidates"):
        np.testing.assert_array_equal(metrics[name], run[1][name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_method_can_be_asked_for_losses(key, federation, model, name):
    case = CASES[name]
    algorithm, hyper = case.make(model, fljax.Work(1, 8)), case.hyper
    state = jax.eval_shape(partial(first_state, algorithm.init), key, hyper, federation.train)
    ids = jnp.zeros(4, jnp.int32)
    losses = jax.eval_shape(
        partial(client_losses, algorithm), hyper, key, state, federation.train, ids, select(federation.train, ids)
    )
    assert (losses.shape, losses.dtype) == ((4,), jnp.float32)
