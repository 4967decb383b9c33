"""Input normalisation and initialisation, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.standalone import standalone
from fljax.data.federation import as_arrays, minibatch, on_host
from fljax.models import MODELS, from_linen, mlp, mnist_cnn, normalized, regression, resnet18, variational
from fljax.run.identity import static_choices
from fljax.types import Work
from tests.models.small import SMALL

MNIST = (0.1307, 0.3081)
COLOUR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))


def pixels(shape, seed=0):
    return np.random.default_rng(seed).integers(256, size=(5, *shape), dtype=np.uint8)


def batch_of(x):
    """What a client's step sees of a uint8 pool."""
    pool = as_arrays(on_host(x, np.zeros(len(x), int)))
    assert pool.x.dtype == jnp.uint8
    return jax.jit(minibatch)(pool, np.arange(len(x), dtype=np.int32), np.ones(len(x), np.float32)).x


@pytest.mark.parametrize(
    ("normalize", "mean", "std"),
    [("centred", 0.5, 0.5), (MNIST, *MNIST), (COLOUR, *map(np.array, COLOUR))],
    ids=["centred", "numbers", "by channel"],
)
@pytest.mark.parametrize("train", [False, True])
def test_the_network_sees_scaled_pixels(key, normalize, mean, std, train):
    model, x, mode = mlp((4, 4, 3), (6,)), pixels((4, 4, 3)), key if train else None
    scaled_x = ((x / 255 - mean) / std).astype(np.float32)

    @jax.jit
    def outputs(inputs, scaled_x):
        params = model.init(key)
        return normalized(model, normalize).apply(params, inputs, mode)[0], model.apply(params, scaled_x, mode)[0]

    actual, expected = outputs(batch_of(x), scaled_x)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_whole_numbers_are_scaled_as_the_same_with_a_fraction(key):
    """A deviation of 0.5 is none of a whole type: it was 0, and the output NaN."""
    model = normalized(MODELS["logistic_regression"]((2,), 2), ((0.5, 1.5), (0.5, 0.25)))
    params, x = model.init(key), jnp.array([[0, 1], [1, 3]], jnp.int32)
    np.testing.assert_array_equal(model.apply(params, x, None)[0], model.apply(params, x.astype(jnp.float32), None)[0])
    assert np.isfinite(model.apply(params, x, None)[0]).all()


def test_centred_is_minus_one_to_one(key):
    model = mlp((1, 1, 1), (), 1)
    params = {"fc1": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}}
    x = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1)
    np.testing.assert_array_equal(normalized(model, "centred").apply(params, batch_of(x), None)[0], [[-1], [1]])


def test_unit_is_the_model_itself_and_equal_arguments_one_object():
    model = mlp((4, 4, 1), (6,))
    assert normalized(model, "unit") is model
    assert normalized(model, (0, 1)) is model
    assert normalized(model, "centred") is normalized(model, (0.5, 0.5))
    assert hash(normalized(model, MNIST)) == hash(normalized(model, list(MNIST)))


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_arrays_are_numbers_of_the_models_description(array):
    model = mlp((4, 4, 3), (6,))
    float_colour = tuple(tuple(float(np.float32(value)) for value in part) for part in COLOUR)
    assert normalized(model, tuple(array(part, np.float32) for part in COLOUR)) is normalized(model, float_colour)
    quarter = normalized(model, (array(0.25), array(0.5)))
    assert dict(quarter.about)["mean"] == 0.25
    assert quarter.about != normalized(model, (array(0.5), array(0.5))).about
    with pytest.raises(ValueError, match="deviation must be above 0"):
        normalized(model, (array(0.5), array(0.0)))


def test_a_gaussian_body_sees_the_same(key):
    net = variational((4, 4, 1), latent=3, hidden=(5,), channels=())
    scaled_net, x = normalized(net, "centred"), pixels((4, 4, 1))

    @jax.jit
    def representations(inputs, pixels):
        params = net.init(key)
        actual, expected = scaled_net.halves.encode(params, inputs), net.halves.encode(params, pixels)
        return actual, expected, scaled_net.apply(params, inputs, None)[0], net.halves.classify(params, actual[0])

    actual, expected, logits, logits_of_mean = representations(batch_of(x), (2 * (x / 255) - 1).astype(np.float32))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits, logits_of_mean, atol=1e-5)


def test_it_is_part_of_what_a_run_is():
    model = mlp((4, 4, 1), (6,))
    unit, centred, mnist = (
        static_choices(fedavg(normalized(model, normalize), Work(1, 8))) for normalize in ("unit", "centred", MNIST)
    )
    assert (centred["model.mean"], centred["model.deviation"]) == (0.5, 0.5)
    assert (mnist["model.mean"], mnist["model.deviation"]) == MNIST
    assert "model.mean" not in unit


