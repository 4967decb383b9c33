"""Participants that do a part of their work: who does how much, and what methods make of it, in closed form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fednova import fednova
from fljax.algorithms.scaffold import scaffold
from fljax.client import train_clients
from fljax.client.steps import steps_taken
from fljax.numbers import LocalHyper
from fljax.rounds import averaging, clock, partial_work, poisson, stragglers, uniform
from fljax.run.clocked import clocked
from fljax.types import Work
from tests.algorithms.round_by_round import simulate
from tests.rounds.drawn import draw_cohort
from tests.slow import slow_rows

N, EPOCHS = 9, 5
PARTS = np.array([1, 2, 3, 4, 5, 1, 4, 2, 5]) / EPOCHS


def effort_of(sampling, n=20_000):
    return np.asarray(jax.jit(sampling.effort)(jax.random.key(3), jnp.arange(n), jnp.int32(0)))


def test_stragglers_do_whole_epochs_that_are_equally_likely():
    # 0.56 * 25 is a rounding above 14.
    for least_share, n_epochs, n_fewest in ((0.0, 5, 1), (0.4, 5, 2), (1.0, 5, 5), (0.56, 25, 14)):
        epochs = effort_of(stragglers(uniform(), 1.0, least=least_share, epochs=n_epochs)) * n_epochs
        np.testing.assert_allclose(epochs, np.round(epochs), atol=1e-5)
        counts = np.bincount(np.round(epochs).astype(int), minlength=n_epochs + 1)
        assert not counts[:n_fewest].any()
        assert stats.chisquare(counts[n_fewest:]).pvalue > 1e-4 or n_fewest == n_epochs


def test_stragglers_are_a_share_and_do_any_part_between_the_least_and_all():
    effort = effort_of(stragglers(uniform(), 0.3, least=0.25))
    partial_effort = effort[effort < 1]
    assert stats.binomtest(len(partial_effort), len(effort), 0.3).pvalue > 1e-4
    assert stats.kstest(partial_effort, stats.uniform(0.25, 0.75).cdf).pvalue > 1e-4
    assert (effort_of(stragglers(uniform(), 0.0)) == 1).all()


@pytest.mark.slow
def test_what_a_straggler_does_depends_on_its_id_and_the_round_alone():
    sampling = stragglers(uniform(), 0.5)

    def effort(key, ids):
        return sampling.effort(key, ids, jnp.int32(0))

    ids = jnp.array([7, 2, 5])
    np.testing.assert_array_equal(effort(jax.random.key(0), ids)[::-1], effort(jax.random.key(0), ids[::-1]))
    assert (np.asarray(effort(jax.random.key(0), jnp.arange(50)) != effort(jax.random.key(1), jnp.arange(50)))).any()


@pytest.mark.parametrize(("at_once", "batch_size"), [(1, None), *slow_rows((4, 8), (1, 8), (4, None))])
def test_a_part_of_the_epochs_is_the_first_of_them(key, model, federation, batch_size, at_once):
    """Bit for bit what a client with so many epochs in its work trains, whatever the others of its chunk do."""
    data, keys, most_epochs = federation.train, jax.random.split(key, N), 3  # each number of epochs is a program
    effort_shares = np.array([1, 2, 3, 2, 3, 1, 3, 1, 2]) / most_epochs
    start = tree.everyone(jitted_init(model)(key), N)

    def train(work, effort):
        return train_clients(keys, start, data, fljax.client.training_loss(model), optax.sgd(0.1, 0.9), work, **effort)

    trained = jax.jit(lambda effort: train(Work(most_epochs, batch_size, at_once), {"effort": effort}))(
        jnp.float32(effort_shares)
    )
    for epochs in range(1, most_epochs + 1):
        expected = jax.jit(lambda epochs=epochs: train(Work(epochs, batch_size, at_once), {}))()
        clients = np.flatnonzero(np.isclose(effort_shares * most_epochs, epochs))
        assert len(clients)
        for actual_leaf, expected_leaf in zip(jax.tree.leaves(trained), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(
                np.asarray(actual_leaf)[clients], np.asarray(expected_leaf)[clients], rtol=1e-6, atol=1e-7
            )


def jitted_init(model):
    return jax.jit(model.init)


def test_an_epoch_is_cut_short_and_its_loss_is_a_mean_of_what_was_met(key, federation):
    """A loss of constant gradient counts steps in the model; its value is the number of steps before."""
    data, batch_size = federation.train, 4
    size, effort = np.asarray(data.size), np.append(1e-5, np.linspace(0.05, 1, N)[1:])  # of next to nothing one step
    n_full_steps = 2 * -(-size // batch_size)
    steps = np.clip(np.ceil(effort * n_full_steps), 1, n_full_steps).astype(int)
    assert (steps % np.maximum(n_full_steps // 2, 1) != 0).sum() >= 3  # cut within an epoch

    def loss(params, batch, key):
        return -params["w"].sum(), params

    start = tree.everyone({"w": jnp.zeros(1, jnp.float32)}, N)
    trained = jax.jit(
        lambda effort: train_clients(
            jax.random.split(key, N), start, data, loss, optax.sgd(1.0), Work(2, batch_size), effort=effort
        )
    )(jnp.float32(effort))
    np.testing.assert_array_equal(trained.params["w"][:, 0], steps)
    np.testing.assert_array_equal(steps_taken(data.size, Work(2, batch_size), jnp.float32(effort)), steps)
    for i in range(N):
        batch_sizes = [min(batch_size, size[i] - batch_size * (s % (n_full_steps[i] // 2))) for s in range(steps[i])]
        np.testing.assert_allclose(
            trained.loss[i], -np.dot(batch_sizes, np.arange(steps[i])) / sum(batch_sizes), rtol=1e-6
        )


def constant_gradients(model):
    """Client i's loss is linear: its gradient is its mean label, the same wherever it stands and in any full batch."""

    def init(key):
        return {"w": jnp.zeros(1, jnp.float32)}

    def apply(params, x, key):
        return jnp.broadcast_to(params["w"], (x.shape[0], 1)), params

    return model._replace(
        init=init,
        apply=apply,
        layers=("w",),
        loss=lambda logits, y: logits[:, 0] * (1.0 + y.astype(jnp.float32)),
        about=(),
    )


