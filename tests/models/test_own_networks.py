"""A user's networks in linen, nnx and plain functions: dropout, running statistics, adapters."""

import functools
import inspect
import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file

import fljax
from fljax import tree
from fljax.algorithms.fedbn import _normalisations
from fljax.catalogue.entries import entry
from fljax.catalogue.own import find, kind_of_file
from fljax.models import from_functions, from_linen, from_nnx, lora, mlp, only_trained
from fljax.models.own import as_model
from tests.algorithms.round_by_round import simulate
from tests.slow import slow_rows


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool):
        x = nn.BatchNorm(use_running_average=not training)(nn.Dense(8)(x.reshape(x.shape[0], -1)))
        return nn.Dense(4)(nn.Dropout(0.3, deterministic=not training)(nn.relu(x)))


class Nnx(nnx.Module):
    def __init__(self, n_inputs, *, rngs):
        self.first = nnx.Linear(n_inputs, 8, rngs=rngs)
        self.bn = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.body = nnx.List([nnx.Linear(8, 8, rngs=rngs)])
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = self.drop(nnx.relu(self.bn(self.first(x.reshape(x.shape[0], -1)))))
        for layer in self.body:
            x = layer(x)
        return self.last(x)


def make_nnx(rngs):
    return Nnx(9, rngs=rngs)


LINEN, NNX = from_linen(Linen(), (3, 3, 1)), from_nnx(make_nnx, (3, 3, 1))


X = np.random.default_rng(1).normal(size=(16, 3, 3, 1)).astype(np.float32)


@pytest.mark.slow
def test_an_nnx_module_is_its_arrays(key):
    assert NNX.layers == ("first", "bn", "body", "last")
    params = jax.jit(NNX.init)(key)
    assert params["batch_stats"]["bn"]["mean"].shape == (8,)
    module = make_nnx(nnx.Rngs(key))
    module.eval()
    outputs, params_after = NNX.apply(params, X, None)
    assert params_after is params
    np.testing.assert_allclose(outputs, module(X), rtol=1e-6)
    module.train()
    module(X)
    training_outputs, updated = NNX.apply(params, X, key)
    np.testing.assert_allclose(updated["batch_stats"]["bn"]["mean"], module.bn.mean.get_value(), rtol=1e-6)
    np.testing.assert_allclose(updated["batch_stats"]["bn"]["var"], module.bn.var.get_value(), rtol=1e-6)
    other_outputs, _ = NNX.apply(params, X, jax.random.key(1))
    assert np.abs(np.asarray(training_outputs) - other_outputs).max() > 0.01  # another key, other units dropped
    np.testing.assert_array_equal(training_outputs, NNX.apply(params, X, key)[0])
    jax.tree.map(np.testing.assert_array_equal, tree.split_statistics(updated)[0], tree.split_statistics(params)[0])


def in_plain_flax(name, folder, client, x):
    """Logits of an exported model by flax alone, read as the docstring of `export_models` says."""
    if name == "linen":
        params = unflatten_dict(load_file(folder / f"client_{client}.safetensors"), sep=".")
        statistics = params.pop("batch_stats")
        return Linen().apply({"params": params, "batch_stats": statistics}, x, training=False)
    module = make_nnx(nnx.Rngs(7))
    module.eval()
    example = re.findall(r"^    (stored, held.*?)\n\n", inspect.getdoc(fljax.export_models), re.MULTILINE | re.DOTALL)[
        0
    ]
    code = textwrap.dedent(f"    {example}").replace("models/client_3", str(folder / f"client_{client}"))
    exec(code, {"nnx": nnx, "load_file": load_file, "module": module})
    return nnx.jit(lambda module, x: module(x))(module, x)  # compiled as ours: one by one, operations round otherwise


@pytest.mark.slow
def test_an_exported_nnx_model_is_the_same_in_plain_flax(key, tmp_path):
    @jax.jit
    def train_once(key):
        trained = NNX.apply(NNX.init(key), X, key)[1]  # with other running statistics than at the beginning
        return trained, NNX.apply(trained, X, None)[0]

    trained, logits = jax.device_get(train_once(key))
    models = fljax.ModelTable(jax.tree.map(lambda leaf: leaf[None], trained), np.zeros(1, np.int32))
    fljax.export_models(models, tmp_path)
    np.testing.assert_allclose(in_plain_flax("nnx", tmp_path, 0, X), logits, rtol=1e-6)


def test_what_an_nnx_module_would_lose_is_refused():
    class Cached(nnx.Module):
        def __init__(self, rngs):
            self.fc, self.seen = nnx.Linear(4, 2, rngs=rngs), nnx.Cache(jnp.zeros(3))

        def __call__(self, x):
            return self.fc(x)

    with pytest.raises(ValueError, match="Cached keeps Cache"):
        from_nnx(Cached, (4,))
    with pytest.raises(ValueError, match=r"Nnx cannot be called with a batch of examples of shape \(4,\)"):
        from_nnx(make_nnx, (4,))
    with pytest.raises(ValueError, match="has no 'head'"):
        from_nnx(make_nnx, (9,), ("head",))


