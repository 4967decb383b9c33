"""Networks of different architectures in one model, against each network alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.client import training_loss
from fljax.client.local import train_clients
from fljax.models import from_functions, from_linen, heterogeneous, lora, mlp, own_copies, starting_models
from fljax.models.own_network import own_network
from fljax.types import ClientData, Examples, Work
from tests.algorithms.normalised import batch_normalised
from tests.slow import slow

SHAPE, FEATURES, CLASSES = (6, 6, 1), 5, 3
NETWORKS = (mlp(SHAPE, (7,), FEATURES), batch_normalised(SHAPE, FEATURES, 4), mlp(SHAPE, (), FEATURES))
TOKENS = from_linen(
    nn.Sequential([nn.Embed(9, 2), lambda h: h.reshape(len(h), -1), nn.Dense(64)]), (8, 8, 1), input_dtype=jnp.int32
)
MODEL = heterogeneous(SHAPE, NETWORKS, FEATURES, CLASSES)


def alone(network):
    """One of the networks with the last layer, written out: parameters {"body", "head"}."""

    def apply(params, x, key):
        body = params["body"] | ({"batch_stats": params["batch_stats"]} if "batch_stats" in params else {})
        features, updated = network.apply(body, x, key)
        logits = jax.nn.relu(features) @ params["head"]["kernel"] + params["head"]["bias"][None]
        statistics = {"batch_stats": updated["batch_stats"]} if "batch_stats" in updated else {}
        return logits, {"body": params["body"], "head": params["head"]} | statistics

    def init(key):
        body, statistics = tree.split_statistics(network.init(key))
        head = {"kernel": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}
        return {"body": body, "head": head} | statistics

    return from_functions(init, apply)


def of_client(params, i):
    """The parameters of `alone` in those of a client with network ``i``."""
    name = MODEL.layers[i]
    statistics = params[tree.STATISTICS].get(name)
    return {"body": params[name], "head": params["head"]} | ({tree.STATISTICS: statistics} if statistics else {})


@pytest.fixture(scope="module")
def models():
    """Four clients, of which the first and the last have the same network."""
    return jax.device_get(own_copies(MODEL, jax.jit(MODEL.init)(jax.random.key(0)), 4))


def test_each_client_computes_its_own_network(key, models):
    x = jax.random.uniform(key, (4, *SHAPE))
    for mode in (None, key):
        logits, updated = jax.jit(jax.vmap(lambda params, mode=mode: MODEL.apply(params, x, mode)))(models)
        for i in range(3):
            own = of_client(tree.take(models, i), i)
            expected, expected_params = jax.jit(alone(NETWORKS[i]).apply)(own, x, mode)
            np.testing.assert_allclose(logits[i], expected, rtol=1e-5, atol=1e-6)
            own_updated = of_client(jax.device_get(tree.take(updated, i)), i)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), own_updated, expected_params
            )


def pulled(model):
    """The loss with a proximal term, whose anchor has all that a client has."""

    def loss(params, batch, key, anchor):
        value, updated = training_loss(model)(params, batch, key)
        distance = tree.squared_norm(tree.subtract(tree.trainable(params), tree.trainable(anchor)))
        return value + 0.5 * distance, updated

    return loss


def trained(model, start, rows, work):
    """Clients ``rows`` of four after two epochs, each on up to eight examples of its own."""
    rng, keys = np.random.default_rng(0), jax.random.split(jax.random.key(1), 4)
    pool = Examples(rng.uniform(size=(32, *SHAPE)).astype(np.float32), rng.integers(CLASSES, size=32, dtype=np.int32))
    index, size = np.arange(32, dtype=np.int32).reshape(4, 8)[rows], np.array([5, 3, 8, 2], np.int32)[rows]
    data = ClientData(*jax.tree.map(jnp.asarray, (pool, index, size)))
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9))
    run = jax.jit(lambda start: train_clients(keys[rows], start, data, pulled(model), optimizer, work, start))
    return jax.device_get(run(start))


@pytest.fixture(scope="module")
def alone_trained(models):
    """The first three clients, each with its network as the only one."""
    rows = [slice(i, i + 1) for i in range(3)]
    starts = [tree.take(of_client(models, i), rows[i]) for i in range(3)]
    return [trained(alone(NETWORKS[i]), starts[i], rows[i], Work(2, 4)) for i in range(3)]


@pytest.mark.parametrize("at_once", slow(1, 4))  # a quick one is in tests/algorithms
def test_clients_train_their_own_network_and_nothing_else(models, alone_trained, at_once):
    result = trained(MODEL, models, slice(4), Work(2, 4, at_once=at_once))
    assert result.ok.all()
    for i, expected in enumerate(alone_trained):
        np.testing.assert_allclose(result.loss[i], expected.loss[0], rtol=1e-5)
        params, start, name = tree.take(result.params, i), tree.take(models, i), MODEL.layers[i]
        own, own_expected = of_client(params, i), tree.take(expected.params, 0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own, own_expected)
        assert not np.array_equal(*(part["head"]["kernel"] for part in (params, start)))
        jax.tree.map(np.testing.assert_array_equal, others(params, name), others(start, name))


def others(params, name):
    """All that belongs to other networks, and the flags."""
    layers, statistics = tree.split_statistics(params)
    return tree.without(layers, name, "head"), tree.without(statistics[tree.STATISTICS], name)


def test_one_table_holds_a_copy_for_each(models):
    table = starting_models(MODEL, jax.jit(MODEL.init)(jax.random.key(0)), 4)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(tree.stacked(table)), models)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(tree.trainable(table.params))} == {1}
    plain = NETWORKS[0].init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, own_copies(NETWORKS[0], plain, 6), tree.broadcast(plain, 6))


def test_the_one_network_of_two_models_side_by_side(models):
    params = tree.take(models, 0)
    pair = tree.side_by_side(own=params, shared={"w": np.zeros(2)})
    name = MODEL.layers[0]
    assert own_network(pair, name) == {"own": {name: params[name], "head": params["head"]}, "shared": pair["shared"]}
    assert own_network(pair["shared"], name) is pair["shared"]


def test_words_and_models_and_their_names():
    model = heterogeneous((8, 8, 1), ("mlp", "logistic_regression", mlp((8, 8, 1), (3,), 6)), n_features=6)
    assert model.layers == ("mlp", "logistic_regression", "mlp_2", "head")
    assert model is heterogeneous((8, 8, 1), ("mlp", "logistic_regression", mlp((8, 8, 1), (3,), 6)), n_features=6)
    assert dict(dict(model.about)["networks"][2])["hidden"] == (3,)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert params["mlp_2"]["fc2"]["kernel"].shape == (3, 6)
    assert params["head"]["kernel"].shape == (6, 10)
    own = from_functions(
        lambda key: {"w": jax.random.normal(key, (64, 6))}, lambda p, x: x.reshape(len(x), -1) @ p["w"]
    )
    assert heterogeneous((8, 8, 1), (own, "mlp"), n_features=6).about == ()


def test_networks_that_read_tokens(key):
    model = heterogeneous((5,), ("fasttext", "lstm"), n_features=4, n_classes=2)
    about = dict(model.about)
    assert about["input_dtype"] == "int32"
    x = jnp.zeros((2, 5), jnp.int32)
    assert jax.eval_shape(lambda: model.apply(model.init(key), x, None)[0]).shape == (2, 2)


@pytest.mark.parametrize(
    ("networks", "options", "message"),
    [
        ((), {}, r"networks=\(\) is empty; give one or more"),
        ("mlp", {}, "networks is of type str, not a list; give names of fljax.MODELS or models"),
        (("mpl",), {}, "networks='mpl': no model 'mpl'; the nearest is 'mlp'"),
        ((3,), {}, "networks is 3, not a Model; give names of fljax.MODELS, or models"),
        ((mlp((8, 8, 1), (), 5),), {}, "networks: 'mlp' has 5 outputs; all need n_features=64"),
        (("mlp",), {"n_features": 0}, "n_features=0: each width must be a whole number of at least 1"),
        (("mlp", "heterogeneous"), {}, "networks: 'heterogeneous' is heterogeneous itself"),
        ((TOKENS, "mlp"), {}, "networks: they take examples of int32 and float32; give networks for one of them"),
    ],
)
def test_refused(networks, options, message):
    with pytest.raises(ValueError, match=message):
        heterogeneous((8, 8, 1), networks, **options)


def test_wrappers_keep_the_number_of_networks():
    networks = heterogeneous((8, 8, 1), ("mlp", "logistic_regression"), n_classes=1)
    for model in (fljax.regression(networks), fljax.normalized(networks, "centred")):
        assert model.n_networks == 2
        with pytest.raises(ValueError, match="clients have 2 different networks"):
            fljax.fedavg(model, Work(1, 8))


def test_adapters_are_of_one_network():
    network = mlp(SHAPE, (7,), FEATURES)
    adapted = lora(network, network.init(jax.random.key(0)), 2)
    model = heterogeneous(SHAPE, (adapted, NETWORKS[2]), FEATURES, CLASSES)
    assert jax.eval_shape(model.init, jax.random.key(0))["mlp"]["fc1"]["kernel"]["a"].shape == (36, 2)
    with pytest.raises(
        ValueError, match="clients have 3 different networks; adapters are for one, so adapt each first"
    ):
        lora(MODEL, MODEL.init(jax.random.key(0)))
