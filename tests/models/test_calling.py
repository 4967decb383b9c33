"""A user's network is understood, or refused, where it enters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fljax
from fljax import tree
from fljax.checks.network import check_subjects
from fljax.data.federation import minibatch
from fljax.models import from_linen, from_nnx, mlp


def network(call, **fields):
    """A linen module with dropout whose `__call__` is ``call``."""
    return type("Net", (nn.Module,), {"__call__": nn.compact(call), **fields})()


def train(self, x, train):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


def training(self, x, *, training):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=not training)(x))


def deterministic(self, x, deterministic=True):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=deterministic)(x))


def second(self, x, learning):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=not learning)(x))


def by_another_name(module, x, training):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=not training)(x))


@pytest.mark.parametrize("call", [train, training, deterministic, second, by_another_name])
def test_a_network_is_told_whether_it_trains_by_whatever_name(key, call):
    model = from_linen(network(call), (8,))
    assert model.layers == ("Dense_0",)
    params, x = jax.device_get(jax.jit(model.init)(key)), np.ones((4, 8), np.float32)
    outputs_in_evaluation, outputs_in_training = jax.jit(
        lambda params, x: [model.apply(params, x, mode)[0] for mode in (None, key)]
    )(params, x)
    np.testing.assert_allclose(outputs_in_evaluation, x @ params["Dense_0"]["kernel"], rtol=1e-5)
    assert np.ptp(np.asarray(outputs_in_evaluation), axis=0).max() == 0
    assert np.ptp(np.asarray(outputs_in_training), axis=0).max() > 0  # dropout is on


def test_a_network_of_a_batch_alone_needs_no_switch(key):
    model = from_linen(nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(3)]), (8,))
    assert model.layers == ("layers_0", "layers_2")
    assert jax.eval_shape(lambda x: model.apply(model.init(key), x, key)[0], jnp.ones((4, 8))).shape == (4, 3)


def test_layers_are_found_in_the_order_of_their_use():
    def call(self, x):
        return nn.Dense(3, name="a")(nn.Dense(4, name="z")(nn.Dense(4, name="m")(x)))

    assert from_linen(network(call), (8,)).layers == ("m", "z", "a")


def mask(self, x, train, mask):
    return nn.Dense(3)(x * mask)


def cached(self, x):
    self.variable("cache", "seen", jnp.zeros, 3)
    return nn.Dense(3)(x)


def images(self, x):
    return nn.Dense(3)(x.reshape(x.shape[0], 4, 4))


@pytest.mark.parametrize(
    ("call", "layers", "message"),
    [
        (train, ("head",), r"the network has no 'head'; its layers are \('Dense_0',\)"),
        (train, (), r"'Dense_0' is missing"),
        (train, ("Dense_0", "Dense_0"), "twice"),
        (mask, None, "Net needs the arguments mask"),
        (cached, None, "Net keeps cache"),
        (images, None, r"Net cannot be called with a batch of examples of shape \(8,\)"),
        *[
            (
                lambda self, x, f=f: f(nn.Dense(3)(x)),
                None,
                rf"^Net cannot .* of shape \(8,\): for two examples it returns {described}; return",
            )
            for f, described in (
                (lambda o: (o, o), "no array"),
                (lambda o: o.mean(), "no array"),
                (lambda o: o[:, 0], r"an array \(2,\) of float32"),
            )
        ],
    ],
)
def test_what_would_go_wrong_later_is_refused_at_once(call, layers, message):
    with pytest.raises(ValueError, match=message):
        from_linen(network(call), (8,), layers)


def reads(self, x):
    return nn.Dense(3)(nn.Embed(7, 4)(x).mean(axis=1))


def reads_two(self, x):
    return nn.Dense(3)(nn.Embed(7, 4)(x).reshape(x.shape[0], 2, 4))


class Reads(nnx.Module):
    def __init__(self, rngs):
        self.words, self.last = nnx.Embed(7, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.words(x).mean(axis=1))


@pytest.mark.parametrize(
    "adapt", [lambda shape: from_linen(network(train), shape), lambda shape: from_nnx(Reads, shape)]
)
@pytest.mark.parametrize("shape", [(None, 6), (6.0,), (-1,), 6])
def test_examples_have_a_shape_of_whole_numbers(adapt, shape):
    with pytest.raises(ValueError, match=r"^input_shape=.*(each width must be a whole number|not a tuple; give one)"):
        adapt(shape)


@pytest.mark.parametrize("make", [nnx.Linear(6, 3, rngs=nnx.Rngs(0)), "net"])
def test_an_nnx_module_is_made_by_a_function(make):
    with pytest.raises(ValueError, match=r"^make is of type (Linear|str), not a function; give lambda rngs: Net\(64"):
        from_nnx(make, (6,))


def test_a_network_of_tokens_says_so():
    advice = "takes whole numbers, such as tokens, not float32: give it input_dtype=jnp.int32, .*uint8 are pixels"
    with pytest.raises(ValueError, match=f"Net {advice}"):
        from_linen(network(reads), (8,))
    with pytest.raises(ValueError, match=f"Reads {advice}"):
        from_nnx(Reads, (8,))
    with pytest.raises(ValueError, match="Net cannot be called with a batch"):  # with no kind of number
        from_linen(network(reads_two), (8,))


@pytest.mark.parametrize(
    "model", [from_linen(network(reads), (8,), input_dtype=jnp.int32), from_nnx(Reads, (8,), input_dtype=jnp.int32)]
)
def test_a_network_of_tokens_is_given_int32_alone(model, key):
    tokens, y, client = np.arange(160).reshape(20, 8) % 7, np.arange(20) % 3, np.arange(20) % 2
    federation = fljax.federation_from_arrays(tokens, y, client)
    algorithm = fljax.fedavg(model, fljax.Work(1, 8))
    check_subjects(algorithm, federation, key)
    outputs, _ = model.apply(model.init(key), minibatch(federation.train.pool, jnp.arange(3), jnp.ones(3)).x, None)
    assert outputs.shape == (3, 3)
    for wrong_tokens, message in (
        (tokens.astype(np.uint8), "uint8, which is treated as pixels and scaled"),
        (tokens / 7, "float32"),
    ):
        with pytest.raises(ValueError, match=f"network takes int32 tokens, but the examples are {message}; give int32"):
            check_subjects(algorithm, fljax.federation_from_arrays(wrong_tokens, y, client), key)
    with pytest.raises(ValueError, match="tokens, which have no scale; leave normalize at 'unit'"):
        fljax.normalized(model, "centred")
    assert fljax.normalized(model, "unit") is model


@pytest.mark.parametrize("layers", [("nothing",), ("fc1",), ("fc1", "fc2", "fc3")])
def test_a_model_whose_layers_are_not_its_own_is_refused_by_every_method(layers):
    # FedPer on such a model was FedAvg, and LG-FedAvg sent nothing.
    model = mlp((8, 8, 1), (4,))._replace(layers=layers)
    for method in (fljax.fedper, fljax.lg_fedavg, fljax.fedavg):
        with pytest.raises(ValueError, match="layers="):
            method(model, fljax.Work(1, 8))


def test_parameters_that_are_no_dict_are_refused():
    model = fljax.Model(lambda key: jnp.zeros(3), lambda params, x, key: (x, params), ())
    with pytest.raises(ValueError, match="give a dict"):
        fljax.fedavg(model, fljax.Work(1, 8))


ONES = jnp.ones((8, 3))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((ONES, ONES[0]), r"params\['fc'\] is a tuple; give an array, or a dict \{name: array\}"),
        ({"w": [ONES, ONES]}, r"params\['fc'\]\['w'\] is a list; give"),
        ({"w": ONES, "b": None}, r"params\['fc'\]\['b'\] is a NoneType; give"),
        ({0: ONES}, r"params\['fc'\] has the key 0, a int; give strings"),
        ({"w": ONES, "n": jnp.int32(1)}, r"params\['fc'\]\['n'\] is int32, .* give one of float32, bfloat16"),
        ({"w": ONES > 0}, r"params\['fc'\]\['w'\] is bool"),
    ],
)
def test_parameters_that_cannot_be_trained_or_saved_are_refused_at_once(part, message):
    model = fljax.Model(lambda key: {"fc": part}, lambda params, x, key: (x, params), ("fc",))
    with pytest.raises(ValueError, match=message):
        fljax.fedavg(model, fljax.Work(1, 8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_parameters_of_any_precision_are_taken(dtype):
    params = {"fc": {"w": ONES.astype(dtype)}, "batch_stats": {"fc": {"count": jnp.int32(0)}}}  # of these not all float
    model = fljax.Model(lambda key: params, lambda params, x, key: (x, params), ("fc",))
    assert fljax.fedavg(model, fljax.Work(1, 8)).about.name == "fedavg"


def test_a_clients_model_is_taken_from_restored_arrays(key):
    stacked = jax.device_get(jax.jit(jax.vmap(mlp((4,), (3,), 2).init))(jax.random.split(key, 3)))
    models = fljax.ModelTable(stacked, np.array([2, 0]))
    rows = jax.jit(jax.vmap(tree.row, (None, 0)))(models.params, models.row)
    jax.tree.map(np.testing.assert_array_equal, rows, jax.tree.map(lambda leaf: leaf[models.row], stacked))