def test_the_same_nnx_module_is_the_same_model():
    assert from_nnx(make_nnx, (3, 3, 1)) is NNX
    assert from_nnx(make_nnx, [3, 3, 1], input_dtype="float32") is NNX

    class Unhashable:
        __hash__ = None

        def __call__(self, rngs):
            return nnx.Linear(9, 2, rngs=rngs)

    class Flat(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(9, 2, rngs=rngs)

        def __call__(self, x):
            return self.fc(x.reshape(x.shape[0], -1))

    class Makes(Unhashable):
        def __call__(self, rngs):
            return Flat(rngs)

    assert from_nnx(Makes(), (3, 3, 1)).layers == ("fc",)


def test_what_fails_in_one_of_the_modes_is_refused_at_once():
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            if train:
                x = x + jax.random.normal(self.make_rng("noise"), x.shape)
            return nn.Dense(2)(x)

    class ByBatch(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=False)(x))

    class Odd(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(x.shape[3])(x)

    class Sure(nn.Module):
        @nn.compact
        def __call__(self, x):
            assert x.shape[1] == 5
            return nn.Dense(2)(x)

    for module, reason in ((Noisy(), "noise"), (ByBatch(), "batch_stats"), (Odd(), "range"), (Sure(), "")):
        text = f"{type(module).__name__} cannot be called with a batch .*{reason}.*test_own_networks.py, line [0-9]+"
        with pytest.raises(ValueError, match=text):
            from_linen(module, (4,))
    with pytest.raises(ValueError, match=r"module is None, not a Module; give a flax\.linen module"):
        from_linen(None, (8,))
    with pytest.raises(ValueError, match="input_shape=8 is not a tuple"):
        from_linen(Sure(), 8)


@pytest.mark.parametrize(("model", "name"), [(LINEN, "BatchNorm_0"), (NNX, "bn")])
def test_fedbn_keeps_every_normalisation_whatever_its_name(key, model, name):
    assert _normalisations(model) == {(name,)}


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 3, 3, 1)).astype(np.float32), rng.integers(4, size=160)
    x[..., 0] += np.eye(9, dtype=np.float32).reshape(9, 3, 3)[y] * 3
    return fljax.federation_from_arrays(x, y, np.arange(160) % 4)


@pytest.mark.parametrize(
    ("other_init", "message"),
    [
        (mlp((3, 3, 1), (7,), 4).init, r'"kernel" in "/fc1", .* \(9, 5\), .* \(9, 7\)'),
        (lambda key: {"fc1": {"bias": jnp.zeros(5)}}, '"kernel" in scope "/fc1"'),
    ],
)
def test_a_warm_start_from_another_network_is_refused_in_a_sentence(key, federation, other_init, message):
    """Before anything is compiled, by what flax found, without its address and its traceback."""
    model = mlp((3, 3, 1), (5,), 4)
    warm_model = model._replace(init=lambda key: model.init(key) | {"fc1": other_init(key)["fc1"]})
    with pytest.raises(ValueError, match=f"params or examples do not fit this network: .*{message}") as error:
        fljax.simulate(fljax.fedavg(warm_model, fljax.Work(1, 8)), fljax.fedavg.Hyper(), federation, key, n_rounds=1)
    assert "http" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("nnx", "fedbn"),
        *(
            pytest.param(name, method, marks=pytest.mark.slow)
            for name in ("linen", "nnx")
            for method in ("fedavg", "fedbn", "ditto", "ifca")
            if (name, method) != ("nnx", "fedbn")
        ),
    ],
)
def test_own_networks_train_under_every_kind_of_method_and_are_the_same_in_plain_flax(
    key, federation, name, method, tmp_path
):
    model = {"linen": LINEN, "nnx": NNX}[name]
    choices = {"n_clusters": 2} if method == "ifca" else {}
    algorithm = fljax.ALGORITHMS[method](model, fljax.Work(4, 8), **choices)
    hyper = algorithm_hyper(method)
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 8, evaluate_every=8)
    assert metrics["ok"].all()
    assert float(metrics["accuracy_macro"][-1]) > 0.6  # four classes
    if method == "fedbn":
        normalisation = [path for path, _ in jax.tree_util.tree_leaves_with_path(state.clients)]
        assert len(normalisation) == 4  # scale, bias, mean and variance of each client's own
    models, x = fljax.deployed(algorithm, hyper, state, federation, key), federation.test.pool.x
    fljax.export_models(models, tmp_path)
    predict = jax.jit(algorithm.predict)
    for client in range(4):
        rows = np.asarray(federation.test.index)[client, : int(federation.test.size[client])]
        logits = in_plain_flax(name, tmp_path, client, x)
        expected = predict(fljax.client_model(models, client), x)
        np.testing.assert_allclose(logits, expected, rtol=1e-5)
        accuracy = np.mean(np.argmax(logits[rows], axis=1) == np.asarray(federation.test.pool.y)[rows])
        assert float(accuracy) == pytest.approx(float(metrics["client_accuracy"][-1, client]), abs=1e-6)


