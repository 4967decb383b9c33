"""The average of the server's models over rounds equals NumPy's, and changes nothing but what is tested."""

import chex
import jax
import numpy as np
import pytest

import fljax
from fljax.run.one_round import split_key
from fljax.types import Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.slow import slow

WORK, N_ROUNDS = Work(1, 8), 4


@pytest.fixture(scope="module")
def models_by_round(model, federation):
    """The models after each round of FedAvg."""
    hyper, key = fljax.fedavg.Hyper(lr=0.3), jax.random.key(5)
    runs = [simulate(fljax.fedavg(model, WORK), hyper, federation, key, n + 1)[0].server for n in range(N_ROUNDS)]
    return [jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params) for params in runs]


@pytest.mark.parametrize("decay", [0.6, *slow(0.0, 1.0)])
def test_the_deployed_model_is_the_weighted_mean_over_rounds(decay, model, federation, models_by_round):
    """0 is the last model, 1 the plain mean; the initial model has no weight."""
    method, key = fljax.compose("fedavg+ema"), jax.random.key(5)
    algorithm, hyper = method(model, WORK), method.Hyper(lr=0.3, ema_decay=decay)
    state, _ = simulate(algorithm, hyper, federation, key, N_ROUNDS)
    chex.assert_trees_all_close(state.server.own, models_by_round[-1], rtol=1e-6)  # training does not see it
    weight = decay ** np.arange(N_ROUNDS)[::-1]
    expected = jax.tree.map(lambda *rows: np.average(rows, axis=0, weights=weight), *models_by_round)
    deployed = jitted(algorithm.deploy)(split_key(key).deploy, hyper, state, federation.train)
    deployed_model = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), deployed.params)
    chex.assert_trees_all_close(deployed_model, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg+adam", "fedgen"])
def test_it_is_that_of_the_servers_model_whatever_else_the_server_keeps(name, model, federation, key):
    method = fljax.compose(f"{name}+ema")
    algorithm, hyper = method(model, WORK), method.Hyper(lr=0.3)
    plain = fljax.compose(name)(model, WORK)

    def both(key):
        state = algorithm.init(key, hyper, federation.train)
        average = jax.tree.map(lambda leaf: leaf + 1, state.server.average)
        changed = state._replace(server=state.server._replace(average=average))
        return (
            algorithm.deploy(key, hyper, changed, federation.train).params,
            plain.deploy(key, hyper, plain.init(key, hyper, federation.train), federation.train).params,
        )

    averaged, latest = jax.jit(both)(key)
    chex.assert_trees_all_close(averaged, jax.tree.map(lambda leaf: leaf + 1, latest), rtol=1e-6)


def test_new_clients_of_a_method_that_has_its_own_way_to_join_get_the_average_too(model, federation, key):
    method = fljax.compose("fedrod+ema")
    algorithm, hyper, plain = method(model, WORK), method.Hyper(lr=0.3), fljax.fedrod(model, WORK)

    def both(key):
        state = algorithm.init(key, hyper, federation.train)
        average = jax.tree.map(lambda leaf: leaf + 1, state.server.average)
        changed = state._replace(server=state.server._replace(average=average))
        from_average = plain.init(key, hyper, federation.train)._replace(server=average)
        joining = (federation.train, jax.numpy.int32(0))
        return algorithm.join(key, hyper, changed, *joining), plain.join(key, hyper, from_average, *joining)

    chex.assert_trees_all_close(*jax.jit(both)(key), rtol=1e-6)


@pytest.mark.parametrize("name", ["ifca", "scaffold", "dpsgd"])
def test_a_method_without_one_model_refuses_it(name, model):
    with pytest.raises(ValueError, match=rf"^{name}\+ema: its clients do not all start from one model, or its round"):
        fljax.compose(f"{name}+ema")(model, WORK)


def test_a_method_that_tests_other_models_refuses_it(model, federation, key):
    method = fljax.compose("ditto+ema")
    with pytest.raises(ValueError, match=r"^ditto\+ema: clients are tested with models of their own, so an average of"):
        jax.eval_shape(lambda key: method(model, WORK).init(key, method.Hyper(), federation.train), key)
