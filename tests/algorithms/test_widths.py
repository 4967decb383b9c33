"""HeteroFL against networks that are as narrow as its clients', and against means over loops of coordinates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.heterofl import heterofl
from fljax.models import cnn, from_functions, mlp, resnet18
from fljax.run.one_round import split_key
from fljax.types import Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.slow import slow

ALL = Work(epochs=2, batch_size=None)  # the order of a client's examples then does not matter
HYPER = heterofl.Hyper(lr=0.1)


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6, 6, 1)).astype(np.float32), rng.integers(4, size=60)
    y[:10] %= 2  # the first client has two classes
    return fljax.federation_from_arrays(x, y, np.repeat(np.arange(6), [5, 5, 10, 10, 15, 15]))


def wide_and_narrow(kind):
    """A network, and its first half as one of its own."""
    if kind == "dense":
        return mlp((6, 6, 1), (7, 5), 4), mlp((6, 6, 1), (4, 3), 4)
    sizes = {"input_shape": (6, 6, 1), "n_classes": 4, "kernel": 3, "padding": "SAME", "dropout": (0.0, 0.0)}
    return cnn(channels=(3, 4), hidden=(5,), **sizes), cnn(channels=(2, 2), hidden=(3,), **sizes)


def first_params(model, key):
    """The model that a run begins with."""
    return model.init(split_key(key).init)


def cut_to(params, narrow):
    """The leaves of a wide network that a narrow one has, by loops over its coordinates."""
    shapes, narrow_params = jax.eval_shape(narrow.init, jax.random.key(0)), {}
    channels = narrow_channels = None
    for name in narrow.layers:
        kernel, shape = np.asarray(params[name]["kernel"]), shapes[name]["kernel"].shape
        rows = range(kernel.shape[-2])
        if channels is not None:  # of each pixel the first channels
            rows = [row for row in rows if row % channels < narrow_channels]
        narrow_kernel = kernel[..., rows, :][..., : shape[-1]]
        assert narrow_kernel.shape == shape
        narrow_params[name] = {"kernel": jnp.asarray(narrow_kernel), "bias": params[name]["bias"][: shape[-1]]}
        channels, narrow_channels = kernel.shape[-1], shape[-1]
    return narrow_params


@pytest.mark.parametrize("kind", ["dense", *slow("convolutional")])
@pytest.mark.parametrize("scaler", [*slow(False), True])
def test_a_client_trains_the_narrow_network(key, federation, kind, scaler):
    wide, narrow = wide_and_narrow(kind)
    server = simulate(heterofl(wide, ALL, rates=(0.5,), scaler=scaler), HYPER, federation, key, 2)[0].server
    start = first_params(wide, key)

    def scaled_narrow(params, x, key):
        """The narrow network, whose hidden layers give double while it trains: linear but for ReLU."""
        factor = 2.0 if scaler and key is not None else 1.0
        hidden = {name: jax.tree.map(lambda w: w * factor, params[name]) for name in narrow.layers[:-1]}
        return narrow.apply(params | hidden, x, key)[0], params

    narrow_alone = narrow._replace(init=lambda key: cut_to(start, narrow), apply=scaled_narrow)
    expected = simulate(fedavg(narrow_alone, ALL), fedavg.Hyper(lr=0.1), federation, key, 2)[0].server
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), cut_to(server, narrow), expected)
    n_changed = jax.tree.map(lambda a, b: int((abs(np.asarray(a) - np.asarray(b)) > 1e-6).sum()), server, start)
    assert 0 < sum(jax.tree.leaves(n_changed)) <= sum(leaf.size for leaf in jax.tree.leaves(expected))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["size", *slow("uniform")])
def test_a_coordinate_is_the_mean_of_those_that_have_it(key, federation, weighting):
    wide, narrow = wide_and_narrow("dense")
    rates, widths = (1.0, 0.5, 0.5), ((7, 5), (4, 3), (4, 3))
    options = {"weighting": weighting, "scaler": False}
    actual = simulate(heterofl(wide, ALL, rates=rates, **options), HYPER, federation, key, 1)[0].server
    start = first_params(wide, key)
    totals, counts = (jax.tree.map(lambda w: np.zeros(w.shape), start) for _ in range(2))
    for client in range(6):
        model = wide if widths[client % 3] == (7, 5) else narrow
        client_model = model._replace(init=lambda key, model=model: cut_to(start, model))
        data = jax.tree.map(lambda leaf, i=client: leaf[i : i + 1], (federation.train.index, federation.train.size))
        one_client = federation._replace(train=federation.train._replace(index=data[0], size=data[1]), group=None)
        one_client = one_client._replace(test=one_client.train, val=None)
        trained = simulate(fedavg(client_model, ALL), fedavg.Hyper(lr=0.1), one_client, key, 1)[0].server
        weight = int(data[1][0]) if weighting == "size" else 1
        for name, leaf in itertools.product(wide.layers, ("kernel", "bias")):
            coordinates = tuple(slice(n) for n in trained[name][leaf].shape)
            totals[name][leaf][coordinates] += weight * np.asarray(trained[name][leaf])
            counts[name][leaf][coordinates] += weight
    expected = jax.tree.map(lambda t, n, w: np.where(n > 0, t / np.maximum(n, 1), w), totals, counts, start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected)


@pytest.mark.slow
def test_of_whole_networks_it_is_fedavg(key, federation):
    wide, _ = wide_and_narrow("convolutional")
    work = Work(1, 4)
    actual = simulate(heterofl(wide, work, rates=(1.0, 1.0)), HYPER, federation, key, 2)
    expected = simulate(fedavg(wide, work), fedavg.Hyper(lr=0.1), federation, key, 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual[0], expected[0])


@pytest.mark.slow
def test_what_nobody_has_stays_and_everybody_sends_what_it_has(key, federation):
    wide, narrow = wide_and_narrow("convolutional")
    n_wide, n_narrow = (sum(w.size for w in jax.tree.leaves(jax.eval_shape(m.init, key))) for m in (wide, narrow))
    _, metrics = fljax.simulate(heterofl(wide, ALL, rates=(1.0, 0.5)), HYPER, federation, key, 1)
    np.testing.assert_array_equal(metrics["uplink"][0], [n_wide, n_narrow] * 3)
    np.testing.assert_array_equal(metrics["downlink"], metrics["uplink"])


def test_absent_classes_are_left_to_others(key, federation):
    """One step of logistic regression by hand: softmax over logits of which those of absent classes are 0."""
    model, work = mlp((6, 6, 1), (), 4), Work(1, None)
    start = first_params(model, key)["fc1"]
    actual = simulate(heterofl(model, work, masked_loss=True), HYPER, federation, key, 1)[0].server["fc1"]
    kernel, bias = np.asarray(start["kernel"], float), np.asarray(start["bias"], float)
    totals, counts = np.zeros((37, 4)), np.zeros(4)
    for index, size in zip(np.asarray(federation.train.index), np.asarray(federation.train.size), strict=True):
        x, y = (np.asarray(leaf)[index[:size]] for leaf in federation.train.pool)
        x, has_class = x.reshape(size, -1).astype(float), np.isin(np.arange(4), y)
        logits = np.where(has_class, x @ kernel + bias, 0)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        logit_gradient = np.where(has_class, (p - np.eye(4)[y]) / size, 0)
        client_model = np.vstack([kernel - 0.1 * x.T @ logit_gradient, bias - 0.1 * logit_gradient.sum(0)])
        totals[:, has_class] += size * client_model[:, has_class]
        counts[has_class] += size
    assert counts[0] > counts[3] > 0
    np.testing.assert_allclose(np.vstack([actual["kernel"], actual["bias"]]), totals / counts, atol=1e-6)


@pytest.mark.slow
def test_widths_that_are_drawn_are_other_ones_in_every_round(key, federation):
    wide, _ = wide_and_narrow("dense")
    _, metrics = fljax.simulate(heterofl(wide, ALL, assignment="dynamic"), HYPER, federation, key, 30)
    uplink = np.asarray(metrics["uplink"])
    values, n_drawn = np.unique(uplink, return_counts=True)
    assert len(values) == 3
    assert n_drawn.min() > 40  # of 180, 60 expected
    assert (np.ptp(uplink, axis=0) > 0).all()


@pytest.mark.slow
def test_a_rolling_part_begins_one_unit_later_in_every_round(key, federation):
    wide, _ = wide_and_narrow("dense")
    work, rates = Work(1, None), (0.5,)  # 4 of 7 units, then 3 of 5
    method, old_params = heterofl(wide, work, rates=rates, units="rolling"), first_params(wide, key)
    for round in range(6):
        new_params = simulate(method, HYPER, federation, key, round + 1)[0].server
        has_first, has_second = (np.isin(np.arange(n), (round + np.arange(k)) % n) for n, k in ((7, 4), (5, 3)))
        expected = {"fc1": has_first, "fc2": np.outer(has_first, has_second), "fc3": has_second}
        for name, has_unit in expected.items():
            change = abs(np.asarray(new_params[name]["kernel"]) - np.asarray(old_params[name]["kernel"]))
            if name == "fc3":
                has_unit, change = has_unit[:, None], change.max(axis=1, keepdims=True)
            is_changed = change.max(axis=0) > 1e-6 if name == "fc1" else change > 1e-6
            assert not (is_changed & ~has_unit).any()
            assert is_changed.sum() > has_unit.sum() / 2  # a unit may be silent for all examples
        old_params = new_params


@pytest.mark.slow
def test_a_client_may_be_tested_with_its_own_part(key, federation):
    wide, narrow = wide_and_narrow("convolutional")
    method = heterofl(wide, ALL, rates=(1.0, 0.5), deployed="own")
    state = simulate(method, HYPER, federation, key, 1)[0]
    models = jax.device_get(jitted(method.deploy)(key, HYPER, state, federation.train))
    np.testing.assert_array_equal(models.row, [0, 1] * 3)
    x = np.random.default_rng(1).normal(size=(3, 6, 6, 1)).astype(np.float32)
    wide_params, narrow_params = (jax.tree.map(lambda leaf, i=i: leaf[i], models.params) for i in (0, 1))
    predict, outputs = (
        jax.jit(method.predict),
        jax.jit(lambda model, params: model.apply(params, x, None)[0], static_argnums=0),
    )
    np.testing.assert_allclose(predict(wide_params, x), outputs(wide, state.server), atol=1e-6)
    np.testing.assert_allclose(predict(narrow_params, x), outputs(narrow, cut_to(state.server, narrow)), atol=1e-6)


@pytest.mark.slow
def test_a_product_a_rounding_above_a_whole_number_is_that_number(key):
    """0.07 * 100 is 7.000000000000001 in floating point."""
    method = heterofl(mlp((2,), (100,), 2), ALL, rates=(0.07,))
    x, y = np.zeros((4, 2), np.float32), np.zeros(4, int)
    federation = fljax.federation_from_arrays(x, y, np.repeat(np.arange(2), 2))
    _, metrics = fljax.simulate(method, HYPER, federation, key, 1)
    np.testing.assert_array_equal(metrics["uplink"][0], [7 * 2 + 7 + 7 * 2 + 2] * 2)


@pytest.mark.parametrize(
    ("model", "choices", "message"),
    [
        (mlp((4,), (3,), 2), {"rates": ()}, r"rates=\(\): give at least one"),
        (mlp((4,), (3,), 2), {"rates": (0.5, 0.0)}, r"each in \(0, 1\]"),
        (mlp((4,), (3,), 2), {"rates": (1.5,)}, r"each in \(0, 1\]"),
        (mlp((4,), (3,), 2), {"assignment": "dynamic", "deployed": "own"}, "use 'global'"),
        (mlp((4,), (3,), 2), {"units": "rolling", "deployed": "own"}, "units='rolling' clients have no fixed part"),
        (mlp((4,), (3,), 2), {"assignment": "drawn"}, "assignment='drawn'"),
        (
            resnet18((8, 8, 3), n_classes=2),
            {},
            "a chain of dense and convolutional layers, and 'stem' is not such a layer",
        ),
        (
            from_functions(lambda key: {"a": jnp.zeros((4, 2))}, lambda params, x: x @ params["a"]),
            {},
            "'a' is not such a layer",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(model, choices, message):
    with pytest.raises(ValueError, match=message):
        heterofl(model, ALL, **choices)


def test_private_examples_do_not_choose_which_outputs_are_trained(model, work):
    private = fljax.compose("heterofl+dp_sgd")
    with pytest.raises(ValueError, match="with masked_loss=True outputs depend on clients' label counts, which get no"):
        private(model, work, masked_loss=True)
    private(model, work)