def algorithm_hyper(method):
    return fljax.ALGORITHMS[method].Hyper(lr=0.1)


def test_plain_functions(key):
    def init(key):
        return {"second": jnp.ones((9, 5)), "first": jnp.ones((5, 4))}

    model = from_functions(init, lambda params, x: x @ params["second"] @ params["first"])
    assert model.layers == ("second", "first")
    assert from_functions(init, model.apply).layers == model.layers
    assert from_functions(init, model.apply, ["first", "second"]) is from_functions(
        init, model.apply, ("first", "second")
    )
    outputs = jax.jit(lambda key: model.apply(model.init(key), jnp.ones((2, 9)), key)[0])(key)
    np.testing.assert_array_equal(outputs, np.full((2, 4), 45.0, np.float32))
    with pytest.raises(ValueError, match="init returns a"):
        from_functions(lambda key: jnp.zeros(3), lambda params, x: x)


def by_keyword(params, x, *, scale=1.0):
    return scale * x @ params["fc"]


def by_default(params, x, scale=1.0):
    return scale * x @ params["fc"]


def with_key(params, x, scale, key):
    return by_default(params, x, scale) + (0.0 if key is None else 100.0)


def with_own_word_for_key(params, x, rng):
    return with_key(params, x, 2.0, rng)


@pytest.mark.parametrize(
    ("apply", "expected", "expected_with_key"),
    [
        (by_keyword, 3.0, 3.0),
        (by_default, 3.0, 3.0),
        (functools.partial(by_default, scale=2.0), 6.0, 6.0),
        (functools.partial(with_key, scale=2.0), 6.0, 106.0),
        (with_own_word_for_key, 6.0, 106.0),
        (lambda params, x, key=None: with_key(params, x, 1.0, key), 3.0, 103.0),
    ],
)
def test_only_what_asks_for_the_key_gets_it(apply, expected, expected_with_key, key):
    model = from_functions(lambda key: {"fc": jnp.ones((3, 1))}, apply)
    for key_or_none, expected_output in ((None, expected), (key, expected_with_key)):
        np.testing.assert_array_equal(
            model.apply(model.init(key), jnp.ones((1, 3)), key_or_none)[0], [[expected_output]]
        )


def test_a_function_that_does_not_hash_is_a_network_too():
    class Linear:
        __hash__ = None

        def __call__(self, params, x):
            return x @ params["fc"]

    model = fljax.from_functions(lambda key: {"fc": jnp.ones((3, 2))}, Linear())
    assert model.layers == ("fc",)
    np.testing.assert_array_equal(model.apply({"fc": np.eye(3)}, np.eye(3), None)[0], np.eye(3))


def test_what_a_function_needs_besides_is_named():
    def apply_with_bend(params, x, key, *, bend, width=3):
        return x

    for apply, name in ((with_key, "scale"), (apply_with_bend, "bend"), (lambda params, x, rng, more: x, "more")):
        with pytest.raises(ValueError, match=f"apply needs {name} besides params, x and key"):
            from_functions(lambda key: {"fc": jnp.ones((3, 1))}, apply)


def test_only_a_named_subtree_is_trained_and_sent(key, federation):
    network = mlp((3, 3, 1), (8,), 4)
    base = jax.jit(network.init)(key)
    model = only_trained(network, base, ("fc2",))
    assert model.layers == ("fc2",)
    algorithm = fljax.fedavg(model, fljax.Work(1, 8))
    state, metrics = simulate(algorithm, fljax.fedavg.Hyper(lr=0.1), federation, key, 2)
    assert set(state.server) == {"fc2"}
    np.testing.assert_array_equal(metrics["uplink"], 8 * 4 + 4)
    expected, actual = jax.jit(
        lambda server: [
            some_model.apply(params, X, None)[0] for some_model, params in ((network, base | server), (model, server))
        ]
    )(state.server)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="name one or more"):
        only_trained(network, base, ("fc3",))
    with pytest.raises(ValueError, match="other shapes"):
        only_trained(network, jax.jit(mlp((3, 3, 1), (9,), 4).init)(key), ("fc2",))
    with pytest.raises(ValueError, match="other shapes"):
        only_trained(network, jax.tree.map(lambda leaf: 1.0, base), ("fc2",))


