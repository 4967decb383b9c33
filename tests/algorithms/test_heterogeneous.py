"""Methods whose clients have different networks: their rounds are those of clients with one network each."""

import jax
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.algorithms import ALGORITHMS
from fljax.devices.mesh import over_devices
from fljax.models import from_linen, heterogeneous, logistic_regression
from fljax.models.own_network import FLAGS
from fljax.types import Work
from tests.algorithms.round_by_round import jitted, one_round, scores
from tests.algorithms.table import CASES
from tests.slow import slow

METHODS = [name for name, method in ALGORITHMS.items() if method.heterogeneous]
QUICK = ("fedproto",)
SHAPE, CLASSES, FEATURES = (4, 4, 1), 4, 5


class _Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(FEATURES, name="fc1")(x.reshape(x.shape[0], -1))


class _Plain(nn.Module):
    """The network of each client, as it is written without `heterogeneous`."""

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(CLASSES, name="head")(nn.relu(_Dense(name="logistic_regression")(x)))


PLAIN = from_linen(_Plain(), SHAPE)
BOTH = heterogeneous(SHAPE, ("logistic_regression", "logistic_regression"), FEATURES, CLASSES)


def as_plain(state):
    """A state with each client's own network alone, under the name that the plain network has for it."""
    if not isinstance(state, dict):
        return state
    if FLAGS not in state.get(tree.STATISTICS, {}):
        return {name: as_plain(part) for name, part in state.items()}
    flags = state[tree.STATISTICS][FLAGS]
    first, second = state["logistic_regression"], state["logistic_regression_2"]
    own = jax.tree.map(lambda a, b: np.where(tree.along(flags["logistic_regression"] == 1, a), a, b), first, second)
    head = {"head": state["head"]} if "head" in state else {}
    others = {k: v for k, v in state.items() if k not in (tree.STATISTICS, "head", "logistic_regression_2")}
    return others | head | {"logistic_regression": own}


@pytest.mark.parametrize("name", [*QUICK, *slow(*sorted(set(METHODS) - set(QUICK)))])
def test_rounds_are_those_of_plain_networks_that_start_elsewhere(key, federation, work, name):
    case = CASES[name]
    both, plain = (fljax.compose(name)(model, work, **case.choices) for model in (BOTH, PLAIN))
    hyper = fljax.compose(name).Hyper(**{"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01, **case.numbers})
    state = jitted(both.init)(key, hyper, federation.train)
    alone = state._replace(server=as_plain(state.server), clients=as_plain(jax.device_get(state.clients)))
    rows = jax.tree.leaves(alone.clients)
    assert any(not np.array_equal(row[0], row[1]) for row in rows)
    for number in range(2):
        state, metrics = one_round(both, hyper, federation, key, state, number)
        alone, expected = one_round(plain, hyper, federation, key, alone, number)
        assert metrics.keys() == expected.keys()
        for metric in expected:
            np.testing.assert_allclose(metrics[metric], expected[metric], rtol=1e-5, atol=1e-6, err_msg=metric)
    tested, expected = (scores(*pair[:1], hyper, federation, key, pair[1]) for pair in ((both, state), (plain, alone)))
    for metric in expected:
        np.testing.assert_allclose(tested[metric], expected[metric], rtol=1e-4, atol=1e-5, err_msg=metric)
    ours, theirs = as_plain(jax.device_get(state.clients)), jax.device_get(alone.clients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [3, 8])
def test_clients_side_by_side_and_on_two_devices_are_those_one_by_one(key, federation, work, at_once):
    model = heterogeneous(SHAPE, ("mlp", "logistic_regression"), FEATURES, CLASSES)

    def run(at_once):
        algorithm = fljax.fedproto(model, work._replace(at_once=at_once))
        return fljax.simulate(algorithm, fljax.fedproto.Hyper(lr=0.1), federation, key, n_rounds=3, participation=0.7)

    expected, of_one = run(1), run(at_once)
    with over_devices():
        of_two = run(at_once)
    for outcome in (of_one, of_two):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), outcome, expected)


def test_methods_that_combine_whole_networks_refuse_them():
    known_methods = {"standalone", "fedproto", "fml", "fedgh", "fedmd", "feddistill", "fedkd", "fedtgp", "lg_fedavg"}
    assert set(METHODS) == known_methods
    for name, method in ALGORITHMS.items():
        if name not in METHODS:
            with pytest.raises(ValueError, match=f"^{name}: clients have 2 different networks, and it combines whole"):
                method(BOTH, Work(1, 8), **CASES[name].choices if name in CASES else {})


def test_no_more_than_the_last_layer_is_shared(federation, work):
    whole = fljax.method(heterogeneous=True)(whole_networks)(BOTH, work)
    with pytest.raises(ValueError, match="clients have 2 different networks, so they can share 'head' alone"):
        jax.eval_shape(lambda key: whole.init(key, fljax.LocalHyper(), federation.train), jax.random.key(0))
    lg = fljax.lg_fedavg(BOTH, work, n_shared=2)
    with pytest.raises(ValueError, match="they can share 'head' alone"):
        jax.eval_shape(lambda key: lg.init(key, fljax.LocalHyper(), federation.train), jax.random.key(0))


def whole_networks(model, work):
    """Averages whole networks, whatever its flag says."""
    return fljax.averaging(model, work)


@pytest.mark.slow
def test_clients_have_the_networks_in_turn(key, federation, work):
    model = heterogeneous(SHAPE, ("mlp", logistic_regression(SHAPE, FEATURES), "mlp"), FEATURES, CLASSES)
    assert model.layers == ("mlp", "mlp_2", "mlp_3", "head")
    algorithm = fljax.standalone(model, work)
    state = jitted(algorithm.init)(key, fljax.standalone.Hyper(), federation.train)
    flags = np.stack([state.clients[tree.STATISTICS][FLAGS][name] for name in model.layers[:-1]], axis=1)
    np.testing.assert_array_equal(flags, np.eye(3)[np.arange(8) % 3])
    new_state, _ = one_round(algorithm, fljax.standalone.Hyper(lr=0.1), federation, key, state, 0)
    for i in range(8):
        has_changed = {
            name: not all(
                np.array_equal(a[i], b[i])
                for a, b in zip(*(jax.tree.leaves(s.clients[name]) for s in (state, new_state)), strict=True)
            )
            for name in model.layers
        }
        assert [name for name, changed in has_changed.items() if changed] == [model.layers[i % 3], "head"]