@pytest.mark.slow
def test_clients_side_by_side_see_what_one_sees(key):
    model, x = normalized(mnist_cnn((8, 8, 1)), (COLOUR[0][:1], 0.3)), pixels((8, 8, 1))
    params = jax.vmap(model.init)(jax.random.split(key, 2))
    stacked_logits = jax.vmap(model.apply, (0, None, None))(params, batch_of(x), None)[0]
    for i in range(2):
        logits = model.apply(jax.tree.map(lambda leaf, i=i: leaf[i], params), batch_of(x), None)[0]
        np.testing.assert_allclose(stacked_logits[i], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ("centered", "normalize='centered': give 'unit', 'centred' or"),
        ((0.5,), "each a number or one per channel"),
        ((0.5, 0.5, 0.5), "each a number"),
        ((0.5, 0.0), "deviation must be above 0"),
        ((float("nan"), 1.0), "finite"),
        (((), 1.0), "each a number"),
        (0.5, "each a number"),
        ((0.0, 1e-50), "deviation must be above 0"),  # 0 in float32
        ((1e39, 1.0), "finite"),
    ],
)
def test_what_cannot_be_meant_is_refused(normalize, message):
    with pytest.raises(ValueError, match=message):
        normalized(mlp((4, 4, 1)), normalize)


def test_an_array_is_mean_and_deviation():
    model = mlp((4, 4, 1))
    assert normalized(model, np.array([0.5, 0.5])) is normalized(model, (0.5, 0.5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": jnp.float32(0), "deviation": jnp.float32(0)}, "deviation=0.0: give finite numbers above 0"),
        ({"mean": jnp.float32(jnp.nan), "deviation": jnp.float32(1)}, "mean=nan: give finite numbers"),
        ({"deviation": 1e-50}, "deviation=1e-50: give finite numbers above 0"),
        ({"mean": 1e39}, r"mean=1e\+39: give finite numbers"),
        ({"mean": "a"}, "mean='a': give a number, or one per target"),
    ],
)
def test_targets_numbers_that_cannot_be_meant_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        regression(mlp((4,)), **given)


def test_a_wrong_number_of_channels_is_refused(key):
    model = mlp((4, 4, 1))
    with pytest.raises(ValueError, match="mean of 3 channels and the examples have 1"):
        jax.eval_shape(lambda x: normalized(model, COLOUR).apply(model.init(key), x, None), batch_of(pixels((4, 4, 1))))


def test_a_wrong_number_of_traced_channels_is_refused(key):
    model, x = mlp((4, 4, 3)), jnp.ones((2, 4, 4, 3))
    with pytest.raises(ValueError, match="mean of 2 channels and the examples have 3"):
        jax.eval_shape(lambda mean: normalized(model, (mean, 0.5)).apply(model.init(key), x, None)[0], jnp.ones(2))


def test_pytorch_is_uniform_in_one_over_the_root_of_fan_in(key):
    params = jax.device_get(jax.jit(mnist_cnn(init="pytorch").init)(key))
    for layer in params.values():
        bound = (layer["kernel"].size // layer["kernel"].shape[-1]) ** -0.5
        for leaf in layer.values():
            assert np.abs(leaf).max() <= bound
        kernel = np.asarray(layer["kernel"]) / bound
        assert np.abs(kernel).max() > 0.98
        # Uniform on [-1, 1]: mean 0, variance 1/3; 800 numbers or more stray by less than 0.1.
        assert abs(kernel.mean()) < 0.1
        assert kernel.var() == pytest.approx(1 / 3, abs=0.04)
        assert np.std(layer["bias"]) > 0.2 * bound
    scaled_biases = np.concatenate(
        [np.ravel(layer["bias"]) * layer["kernel"][..., 0].size ** 0.5 for layer in params.values()]
    )
    assert scaled_biases.var() == pytest.approx(1 / 3, abs=0.06)


def test_the_inputs_of_a_layer_of_heads_are_its_width_alone(key):
    class Attends(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="head")(nn.MultiHeadDotProductAttention(8, name="attention")(x).mean(axis=1))

    def deviations(init):
        model = from_linen(Attends(), (5, 64), init=init)
        params = jax.jit(model.init)(key)["attention"]
        return [np.asarray(params[name]["kernel"]).std() * 8 for name in ("query", "out")]  # (64, 8, 8), (8, 8, 64)

    np.testing.assert_allclose(deviations("lecun"), 1, rtol=0.05)
    np.testing.assert_allclose(deviations("pytorch"), 3**-0.5, rtol=0.05)


@pytest.mark.slow
def test_pytorch_leaves_normalisation_layers_alone(key):
    params = resnet18((8, 8, 3), init="pytorch").init(key)
    norms = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "norm" in jax.tree_util.keystr(path)]
    assert norms
    assert {float(value) for leaf in norms for value in np.unique(leaf)} == {0.0, 1.0}
    assert np.unique(params["fc"]["bias"]).size == params["fc"]["bias"].size


@pytest.mark.parametrize("name", MODELS)
def test_every_network_has_the_option(name):
    shape, options = SMALL[name]
    lecun, torch = (MODELS[name](input_shape=shape, init=init, **options) for init in ("lecun", "pytorch"))
    assert MODELS[name](input_shape=shape, **options) is lecun
    assert torch is not lecun
    assert static_choices(standalone(torch, Work(1, 8)))["model.initial"] == "pytorch"
    shapes = [jax.eval_shape(model.init, jax.random.key(0)) for model in (lecun, torch)]
    assert tree.size(shapes[0]) == tree.size(shapes[1])
    with pytest.raises(ValueError, match="init='xavier': choose one of 'lecun', 'pytorch'"):
        MODELS[name](input_shape=shape, init="xavier", **options)
