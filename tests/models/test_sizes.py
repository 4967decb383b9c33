"""What a network cannot be built for is said in one line before anything is traced."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.cli import main
from fljax.models import (
    MODELS,
    cnn,
    lenet,
    logistic_regression,
    mlp,
    resnet18,
    transformer,
    variational,
    variational_cnn,
)
from fljax.models.blocks import Conv, ConvReluPool
from fljax.models.cnn import ConvNet
from fljax.models.pooling import relu_pool
from fljax.models.sizes import smallest_images
from tests.slow import slow

SIDES = (1, 2, 4, 8, 16, 28, 32)
# By hand; a pool halves, a valid 3x3 takes 2 and a valid 5x5 takes 4: 16 - 4 = 12, 6 - 4 = 2, 1.
SMALLEST = {"cnn": 6, "fedbabu_cnn": 16, "fedcr_cnn": 16, "femnist_cnn": 4, "lenet": 4, "mnist_cnn": 4, "vgg16": 32}
SMALLEST["heterogeneous"] = SMALLEST["cnn"]  # the second of its networks
READS_TOKENS = {"fasttext", "transformer"}  # and no images
LARGE_TOO = {"cnn", "heterogeneous", "lenet", "mlp", "variational_cnn"}
OTHER_IN_COLOUR = {"fedcr_cnn": 16, "lenet": 16, "variational_cnn": 1}


def images():
    smallest_sides = {(name, 1): SMALLEST.get(name, 1) for name in sorted({*MODELS} - READS_TOKENS)}
    for (name, channels), smallest_side in (
        smallest_sides | {(name, 3): smallest_side for name, smallest_side in OTHER_IN_COLOUR.items()}
    ).items():
        for side in sorted({*SIDES, smallest_side, max(1, smallest_side - 1)}):
            # What costs is tracing: of large images some, beside those that are too small and just large enough.
            is_large = side == max(SIDES) and name in LARGE_TOO
            is_slow = side not in (smallest_side - 1, smallest_side) and not is_large
            yield pytest.param(name, side, channels, smallest_side, marks=[pytest.mark.slow] * is_slow)


def trace(model, shape):
    """Shapes of a step, without running it."""

    def loss(params, x, key):
        logits, params = model.apply(params, x, key)
        return logits.sum(), (logits, params)

    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    return jax.eval_shape(jax.grad(loss, has_aux=True), params, x, jax.random.key(0))[1][0].shape


@pytest.mark.parametrize(("name", "side", "channels", "smallest_side"), list(images()))
def test_a_network_is_built_and_trains_or_says_which_images_it_needs(name, side, channels, smallest_side):
    shape = (side, side, channels)
    if side >= smallest_side:
        assert trace(MODELS[name](input_shape=shape, n_classes=7), shape) == (2, 7)
        return
    with pytest.raises(
        ValueError, match=rf"input_shape=\({side}, {side}, .*height of at least {smallest_side} .*; choose "
    ):
        MODELS[name](input_shape=shape)


@pytest.mark.parametrize("pools", [(False, True), (True, False, False), *slow((), (True,), (True, True))])
@pytest.mark.parametrize(
    ("kernel", "padding"), [(3, "SAME"), (4, "VALID"), (5, ((1, 0), (4, 3))), (2, ((3, 0), (0, 0)))]
)
def test_the_smallest_images_are_those_that_the_layers_take(kernel, padding, pools):
    def fits(shape):
        x = jax.ShapeDtypeStruct((1, *shape, 5), jnp.float32)
        for pooled in pools:
            block = (ConvReluPool if pooled else Conv)(5, (kernel, kernel), padding=padding)
            try:
                x = jax.eval_shape(lambda x, block=block: block.init_with_output(jax.random.key(0), x)[0], x)
            except ValueError:
                return False
        return True

    height = next(side for side in range(1, 99) if fits((side, 98)))
    width = next(side for side in range(1, 99) if fits((98, side)))
    assert smallest_images(kernel, padding, pools) == (height, width)


def bad_widths():
    fields = {"hidden": (8, 0), "channels": (0,), "n_classes": 0, "latent": 0, "kernel": -1}
    for name, model in sorted(MODELS.items()):
        parameters = inspect.signature(model).parameters
        for field in sorted(set(fields) & set(parameters)):
            yield name, field, -3 if parameters[field].annotation is int else fields[field]


@pytest.mark.parametrize(("name", "field", "value"), list(bad_widths()))
def test_a_width_below_one_is_named(name, field, value):
    with pytest.raises(ValueError, match=rf"{field}=.*at least 1"):
        MODELS[name](**{field: value})


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
def test_a_width_that_is_no_whole_number_is_named(name):
    with pytest.raises(ValueError, match=r"^n_classes=2\.0: each width must be a whole number of at least 1"):
        MODELS[name](n_classes=2.0)


@pytest.mark.parametrize("model", [cnn, resnet18])
@pytest.mark.parametrize("shape", [(64, 64), (784,), (32, 0, 3)])
def test_images_have_three_axes(model, shape):
    remedy = r"x\[\.\.\., None\], with one" if len(shape) == 2 else ""
    with pytest.raises(ValueError, match=rf"input_shape=.*\(height, width, channels\).*{remedy}$"):
        model(shape)


@pytest.mark.parametrize("model", [mlp, logistic_regression, variational])
def test_dense_networks_take_any_shape_but_an_empty_one(model):
    assert trace(model((5,)), (5,)) == (2, 10)
    with pytest.raises(ValueError, match=r"input_shape=\(3, 0\)"):
        model((3, 0))


def test_a_variational_network_leaves_out_convolutions_only_where_images_are_too_small():
    dense = ("fc1", "fc2", "fc3", "fc4")
    assert variational_cnn((15, 16, 1)).layers == dense
    assert variational_cnn((16, 16, 1)).layers == ("conv1", "conv2", *dense)
    assert variational_cnn((8, 8, 1), channels=(4,), hidden=()).layers == ("conv1", "fc1", "fc2")
    with pytest.raises(ValueError, match=r"at least 16 .*fewer channels"):
        variational_cnn((8, 8, 1), channels=(4, 12))


@pytest.mark.parametrize("dtype", ["int32", "no type", jnp.int8, "float64", "9" * 5000], ids=range(5))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_dtype_that_no_network_computes_in_is_named(name, dtype):
    with pytest.raises(ValueError, match="dtype="):
        MODELS[name](dtype=dtype)


def test_layers_of_ones_own_network_say_what_is_too_small():
    with pytest.raises(ValueError, match="no 2x2 window"):
        jax.eval_shape(relu_pool, jnp.ones((1, 1, 4, 2)), jnp.ones(2))
    pooled = jax.eval_shape(lambda x: relu_pool(x, jnp.ones(2), cover=True), jnp.ones((1, 1, 3, 2)))
    assert pooled.shape == (1, 1, 2, 2)
    net = ConvNet((4,), 5, "VALID", "each", (), 3, (0.0, 0.0), jnp.float32)
    for side, message in ((4, "smaller than the kernel"), (5, "no 2x2 window")):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda x: net.init(jax.random.key(0), x, False), np.ones((1, side, 6, 1), np.float32))


@pytest.mark.parametrize("settings", [("vgg16",), ("fedcr_cnn",), ("mlp", "--hidden", "0"), ("cnn", "--channels", "0")])
def test_the_command_line_says_it_in_one_line(tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fljax.cli.run.cache_compilations", lambda: None)
    assert main(["run", "--algorithm", "fedavg", "--model", *settings]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fljax: --model {settings[0]}: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (mlp, "hidden", 8),
        *((model, "input_shape", 784) for model in (mlp, cnn, lenet, resnet18, variational)),
        *((model, name, 3) for model in (cnn, variational) for name in ("channels", "hidden")),
    ],
)
def test_one_number_in_place_of_a_tuple_is_named(model, name, value):
    with pytest.raises(ValueError, match=rf"^{name}={value} is not a tuple; give one, such as \({value},\)"):
        model(**{name: value})


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (cnn, {"kernel": (3, 3)}, r"kernel=\(3, 3\): kernels are square"),
        (cnn, {"padding": 1}, "padding=1: give 'SAME', 'VALID' or"),
        (cnn, {"padding": None}, "padding=None: give 'SAME'"),
        (cnn, {"padding": "same"}, "padding='same': give 'SAME'"),
        (cnn, {"dropout": ("a", "b")}, "dropout='a' is not a number"),
        (transformer, {"dropout": "x"}, "dropout='x' is not a number"),
        (variational, {"shift": float("nan")}, "shift=nan: give"),
        (variational, {"input_shape": ()}, r"input_shape=\(\)"),
    ],
)
def test_what_is_no_number_or_padding_is_named(model, given, message):
    with pytest.raises(ValueError, match=message):
        model(**given)


def test_numpys_whole_numbers_are_strides():
    block = Conv(3, (3, 3), strides=np.int64(2))
    assert (
        jax.eval_shape(lambda x: block.init_with_output(jax.random.key(0), x)[0], jnp.zeros((1, 8, 8, 1))).shape[1] == 4
    )


@pytest.mark.parametrize(
    ("name", "shape", "numbers"),
    [
        ("lenet", (32, 32, 3), {}),
        ("fedcr_cnn", (32, 32, 3), {}),
        ("cnn", (8, 8, 1), {"channels": (4,), "hidden": (8,), "dropout": (0.0, 0.1)}),
        ("mlp", (8, 8, 1), {"hidden": (8,)}),
        ("lstm", (8, 3), {"hidden": (8,)}),
        ("variational_cnn", (16, 16, 3), {"channels": (4,), "hidden": (8,)}),
    ],
)
def test_lists_make_the_same_model_as_tuples(name, shape, numbers):
    """As a list, colour was grey to LeNet, and widths could not be hashed: each call another object, or a TypeError."""
    as_lists = {argument: list(widths) for argument, widths in numbers.items()}
    assert MODELS[name](input_shape=list(shape), **as_lists) is MODELS[name](input_shape=shape, **numbers)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_an_input_shape_that_is_no_tuple_is_named(name):
    with pytest.raises(ValueError, match=r"^input_shape=28 is not a tuple"):
        MODELS[name](input_shape=28)


@pytest.mark.parametrize("name", ["fedcr_cnn", "lenet", "lstm", "variational_cnn"])
def test_an_input_shape_without_axes_is_named(name):
    with pytest.raises(ValueError, match=r"^input_shape=\(\).*: give "):
        MODELS[name](input_shape=())