@pytest.mark.parametrize(
    ("layer", "shape", "inputs", "outputs"),
    [
        (nn.Conv(6, (3, 3)), (5, 5, 4), 36, 6),
        (nn.DenseGeneral(5, axis=(-2, -1)), (2, 3), 6, 5),
        *slow_rows((nn.Conv(6, (3, 3), use_bias=False), (5, 5, 4), 36, 6), (nn.DenseGeneral((2, 3)), (7,), 7, 6)),
    ],
    ids=["conv", "of heads", "conv without bias", "heads"],
)
def test_adapters_of_any_kernel_are_inputs_by_rank_by_outputs(key, layer, shape, inputs, outputs):
    class Net(nn.Module):
        one: nn.Module

        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(self.one(x).reshape(x.shape[0], -1))

    network = from_linen(Net(layer), shape)
    base = network.init(key)
    model = lora(network, base, rank=2, layers=("one",))
    pair = model.init(key)["one"]["kernel"]
    assert (pair["a"].shape, pair["b"].shape) == ((inputs, 2), (2, outputs))
    b = jax.random.normal(key, (2, outputs))
    x = jax.random.normal(key, (3, *shape))
    kernel = base["one"]["kernel"]
    changed_base = base | {"one": base["one"] | {"kernel": kernel + (pair["a"] @ b).reshape(kernel.shape)}}
    actual = model.apply({"one": {"kernel": pair | {"b": b}}}, x, None)[0]
    np.testing.assert_allclose(actual, network.apply(changed_base, x, None)[0], rtol=1e-5, atol=1e-6)


def test_lora_begins_as_the_base_and_changes_kernels_by_a_product(key):
    network = mlp((3, 3, 1), (8,), 4)
    base = jax.device_get(jax.jit(network.init)(key))
    model = lora(network, base, rank=2, alpha=3.0)
    params = jax.device_get(jax.jit(model.init)(key))
    outputs_of_lora, outputs_of_network = (
        jax.jit(lambda params, some_model=some_model: some_model.apply(params, X, None)[0])
        for some_model in (model, network)
    )
    assert tree.size(params) == 2 * (9 + 8) + 2 * (8 + 4)
    np.testing.assert_array_equal(outputs_of_lora(params), outputs_of_network(base))
    params["fc1"]["kernel"]["b"] = np.full((2, 8), 0.5, np.float32)
    product = params["fc1"]["kernel"]["a"] @ np.full((2, 8), 0.5, np.float32)
    changed_base = base | {"fc1": base["fc1"] | {"kernel": base["fc1"]["kernel"] + np.float32(1.5) * product}}
    np.testing.assert_allclose(outputs_of_lora(params), outputs_of_network(changed_base), rtol=1e-5)
    for arguments, message in (
        ({"rank": 0}, "rank=0 is not positive"),
        ({"rank": 1.5}, "rank=1.5 is not a whole number"),
        ({"alpha": np.nan}, "alpha=nan is out of its range; choose a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            lora(network, base, **arguments)
    with pytest.raises(ValueError, match=r"^base is None, not a dict; give the network's parameters"):
        lora(network, None)


FILE = """
from flax import linen as nn, nnx
import fljax

class Net(nn.Module):
    n_classes: int
    width: int = 5

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(self.n_classes)(nn.Dense(self.width)(x))

made = Net(3, 6)

class Other(nnx.Module):
    def __init__(self, n_classes: int, width: int = 7, *, rngs):
        self.fc = nnx.Linear(9, n_classes, rngs=rngs)

    def __call__(self, x):
        return self.fc(x)

def built(n_classes):
    return Net(n_classes)

model = fljax.from_linen(made, (9,))
"""


@pytest.mark.parametrize(
    ("name", "settings", "n_parameters"),
    [
        ("Net", {"width": 4}, 9 * 4 + 4 + 4 * 3 + 3),
        ("made", {}, 9 * 6 + 6 + 6 * 3 + 3),
        ("Other", {}, 9 * 3 + 3),
        ("built", {}, 9 * 5 + 5 + 5 * 3 + 3),
        ("model", {}, 9 * 6 + 6 + 6 * 3 + 3),
    ],
)
def test_whatever_a_file_has_is_a_model(tmp_path, key, name, settings, n_parameters):
    word = f"{tmp_path / 'mine.py'}:{name}"
    (tmp_path / "mine.py").write_text(FILE)
    assert kind_of_file(word) == "model"
    section = entry("model", word).section
    assert set(section) == ({"width"} if name in ("Net", "Other") else set())
    model = as_model(find("model", word), (9,), 3, settings, jnp.float32)
    assert tree.size(jax.eval_shape(model.init, key)) == n_parameters