@pytest.mark.slow
def test_fednova_and_scaffold_know_how_many_steps_a_participant_has_taken(key, model, federation):
    """theta - eta tau sum_i p_i g_i with tau = sum_i p_i K_i; SCAFFOLD's c_i is g_i; FedAvg goes sum_i p_i K_i g_i."""
    linear, work, hyper = constant_gradients(model), Work(EPOCHS, None), LocalHyper(lr=0.1)
    size = np.asarray(federation.train.size, np.float64)
    labels = np.asarray(federation.train.pool.y)[np.asarray(federation.train.index)]
    g = np.array([1 + labels[i, : int(n)].mean() for i, n in enumerate(size)])
    p, k = size / size.sum(), EPOCHS * PARTS
    sampling = partial_work(uniform(), PARTS)
    expected = {fedavg: -0.1 * (p * k * g).sum(), fednova: -0.1 * (p * k).sum() * (p * g).sum()}
    for make, theta in expected.items():
        state, metrics = simulate(make(linear, work), hyper, federation, key, 1, sampling=sampling)
        np.testing.assert_allclose(state.server["w"], theta, rtol=1e-5)
        np.testing.assert_allclose(metrics["effort"][0], PARTS, rtol=1e-6)
    algorithm = scaffold(linear, work, control="displacement")
    state, _ = simulate(algorithm, scaffold.Hyper(lr=0.1), federation, key, 1, sampling=sampling)
    np.testing.assert_allclose(np.ravel(jax.tree.leaves(state.clients)[0]), g, rtol=1e-4)


def test_methods_whose_clients_do_not_do_a_part_of_their_work_are_refused(key, model, federation):
    work, sampling = Work(1, None), stragglers(uniform(), 0.5)

    @jax.jit
    def own_loop(cohort):  # is given the effort, and does not ask for it
        start = tree.everyone(jax.device_get(jitted_init(model)(key)), cohort.ids.shape[0])
        return train_clients(cohort.key, start, cohort.data, fljax.client.training_loss(model), optax.sgd(0.1), work)

    own_algorithm = averaging(model, lambda hyper, start, cohort: own_loop(cohort))
    for algorithm, hyper in (
        (fljax.fedsgd(model, work), fljax.fedsgd.Hyper()),
        (fljax.centralized(model, work), fljax.centralized.Hyper()),
        (fljax.ifca(model, work, averaging="gradient"), fljax.ifca.Hyper()),
        (own_algorithm, fljax.fedavg.Hyper()),
    ):
        for _ in range(2):  # what is jitted is traced once
            with pytest.raises(ValueError, match=r"clients cannot do partial work, .* leave --stragglers"):
                fljax.simulate(algorithm, hyper, federation, key, 1, sampling=sampling)


def test_who_takes_part_stays_the_same_and_epsilon_too(key, federation):
    cohort, cohort_of_stragglers = (
        draw_cohort(key, np.int32(2), federation, some_sampling.of(N), None)
        for some_sampling in (poisson(0.5), with_stragglers(0.9))
    )
    np.testing.assert_array_equal(cohort.ids, cohort_of_stragglers.ids)
    np.testing.assert_array_equal(cohort.active, cohort_of_stragglers.active)
    assert cohort.effort is None
    assert cohort_of_stragglers.effort.shape == cohort_of_stragglers.ids.shape
    assert with_stragglers(0.9).is_independent
    assert with_stragglers(0.9) is with_stragglers(0.9)  # one program


