"""Every model: parameter counts, layer order, modes, and one client against a stack of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.checks.network import check_subjects
from fljax.data.own.arrays import federation_from_arrays
from fljax.models import (
    MODELS,
    celeba_cnn,
    cnn,
    fasttext,
    fedbabu_cnn,
    fedcr_cnn,
    femnist_cnn,
    from_linen,
    lenet,
    logistic_regression,
    lstm,
    mlp,
    mnist_cnn,
    resnet18,
    transformer,
    variational,
    vgg16,
)
from fljax.models.norm import ConvNorm
from fljax.models.recurrence import LSTM
from fljax.types import Work
from tests.models.small import SMALL, examples
from tests.oracle import as_float64
from tests.slow import slow, slow_rows

GREY, COLOUR, LETTERS = (28, 28, 1), (32, 32, 3), {"input_shape": (32, 32, 1), "n_classes": 26}


def count(model):
    return tree.size(jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (logistic_regression, 7_850),
        (mlp, 159_010),
        (partial(mlp, GREY, (1024, 1024)), 1_863_690),
        (cnn, 6_447_562),
        (partial(cnn, n_classes=100), 6_493_732),
        (partial(cnn, padding="SAME", pool="each"), 2_122_186),
        (partial(cnn, pool="each"), 1_204_682),
        (partial(cnn, padding="SAME"), 8_413_642),
        (partial(lenet, COLOUR), 62_006),
        (lenet, 212_542),
        (mnist_cnn, 454_922),
        (femnist_cnn, 6_603_710),
        (partial(femnist_cnn, hidden=248), 845_510),
        (partial(femnist_cnn, hidden=200), 691_958),
        (fedcr_cnn, 2_806_602),
        (partial(fedcr_cnn, n_classes=100), 2_898_852),
        (partial(fedcr_cnn, GREY), 1_258_798),
        (resnet18, 11_173_962),
        (partial(resnet18, norm="batch"), 11_173_962),
        (vgg16, 15_245_130),
        (partial(vgg16, **LETTERS, head="linear", norm="batch"), 14_735_322),
        *slow_rows(
            (partial(resnet18, n_classes=100), 11_220_132),
            (partial(vgg16, head="4096"), 33_638_218),
            (partial(vgg16, head="linear"), 14_719_818),
            (partial(vgg16, norm="batch"), 15_253_578),
            (partial(vgg16, **LETTERS), 15_252_186),
            (partial(vgg16, **LETTERS, head="4096"), 33_702_618),
        ),
        # 80 x 8; 4 gates of (8 + 256 + 1) x 256 and of (256 + 256 + 1) x 256; (256 + 1) x 80.
        (lstm, 640 + 271_360 + 525_312 + 20_560),
        (partial(lstm, (28, 28, 1), 10, (128,)), 4 * (28 + 128 + 1) * 128 + 1_290),
        (fasttext, 5_002 * 32 + 33 * 2),
        # 80 x 32 and places; 2 blocks of 4 x 33 x 32, 33 x 128, 129 x 32 and two norms; norm, (32 + 1) x 80.
        (transformer, 2 * 80 * 32 + 2 * (4_224 + 4_224 + 4_128 + 128) + 64 + 2_640),
        (celeba_cnn, 31_202),
        (partial(celeba_cnn, norm="none"), 30_946),
        (fedbabu_cnn, 115_658),
        (variational, 3_323_722),
        (partial(variational, n_classes=100), 3_346_852),
        (partial(variational, latent=512), 3_851_082),
        (partial(variational, n_classes=100, latent=512), 3_897_252),
    ],
)
def test_parameter_counts(model, expected):
    assert count(model()) == expected


def test_counts_per_layer():
    params = jax.eval_shape(cnn().init, jax.random.key(0))
    assert [tree.size(params[name]) for name in cnn().layers] == [896, 18_496, 6_423_040, 5_130]
    params = jax.eval_shape(vgg16().init, jax.random.key(0))
    assert tree.size(params[vgg16().layers[3]]) == 147_584
    params = jax.eval_shape(resnet18().init, jax.random.key(0))
    counts = [tree.size(params[name]) for name in resnet18().layers]
    sums_of_pairs = [first + second for first, second in zip(counts[1:9:2], counts[2:9:2], strict=True)]
    assert (counts[0], sums_of_pairs, counts[9]) == (1_856, [147_968, 525_568, 2_099_712, 8_393_728], 5_130)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"heterogeneous"}))  # whose layers are whole networks
def test_layers_name_the_trainable_subtrees_in_the_order_in_which_data_meets_them(name):
    model, called_layers = MODELS[name](), []

    def note_layer(call, arguments, keywords, context):
        called_layers.extend(context.module.path[:1])
        return call(*arguments, **keywords)

    with nn.intercept_methods(note_layer), jax.disable_jit():  # a trace that JAX has kept calls no layer
        params, _ = tree.split_statistics(jax.eval_shape(lambda key: model.init(key), jax.random.key(0)))
    assert set(model.layers) == set(params)
    assert model.layers == tuple(dict.fromkeys(layer for layer in called_layers if layer in params))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_equal_arguments_give_the_same_model(name):
    assert MODELS[name]() is MODELS[name]()
    assert MODELS[name](n_classes=7) is not MODELS[name]()


def test_dropout_only_in_training_mode(key):
    model = cnn((12, 12, 1), channels=(2, 3), hidden=(8,))
    params, x = jax.jit(model.init)(key), np.random.default_rng(0).normal(size=(4, 12, 12, 1)).astype(np.float32)

    @jax.jit
    def logits_in_evaluation(params):
        logits, params_after = model.apply(params, x, None)
        assert params_after is params
        return logits

    logits = jax.jit(lambda key: model.apply(params, x, key)[0])
    assert not np.allclose(logits(key), logits_in_evaluation(params))
    assert not np.allclose(logits(key), logits(jax.random.key(1)))


@pytest.mark.parametrize("name", ["mlp", "cnn", *slow(*sorted(set(MODELS) - {"mlp", "cnn"}))])
def test_bfloat16_computation_keeps_float32_parameters(key, name):
    shape, arguments = SMALL[name]
    model, float32_model = (MODELS[name](input_shape=shape, dtype=t, **arguments) for t in (jnp.bfloat16, jnp.float32))
    params, x = jax.jit(model.init)(key), examples(name, 4)
    gradient = jax.eval_shape(jax.grad(lambda params: model.apply(params, x, key)[0].sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, gradient))} == {jnp.dtype("float32")}
    logits, expected = (jax.jit(some_model.apply)(params, x, None)[0] for some_model in (model, float32_model))
    assert logits.dtype == jnp.float32
    # Each layer rounds to 2^-9 = 0.2 %, and up to twenty of them stand one after another.
    error = float(np.linalg.norm(np.asarray(logits) - expected) / np.linalg.norm(expected))
    assert 1e-4 < error < 0.04


LIKE_OTHERS = ("fedbabu_cnn", "fedcr_cnn", "femnist_cnn", "lenet", "mnist_cnn", "resnet18", "vgg16")
"""Made of the layers of cnn or celeba_cnn."""


@pytest.mark.parametrize("name", [*sorted(MODELS.keys() - {*LIKE_OTHERS}), *slow(*LIKE_OTHERS)])
def test_with_64_bit_types_parameters_and_logits_are_as_wide_as_the_computation(key, name):
    shape, arguments = SMALL[name]
    for dtype in ("float32", "float64"):
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            model = MODELS[name](input_shape=shape, dtype=dtype, **arguments)
            x = jax.ShapeDtypeStruct((2, *shape), examples(name, 1).dtype)
            params = jax.eval_shape(model.init, key)
            logits, _ = jax.eval_shape(model.apply, params, x, key)
        trainable, _ = tree.split_statistics(params)
        assert {leaf.dtype for leaf in (*jax.tree.leaves(trainable), logits)} == {jnp.dtype(dtype)}


def test_kernels_are_lecun_normal_and_the_rest_as_the_module_makes_it(key):
    params = jax.device_get(jax.jit(mnist_cnn().init)(key))
    for layer in params.values():
        fan_in = layer["kernel"].size // layer["kernel"].shape[-1]
        # 800 numbers or more: the spread of their standard deviation is below 3 %.
        assert layer["kernel"].std() * fan_in**0.5 == pytest.approx(1, abs=0.1)
        assert not layer["bias"].any()


def test_a_modules_own_initialiser_is_used_without_asking(key):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(3, kernel_init=nn.initializers.constant(0.5), name="fc")(x)

    params = jax.jit(from_linen(Net(), (4,), ("fc",)).init)(key)
    np.testing.assert_array_equal(params["fc"]["kernel"], np.full((4, 3), 0.5, np.float32))
    wide_layer = nn.Sequential([nn.Dense(1000, kernel_init=nn.initializers.he_normal())])
    kernel = np.asarray(jax.jit(from_linen(wide_layer, (9,)).init)(key)["layers_0"]["kernel"])
    assert kernel.std() == pytest.approx((2 / 9) ** 0.5, rel=0.05)  # 0.471; LeCun's, that was drawn before, is 0.333


def test_a_shift_makes_the_deviations_of_a_gaussian_smaller_and_tests_are_of_its_mean(key):
    without_shift, with_shift = (variational((4,), 3, 2, (3,), (), shift) for shift in (0.0, 5.0))
    params, x = jax.jit(without_shift.init)(key), np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    (mu, sigma), (shifted_mu, shifted_sigma) = (
        jax.jit(model.halves.encode)(params, x) for model in (without_shift, with_shift)
    )
    np.testing.assert_array_equal(shifted_mu, mu)
    np.testing.assert_allclose(shifted_sigma, np.log1p(np.exp(np.log(np.expm1(sigma)) - 5)), rtol=1e-4)
    logits, logits_of_mean = jax.jit(
        lambda: (without_shift.apply(params, x, None)[0], without_shift.halves.classify(params, mu))
    )()
    np.testing.assert_allclose(logits, logits_of_mean, atol=1e-6)


@pytest.mark.parametrize("norm", ["group", "batch", "untracked", "none"])
def test_norms_against_flax(key, norm):
    inputs = np.float32(0.01 * np.random.default_rng(0).normal(size=(4, 5, 5, 64)) + 0.02)  # so that epsilon counts
    shift = np.linspace(-0.02, 0.04, 64, dtype=np.float32)
    block, x = ConvNorm(64, norm, kernel=1, relu=False), inputs + shift
    variables = jax.jit(lambda key: block.init(key, inputs, True))(key)
    params = variables["params"] | {"kernel": np.eye(64, dtype=np.float32)[None, None], "bias": shift}
    if norm != "none":
        scale, bias = np.linspace(0.5, 2, 64, dtype=np.float32), np.linspace(-1, 1, 64, dtype=np.float32)
        params["norm"] = {"scale": scale, "bias": bias}
    flax = {
        "group": nn.GroupNorm(32, epsilon=1e-5),
        "batch": nn.BatchNorm(use_running_average=False, momentum=0.9),
        "untracked": nn.BatchNorm(use_running_average=False),
    }
    apply = jax.jit(lambda variables: block.apply(variables, inputs, True, mutable=["batch_stats"]))
    actual, updated = apply({**variables, "params": params})
    if norm == "none":
        np.testing.assert_allclose(actual, x, rtol=1e-5)
        return

    @jax.jit
    def flax_norm(params):
        variables_of_flax = {**flax[norm].init(key, x), "params": params}
        return flax[norm].apply(variables_of_flax, x, mutable=["batch_stats"])

    expected, stats = flax_norm(params["norm"])
    np.testing.assert_allclose(actual, expected, atol=5e-5)
    if norm == "batch":
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
            updated["batch_stats"]["norm"],
            stats["batch_stats"],
        )


@pytest.mark.slow
def test_running_statistics_move_in_training_and_serve_in_evaluation(key):
    model = fedbabu_cnn((16, 16, 3), norm="batch")
    params, x = model.init(key), jax.random.normal(key, (4, 16, 16, 3))
    _, params_after = model.apply(params, x, key)
    assert jax.tree.structure(params_after) == jax.tree.structure(params)
    is_equal = jax.tree.map(lambda a, b: bool((a == b).all()), params_after, params)
    assert all(jax.tree.leaves({k: v for k, v in is_equal.items() if k != tree.STATISTICS}))
    assert not any(jax.tree.leaves(is_equal[tree.STATISTICS]))
    logits, _ = model.apply(params_after, x, None)
    logits_of_half, params_in_evaluation = model.apply(params_after, x[:2], None)
    np.testing.assert_allclose(logits_of_half, logits[:2], atol=1e-5)  # an image's logits do not depend on its batch
    assert params_in_evaluation is params_after


@pytest.mark.slow
def test_variational_halves_make_the_whole(key):
    net = variational((16, 16, 3), latent=6, hidden=(12,), channels=(4, 5))
    params, x = net.init(key), jax.random.normal(key, (3, 16, 16, 3))
    mu, sigma = net.halves.encode(params, x)
    assert mu.shape == sigma.shape == (3, 6)
    assert (sigma > 0).all()
    np.testing.assert_allclose(net.halves.classify(params, mu), net.apply(params, x, None)[0], atol=1e-6)
    assert not np.allclose(net.apply(params, x, key)[0], net.halves.classify(params, mu))
    assert variational() == variational()


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        (resnet18, {"norm": "none"}, "norm='none'"),
        (vgg16, {"norm": "layer"}, "norm='layer'"),
        (vgg16, {"head": "1024"}, "head='1024'"),
        (variational, {"latent": 0}, "latent=0"),
    ],
)
def test_bad_choices(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        factory(**arguments)


@pytest.mark.parametrize(
    ("field", "value"), [("pool", "twice"), ("dropout", (0.5, 1.0)), ("dropout", (0.1,)), ("dropout", 0.1)]
)
def test_bad_input(field, value):
    with pytest.raises(ValueError, match=field):
        cnn(**{field: value})


@pytest.mark.parametrize("kernel", [3, 1])
def test_strided_windows_are_centred_where_those_of_a_single_pixel_are(kernel):
    """As PyTorch pads: an identity kernel of any size takes every second pixel, from the first on."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 1)), jnp.float32)
    block = ConvNorm(1, "none", strides=2, kernel=kernel, use_bias=False, relu=False)
    identity = jnp.zeros((kernel, kernel, 1, 1)).at[kernel // 2, kernel // 2].set(1.0)
    actual = jax.jit(lambda x: block.apply({"params": {"kernel": identity}}, x, False))(x)
    np.testing.assert_allclose(actual, x[:, ::2, ::2], rtol=1e-6)


@pytest.mark.parametrize("shape", [(7, 2, 3), *slow((7,))], ids=["series", "text"])
def test_an_lstm_is_its_equations(key, shape):
    """Hochreiter and Schmidhuber's, with a forget gate, step by step in float64."""
    model = lstm(shape, 3, (4, 5), vocabulary=11, embedding=2)
    rng = np.random.default_rng(0)
    x = rng.integers(11, size=(6, 7)) if len(shape) == 1 else rng.normal(size=(6, *shape))
    x = x.astype(np.int32 if len(shape) == 1 else np.float32)
    start = jax.device_get(jax.jit(model.init)(key))
    params = jax.tree.map(lambda leaf: (leaf + 0.3 * rng.normal(size=leaf.shape)).astype(np.float32), start)
    float64_params = as_float64(params)
    steps = float64_params["embed"]["embedding"][x] if len(shape) == 1 else x.reshape(6, 7, -1).astype(np.float64)
    for layer in ("lstm1", "lstm2"):
        gates, outputs = float64_params[layer], []
        h = c = np.zeros((6, len(gates["recurrent_kernel"])))
        for t in range(7):
            from_input = steps[:, t] @ gates["input"]["kernel"] + gates["input"]["bias"]
            i, f, g, o = np.split(from_input + h @ gates["recurrent_kernel"], 4, axis=1)
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            outputs.append(h)
        steps = np.stack(outputs, axis=1)
    expected = steps[:, -1] @ float64_params["fc"]["kernel"] + float64_params["fc"]["bias"]
    np.testing.assert_allclose(jax.jit(model.apply)(params, x, None)[0], expected, rtol=1e-5, atol=1e-5)


def test_fasttext_is_the_mean_of_the_words_that_are_there(key):
    model = fasttext((5,), n_classes=3, vocabulary=7, embedding=4)
    params, x = jax.jit(model.init)(key), np.array([[0, 0, 3, 6, 3], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], np.int32)
    float64_params = as_float64(params)
    table = float64_params["embed"]["embedding"]
    mean = np.stack([(2 * table[3] + table[6]) / 3, table[1:6].mean(axis=0), np.zeros(4)])
    expected = mean @ float64_params["fc"]["kernel"] + float64_params["fc"]["bias"]
    np.testing.assert_allclose(jax.jit(model.apply)(params, x, None)[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"input_shape=\(5, 2\): give \(length,\)"):
        fasttext((5, 2))


@pytest.mark.parametrize(("shape", "dtype"), [((3,), "int32"), ((2, 2), "float32")])
def test_a_field_of_ones_own_network_is_not_taken_for_what_it_embeds(key, shape, dtype):
    class Net(nn.Module):
        vocabulary: int

        @nn.compact
        def __call__(self, x):
            x = nn.Embed(5, 2)(x) if x.dtype == jnp.int32 else x
            return nn.Dense(4)(x.reshape(len(x), -1))

    x = (np.arange(30 * np.prod(shape)).reshape(30, *shape) % 5).astype(dtype)
    federation = federation_from_arrays(x - 2 * (dtype == "float32"), np.arange(30) % 4, np.arange(30) % 3)
    check_subjects(fedavg(from_linen(Net(1), shape, input_dtype=dtype), Work(1, 5)), federation, key)


def test_an_lstm_of_no_layers_is_refused():
    with pytest.raises(ValueError, match=r"hidden=\(\): give the width"):
        lstm(hidden=())
    with pytest.raises(ValueError, match=r"vocabulary=0.*at least 1"):
        lstm(vocabulary=0)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_the_gradients_of_a_recurrence_are_those_of_flaxs_cell(key, times):
    """Once, and of the gradient's own square: what Per-FedAvg differentiates twice."""
    width, x = 3, jax.random.normal(key, (4, 6, 2))
    own_lstm, cell = LSTM(width), nn.RNN(nn.OptimizedLSTMCell(width))
    params = jax.tree.map(lambda leaf: leaf + 0.3, own_lstm.init(key, x, True)["params"])

    def flax_params(params):
        kernels, recurrent_kernels = (
            dict(zip("ifgo", jnp.split(part, 4, axis=-1), strict=True))
            for part in (params["input"]["kernel"], params["recurrent_kernel"])
        )
        bias = dict(zip("ifgo", jnp.split(params["input"]["bias"], 4), strict=True))
        return {f"i{n}": {"kernel": kernels[n]} for n in "ifgo"} | {
            f"h{n}": {"kernel": recurrent_kernels[n], "bias": bias[n]} for n in "ifgo"
        }

    def loss_of_own(params):
        return (own_lstm.apply({"params": params}, x, True) ** 2).sum()

    def loss_of_flax(params):
        return (cell.apply({"params": {"cell": flax_params(params)}}, x) ** 2).sum()

    def squared_gradient(f):
        return lambda params: tree.squared_norm(jax.grad(f)(params))

    losses = (
        (loss_of_own, loss_of_flax) if times == 1 else (squared_gradient(loss_of_own), squared_gradient(loss_of_flax))
    )
    own_gradient, flax_gradient = (jax.jit(jax.grad(f))(params) for f in losses)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own_gradient, flax_gradient)


@pytest.mark.slow
def test_an_lstm_is_differentiated_forwards_where_a_run_is(key):
    """See the FAQ: a test of the models as it stands, a step of training by its gradient."""
    model = lstm((3, 2), 2, (3,))
    params, x = jax.jit(model.init)(key), jax.random.normal(key, (4, 3, 2))
    direction = jax.tree.map(jnp.ones_like, params)

    def logits(params):
        return model.apply(params, x, None)[0]

    def gradient_vector(params):
        gradient = jax.grad(lambda params: jnp.square(model.apply(params, x, key)[0]).sum())(params)
        return ravel_pytree(gradient)[0]

    for f in (logits, gradient_vector):
        forward_derivative = jax.jit(lambda params, f=f: jax.jvp(f, (params,), (direction,))[1])(params)
        outputs_at_ends = (
            jax.jit(f)(jax.tree.map(lambda leaf, step=step: leaf + step, params)) for step in (1e-2, -1e-2)
        )
        np.testing.assert_allclose(forward_derivative, np.subtract(*outputs_at_ends) / 2e-2, rtol=0.02, atol=0.02)
