"""New clients: what each kind of method gives them, and what must not happen."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedper import fedper
from fljax.algorithms.fesem import fesem
from fljax.algorithms.standalone import standalone
from fljax.client import client_loss, train_clients
from fljax.client.objectives import training_loss
from fljax.client.optimizer import local_optimizer
from fljax.data.holdout import hold_out_clients
from fljax.data.synthetic import linear_groups
from fljax.metrics.evaluate import evaluate
from fljax.models import mlp
from fljax.rounds.joining import held_with_least_loss
from fljax.run import newcomers as module
from fljax.run.newcomers import evaluate_new_clients
from fljax.run.one_round import as_traced, split_key
from fljax.run.simulate import simulate
from fljax.types import ModelTable, State, Work
from tests.algorithms.round_by_round import jitted
from tests.slow import slow

FULL = Work(1, 64)
"""Full batches: nothing is drawn, so a client's place does not matter."""


@pytest.fixture(scope="module")
def parts(federation):
    return hold_out_clients(federation, 0.3, seed=1)


@pytest.mark.slow
def test_the_one_model_of_all_is_tested_as_it_is(key, averaging, parts):
    training, new = parts
    hyper = fljax.fedavg.Hyper(lr=0.1)
    state, _ = simulate(averaging, hyper, training, key, 2)
    expected = evaluate(averaging.predict, tree.everyone(state.server, 3), new.test)
    chex.assert_trees_all_close(evaluate_new_clients(averaging, hyper, state, new, key), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [*slow(standalone), lambda m, w: fedper(m, w, n_personal=2)], ids=["standalone", "fedper"]
)
def test_newcomers_alone_learn_as_in_a_run_of_their_own(key, model, parts, make):
    training, new = parts
    algorithm, hyper = make(model, FULL), fljax.standalone.Hyper(lr=0.2)
    state = jitted(algorithm.init)(split_key(key).init, hyper, training.train)
    expected = simulate(standalone(model, FULL), fljax.standalone.Hyper(lr=0.2), new, key, 4)[1]
    metrics = evaluate_new_clients(algorithm, hyper, state, new, key, n_rounds=4)
    np.testing.assert_allclose(metrics["client_loss"], expected["client_loss"][-1], rtol=1e-5)


@pytest.mark.slow
def test_personal_layers_are_fitted_to_the_servers(key, model, parts):
    training, new = parts
    algorithm, hyper = fedper(model, FULL), as_traced(fljax.fedper.Hyper(lr=0.2))
    state, _ = simulate(algorithm, hyper, training, key, 3)
    # By hand: each round starts at the server's base and the client's head, and of what is trained the head is kept.
    head = tree.broadcast({"fc2": model.init(split_key(key).init)["fc2"]}, 3)
    base = tree.broadcast(state.server, 3)
    keys = jax.random.split(key, 3)
    optimizer = local_optimizer(hyper, FULL, jnp.int32(0))
    for _ in range(2):
        head = {"fc2": train_clients(keys, base | head, new.train, training_loss(model), optimizer, FULL).params["fc2"]}
    expected = evaluate(algorithm.predict, tree.own(base | head), new.test)
    metrics = evaluate_new_clients(algorithm, hyper, state, new, key, n_rounds=2)
    np.testing.assert_allclose(metrics["client_loss"], expected["client_loss"], rtol=1e-5)


@pytest.mark.slow
def test_another_number_of_rounds_does_not_recompile_and_does_matter(key, model, parts):
    training, new = parts
    algorithm, hyper = ditto(model, FULL), fljax.ditto.Hyper(lr=0.2)
    state, _ = simulate(algorithm, hyper, training, key, 2)
    first = evaluate_new_clients(algorithm, hyper, state, new, key, n_rounds=0)
    n_compiled = module.new_models._cache_size()
    last = evaluate_new_clients(algorithm, hyper.replace(lam=0.5), state, new, key, n_rounds=3)
    assert module.new_models._cache_size() == n_compiled
    theta = evaluate(algorithm.predict, tree.everyone(state.server, 3), new.test)
    np.testing.assert_allclose(first["client_loss"], theta["client_loss"], rtol=1e-6)
    assert (last["client_loss"] < first["client_loss"]).all()