def with_stragglers(rate):
    return stragglers(poisson(0.5), rate, epochs=EPOCHS)


def test_late_clients_come_back_with_what_they_have_made_by_the_deadline(federation):
    """By hand: 2 seconds of traffic each, 10 steps; speeds of which one makes all, three a part and one nothing."""
    seconds = [2 + 10 / v for v in (5.0, 2.0, 1.0, 0.7, 0.2)]
    sampling = clock.partial_by_deadline(uniform(), seconds, 6.0, steps=[10] * 5, speed=[5.0, 2.0, 1.0, 0.7, 0.2])
    np.testing.assert_allclose(sampling.effort(jax.random.key(0), jnp.arange(5), 0), [1, 0.8, 0.4, 0.2, 1])
    is_active = sampling.draw(jax.random.key(0), jnp.int32(0), jnp.ones(5, jnp.int32), 5)[1]
    np.testing.assert_array_equal(is_active, [True, True, True, True, False])
    np.testing.assert_allclose(sampling.timing.seconds, [4, 6, 6, 2 + 2 / 0.7, 52])


def test_by_name_a_deadline_takes_whole_steps(model, federation):
    arguments = fedavg(model, Work(2, 4)), LocalHyper(), uniform(), clock_of(late="partial"), federation, 3
    sampling = clocked(*arguments)[1]
    effort = np.asarray(sampling.effort(jax.random.key(0), jnp.arange(N), 0))
    assert (effort < 1).any()
    n_full_steps = 2 * -(-np.asarray(federation.train.size) // 4)
    np.testing.assert_allclose(effort * n_full_steps, np.round(effort * n_full_steps), atol=1e-4)  # whole steps


def clock_of(**options):
    return clock.named.CLOCKS["deadline"](spread=1.0, in_time=0.3, **options)


@pytest.mark.slow
def test_all_clients_do_the_share_of_the_round(key, model, federation):
    """Half of four epochs are the first two; a share above 1 is all."""
    sampling = partial_work(uniform(), lambda round: jnp.where(round < 1, 0.5, 2.0))
    for round, share in ((0, 0.5), (1, 1.0), (7, 1.0)):
        cohort = draw_cohort(key, np.int32(round), federation, sampling.of(federation.train.n_clients), None)
        np.testing.assert_array_equal(cohort.effort, np.full(federation.train.n_clients, share))
    states = [
        simulate(fedavg(model, work), LocalHyper(lr=0.1), federation, key, 1, sampling=some_sampling)[0]
        for work, some_sampling in ((Work(4, None), sampling), (Work(2, None), uniform()))
    ]
    chex.assert_trees_all_equal(*states)
    assert sampling is partial_work(uniform(), dict(sampling.about)["effort"])  # one program


def test_what_is_no_effort_is_refused(key, model, federation):
    with pytest.raises(ValueError, match=r"^effort is called with \(round\), but <lambda> takes \(\)$"):
        partial_work(uniform(), lambda: 0.5)
    for share, shown in (
        (0.0, "0.0"),
        (1.5, "1.5"),
        (np.ones(2), r"\[1.0, 1.0\]"),
        ("a half", "'a half'"),
        (None, "None"),
    ):
        with pytest.raises(
            ValueError, match=rf"^effort=.*{shown}.* of round 0; let it return one share, 0 < effort <= 1$"
        ):
            partial_work(uniform(), lambda round, share=share: share)
    with pytest.raises(ValueError, match=r"rate=1.5 is not a share; choose 0 <= rate <= 1"):
        stragglers(uniform(), 1.5)
    with pytest.raises(ValueError, match=r"least=-1 is not a share"):
        stragglers(uniform(), 0.5, least=-1)
    with pytest.raises(ValueError, match=r"epochs=0"):
        stragglers(uniform(), 0.5, epochs=0)
    with pytest.raises(ValueError, match=r"effort=0 of client 1; choose 0 < effort <= 1"):
        partial_work(uniform(), [1, 0])
    with pytest.raises(ValueError, match=r"already sets partial work"):
        stragglers(partial_work(uniform(), [1, 1]), 0.5)
    with pytest.raises(ValueError, match=r"effort: 2 numbers for 9 clients"):
        partial_work(uniform(), [1, 1]).of(N)
    with pytest.raises(ValueError, match=r"3 seconds, 2 steps and 3 speeds"):
        clock.partial_by_deadline(uniform(), [1, 2, 3], 2.0, steps=[1, 2], speed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"speed=0 of client 1 is not a speed"):
        clock.partial_by_deadline(uniform(), [1, 2], 2.0, steps=[1, 2], speed=[1, 0])
    with pytest.raises(ValueError, match=r"--clock wait and --stragglers both set"):
        clocked(
            fedavg(model, Work(1, 8)), LocalHyper(), with_stragglers(0.5), clock.named.CLOCKS["wait"](), federation, 2
        )
