"""Methods that mix the models of the others for each client: the weights in NumPy, and limit laws."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.algorithms.fedamp import attention, fedamp
from fljax.algorithms.fedfomo import FedFomoClient, fedfomo, held_out, helpfulness, mixing, most_helpful
from fljax.client import client_loss, cross_loss
from fljax.rounds.joining import everyone
from fljax.run.one_round import as_traced
from fljax.types import State
from tests import oracle
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, Reference, assert_models, run
from tests.algorithms.test_personal import final, standalone_models
from tests.slow import slow


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedamp", *slow("fedproto", "feddistill")])
def test_without_what_others_teach_each_trains_alone(key, model, work, federation, name):
    method = fljax.ALGORITHMS[name]
    weight = "gamma" if name == "feddistill" else "lam"
    state = final(method(model, work), method.Hyper(lr=0.1, **{weight: 0.0}), federation, key)
    models = state.clients["w"] if name == "feddistill" else state.clients
    chex.assert_trees_all_close(models, standalone_models(model, work, federation, key), rtol=1e-5, atol=1e-6)


def test_fedamps_attention_in_numpy():
    hyper, squared_distances = fedamp.Hyper(alpha=0.3, sigma=2.0), np.array([[0.0, 1, 4], [1, 0, 9], [4, 9, 0]])
    xi = np.asarray(attention(hyper, jnp.asarray(squared_distances, jnp.float32), jnp.array([True, True, False])))
    a, b = 0.15 * np.exp(-0.5), 0.15 * np.exp(-2)
    np.testing.assert_allclose(
        xi, [[1 - a, a, 0], [a, 1 - a, 0], [b, 0.15 * np.exp(-4.5), 1 - b - 0.15 * np.exp(-4.5)]], rtol=1e-5
    )
    xi_of_equal_models = np.asarray(attention(fedamp.Hyper(), jnp.zeros((3, 3)), jnp.ones(3, bool)))
    np.testing.assert_allclose(xi_of_equal_models, [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], atol=1e-6)


def test_fedamp_in_numpy(key, model, federation):
    """Each of a round's participants is held near its mixture of the others, as they came, and of itself."""
    reference = Reference(key, model, federation)
    models, alpha, sigma, lam = reference.everyone(), 0.4, 2.0, 0.2

    def squared_distance(a, b):
        return sum(jax.tree.leaves(oracle.combine(lambda a, b: ((a - b) ** 2).sum(), a, b)))

    for cohort in reference.rounds():
        ids, next_models = [i for i, *_ in cohort], list(models)
        for i, k, _ in cohort:
            xi = [alpha * np.exp(-squared_distance(models[i], models[j]) / sigma) / sigma for j in ids if j != i]
            xi = [w / max(sum(xi), 1) for w in xi]
            mixture = oracle.average([models[j] for j in ids if j != i] + [models[i]], [*xi, 1 - sum(xi)])
            next_models[i] = reference.train(models[i], i, k, mu=lam / alpha, anchor=mixture)
        models = next_models
    hyper = fedamp.Hyper(lr=LR, momentum=MOMENTUM, alpha=alpha, sigma=sigma, lam=lam)
    assert_models(run(fedamp(model, WORK), hyper, federation, key)[0], models)