@pytest.mark.slow
def test_newcomers_find_the_cluster_of_their_group(key, model):
    training, new = hold_out_clients(linear_groups(12, 2, examples=60), 0.25, seed=3)
    assert len(np.unique(new.group)) == 2
    algorithm, hyper = fesem(model, Work(2, 8)), fljax.fesem.Hyper(lr=0.3)
    state, metrics = simulate(algorithm, hyper, training, key, 8)
    assert metrics["ari"][-1] == 1
    assert evaluate_new_clients(algorithm, hyper, state, new, key)["client_accuracy"].min() > 0.9


def test_the_model_of_least_loss_is_chosen_among_those_that_are_held(key, model, parts):
    _, new = parts

    @jax.jit
    def losses_and_choice(keys, row):
        models = jax.vmap(model.init)(keys)
        losses_of = jax.vmap(lambda i: client_loss(model, ModelTable(models, jnp.full(3, i)), new.train))
        return models, losses_of(jnp.arange(6)), held_with_least_loss(model, ModelTable(models, row), new.train)

    models, loss, chosen = jax.device_get(losses_and_choice(jax.random.split(key, 6), np.array([5, 3, 3, 1, 3, 5])))
    expected = [min((1, 3, 5), key=lambda i, c=c: loss[i, c]) for c in range(3)]
    assert chosen.row.tolist() == expected
    assert expected != loss.argmin(axis=0).tolist()  # a model that nobody holds would have been better for somebody
    chex.assert_trees_all_equal(chosen.params, models)


def test_what_cannot_be_is_refused(key, model, averaging, parts):
    training, new = parts
    with pytest.raises(ValueError, match="n_rounds=-1 is negative; choose n_rounds >= 0"):
        evaluate_new_clients(averaging, fljax.fedavg.Hyper(), State((), ()), new, key, n_rounds=-1)
    algorithm, hyper = fesem(model, FULL)._replace(join=None), as_traced(fljax.fesem.Hyper())
    shapes = jax.eval_shape(algorithm.init, key, hyper, training.train)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with pytest.raises(ValueError, match="deploys to its own 6 clients, not to 3 new ones; give it a join"):
        evaluate_new_clients(algorithm, hyper, state, new, key)
    with pytest.raises(ValueError, match="state is of another method or network; give the state of a run of fedavg"):
        evaluate_new_clients(averaging, fljax.fedavg.Hyper(), state, new, key)


@pytest.mark.parametrize("method", [fljax.fedavg, fljax.ditto, fljax.fedfomo])
def test_a_state_of_another_width_is_refused(key, method, parts):
    training, new = parts
    wide, narrow = (method(mlp((4, 4, 1), (width,), 4), FULL) for width in (6, 5))
    shapes = jax.eval_shape(narrow.init, key, as_traced(method.Hyper()), training.train)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with pytest.raises(
        ValueError, match=f"state is of another method or network; give the state of a run of {method.name}"
    ):
        evaluate_new_clients(wide, method.Hyper(), state, new, key)


@pytest.mark.slow
def test_newcomers_are_met_though_a_run_could_not_begin_with_so_few(key, model, parts):
    """A graph in which each of six clients has four neighbours has no place for three."""
    training, new = parts
    algorithm, hyper = fljax.pgossip(model, FULL, graph="regular"), fljax.pgossip.Hyper(lr=0.1)
    state = algorithm.init(key, hyper, training.train)
    metrics = evaluate_new_clients(algorithm, hyper, state, new, key, n_rounds=0)
    expected = evaluate(algorithm.predict, tree.everyone(tree.row(state.clients, 0), 3), new.test)  # all begin alike
    chex.assert_trees_all_close(metrics, expected, rtol=1e-6)


@pytest.mark.slow
def test_newcomers_that_change_are_given_as_they_are_in_a_round(key, averaging, federation):
    changing = fljax.drift.drifting(federation, fljax.drift.swap_labels(share=1.0, start=1))
    training, new = hold_out_clients(changing, 0.3, seed=1)
    hyper = fljax.fedavg.Hyper(lr=0.1)
    state = jitted(averaging.init)(split_key(key).init, hyper, training.train)
    with pytest.raises(ValueError, match=r"newcomers change .*fljax\.drift\.at\(newcomers, n_rounds - 1\)"):
        evaluate_new_clients(averaging, hyper, state, new, key)
    at_last_round = fljax.drift.at(new, 1)
    metrics = evaluate_new_clients(averaging, hyper, state, at_last_round, key)
    expected = evaluate(averaging.predict, tree.everyone(state.server, 3), at_last_round.test)
    np.testing.assert_allclose(metrics["client_loss"], expected["client_loss"], rtol=1e-6)