@pytest.mark.slow
def test_fedfomo_weights_models_that_lower_its_validation_loss(key, model, federation):
    """Row by row against NumPy: who lowers the validation loss by how much for its distance."""
    models = jax.vmap(model.init)(jax.random.split(key, 8))
    train, val = held_out(federation.train)
    np.testing.assert_array_equal(val.size, np.asarray(federation.train.size) // 5)
    rows = np.asarray(federation.train.index[1])[: int(federation.train.size[1])]
    np.testing.assert_array_equal(val.index[1, : int(val.size[1])], rows[4::5])
    np.testing.assert_array_equal(train.index[1, : int(train.size[1])], np.delete(rows, np.s_[4::5]))
    affinity = jnp.eye(8) + jnp.arange(8.0)[None] / 10
    chosen = most_helpful(key, fedfomo.Hyper(explore=0.0), affinity, jnp.arange(8), jnp.arange(8) != 7, 3)
    starts = jax.vmap(model.init)(jax.random.split(jax.random.fold_in(key, 1), 8))
    assert set(np.asarray(chosen[0]).tolist()) == {0, 6, 5}
    value = np.asarray(helpfulness(model, models, val, chosen, starts))
    model_rows, start_rows = (np.asarray(tree.flatten(some_models), np.float64) for some_models in (models, starts))
    losses, start_losses = np.asarray(cross_loss(model, models, val)), np.asarray(client_loss(model, starts, val))
    for i in range(8):
        for j in range(8):
            expected = (start_losses[i] - losses[i, j]) / np.linalg.norm(start_rows[i] - model_rows[j])
            np.testing.assert_allclose(
                value[i, j], expected if j in np.asarray(chosen[i]) else 0.0, rtol=1e-4, atol=1e-6
            )
    p = np.asarray(mixing(jnp.array([[0.0, 2.0, -1.0], [0, -1, -1], [3, 1, 0]])))
    np.testing.assert_allclose(p, [[0, 1, 0], [0, 1, 0], [0.75, 0.25, 0]])


@pytest.mark.slow
def test_fedfomo_takes_nothing_of_those_who_dropped_out(key, model, work, federation):
    """Whatever their models are, the others' are the same; nor are they sent."""
    algorithm, hyper = fedfomo(model, work, n_received=5), fedfomo.Hyper(lr=0.1, explore=0.0)
    models = jax.vmap(model.init)(jax.random.split(key, 8))
    cohort = everyone(key, jnp.int32(0), federation.train)._replace(active=jnp.arange(8) < 3)
    next_round = jax.jit(partial(algorithm.round, key, as_traced(hyper), cohort=cohort))
    results = []
    for scale in (1.0, 1.5):
        changed_models = jax.tree.map(lambda leaf, scale=scale: leaf.at[3:].multiply(scale), models)
        results.append(next_round(state=State(jnp.eye(8), FedFomoClient(changed_models, changed_models))))
    (state, metrics), (state_of_changed, _) = results
    for a, b in zip(jax.tree.leaves(state.clients), jax.tree.leaves(state_of_changed.clients), strict=True):
        np.testing.assert_array_equal(a[:3], b[:3])
    np.testing.assert_array_equal(state.server[:, 3:], jnp.eye(8)[:, 3:])
    n_parameters = tree.size(tree.take(models, jnp.int32(0)))
    n_others = np.where(np.arange(8) < 3, 2, 3)  # of the three who came, one's own needs no sending
    np.testing.assert_array_equal(metrics["downlink"], n_others * n_parameters)


def test_fedfomo_in_numpy(key, model, federation):
    """Half of the clients a round; models are to be better than that which training began from."""
    train, val = held_out(federation.train)
    reference = Reference(key, model, federation._replace(train=train))
    index, size = np.asarray(val.index), np.asarray(val.size)
    trained, starts, affinity, most_weights = reference.everyone(), reference.everyone(), np.eye(8), 0

    def distance(a, b):
        return np.sqrt(sum(jax.tree.leaves(oracle.combine(lambda a, b: np.square(a - b).sum(), a, b))))

    def loss(w, i):
        rows = index[i, : size[i]]
        return oracle.training_loss(w, reference.x[rows], reference.y[rows])

    for cohort in reference.rounds():
        ids, new_starts = [i for i, *_ in cohort], {}
        for i in ids:
            start, likely_helpers = starts[i], sorted(set(ids) - {i}, key=lambda j, i=i: (-affinity[i, j], j))
            sent = [i, *likely_helpers[:2]]
            distances = {j: distance(start, trained[j]) for j in sent}
            value = {j: (loss(start, i) - loss(trained[j], i)) / distances[j] if distances[j] else 0.0 for j in sent}
            weights = {j: v for j, v in value.items() if v > 0}
            new_starts[i] = start
            if weights:
                most_weights = max(most_weights, len(weights))
                new_starts[i] = oracle.average([trained[j] for j in weights], list(weights.values()))
            for j, v in value.items():
                affinity[i, j] += v
        for i, k, _ in cohort:
            starts[i], trained[i] = new_starts[i], oracle.local_sgd(new_starts[i], reference.batches(i, k), LR)
    algorithm = fedfomo(model, WORK, n_received=2)
    deployed, state = run(algorithm, fedfomo.Hyper(lr=LR, explore=0.0), federation, key)
    np.testing.assert_allclose(state.server, affinity, rtol=1e-4, atol=1e-5)
    assert_models(deployed, trained)
    assert most_weights > 1  # several models have weights


@pytest.mark.slow
def test_a_fedfomo_client_that_nobody_helps_starts_again_from_its_last_start(key, model, work, federation):
    """A client whose training made it worse, and who is sent nothing better, begins it once more."""
    starts = jax.vmap(model.init)(jax.random.split(key, 8))
    worse_models = jax.tree.map(lambda leaf: 30 * leaf, starts)
    cohort = everyone(key, jnp.int32(0), federation.train)
    chosen = jnp.arange(8)[:, None]
    value = helpfulness(model, worse_models, held_out(federation.train)[1], chosen, starts)
    assert (np.diagonal(value) < 0).any()
    next_round = jax.jit(partial(fedfomo(model, work, n_received=1).round, cohort=cohort))
    hyper, own_affinity = as_traced(fedfomo.Hyper(lr=1e-6, explore=0.0)), jnp.eye(8)
    next_state = next_round(key, hyper, State(own_affinity, FedFomoClient(worse_models, starts)))[0]
    is_unhelped = ~(np.asarray(next_state.server - own_affinity) > 0).any(1)
    assert is_unhelped.any()
    for next_leaf, start_leaf in zip(jax.tree.leaves(next_state.clients.model), jax.tree.leaves(starts), strict=True):
        np.testing.assert_allclose(next_leaf[is_unhelped], start_leaf[is_unhelped], rtol=1e-3, atol=1e-4)


def test_newcomers_of_methods_without_a_server_model_start_from_the_mean(key, model, work, federation):
    algorithm, hyper = fedamp(model, work), as_traced(fedamp.Hyper(lr=0.1))
    clients = jax.device_get(jax.jit(jax.vmap(model.init))(jax.random.split(key, 8)))
    join = jax.jit(lambda *arguments: tree.stacked(algorithm.join(*arguments)))
    actual = join(key, hyper, State((), clients), federation.train, jnp.int32(0))
    expected = jax.tree.map(lambda leaf: np.broadcast_to(leaf.mean(0), leaf.shape), clients)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)
