"""The fast convolution against `lax.conv_general_dilated`, in value and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fljax.models import conv_forms
from fljax.models.blocks import Conv, ConvReluPool
from fljax.models.conv import CLIENT_FORMS, as_defined, conv
from fljax.models.pooling import relu_pool
from fljax.models.window import Window

KERNELS = [(1, 1), (3, 3), (5, 5), (2, 4)]
PADDINGS = ["SAME", "VALID", ((4, 0), (1, 2))]


def native(x, kernel, strides=(1, 1), padding="SAME"):
    if not isinstance(padding, str):
        # Padded apart: on a CPU the native gradient reads foreign memory where a padding exceeds the kernel's side - 1.
        x, padding = jnp.pad(x, ((0, 0), *padding, (0, 0))), "VALID"
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def operands(size, kernel, channels, out_channels, stack=()):
    rng = np.random.default_rng(0)
    x, w = (*stack, 3, *size, channels), (*stack, *kernel, channels, out_channels)
    return rng.normal(size=x).astype(np.float32), rng.normal(size=w).astype(np.float32)


def assert_close(actual, expected):
    # Sums of hundreds of float32 products in another order: 1e-5 of the largest entry.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def same_value_and_gradients(convolve, expected_convolve, *args):
    (actual, gradients), (expected, expected_gradients) = jax.device_get(
        value_and_gradients(convolve, expected_convolve, *args)
    )
    assert actual.shape == expected.shape
    assert_close(actual, expected)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, expected_gradient)


def value_and_gradients(convolve, expected_convolve, *args):
    @jax.jit  # both in one program
    def outputs_and_gradients(args):
        vjps = [jax.vjp(f, *args) for f in (convolve, expected_convolve)]
        return [(out, vjp(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))) for out, vjp in vjps]

    return outputs_and_gradients(args)


@pytest.mark.parametrize(
    ("kernel", "strides", "padding"),
    # Every third one: each kernel with each stride and each padding, each stride with each padding.
    [
        pytest.param(kernel, strides, padding, marks=[pytest.mark.slow] * ((i + j + k) % 3 > 0))
        for i, kernel in enumerate(KERNELS)
        for j, strides in enumerate([(1, 1), (2, 2), (3, 1)])
        for k, padding in enumerate(PADDINGS)
    ],
)
def test_conv_equals_the_native_one(kernel, strides, padding):
    args = operands((11, 9), kernel, 3, 4)
    same_value_and_gradients(
        lambda x, w: conv(x, w, strides, padding), lambda x, w: native(x, w, strides, padding), *args
    )


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.tuples(st.integers(0, 6), st.integers(0, 6))] * 2),
    channels=st.integers(1, 9),
)
def test_conv_equals_the_native_one_whatever_the_shapes(size, kernel, strides, padding, channels):
    args = operands(size, kernel, channels, 10 - channels)
    same_value_and_gradients(
        lambda x, w: conv(x, w, strides, padding), lambda x, w: native(x, w, strides, padding), *args
    )


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5)])
def test_one_vmap(axes, kernel):
    x, w = operands((8, 6), kernel, 6, 7, stack=(3,))
    x, w = (a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True))
    same_value_and_gradients(jax.vmap(conv, axes), jax.vmap(native, axes), x, w)


@pytest.mark.parametrize("form", CLIENT_FORMS)
def test_every_form_for_clients_is_the_same_map(monkeypatch, form):
    x, w = operands((8, 8), (3, 3), 8, 5, stack=(3,))
    monkeypatch.setenv("FLJAX_CONV", form)
    same_value_and_gradients(jax.vmap(conv), jax.vmap(native), x, w)
    program = str(jax.make_jaxpr(jax.vmap(conv))(x, w))
    assert ("scan" in program, "feature_group_count=3" in program) == (form == "loop", form == "grouped")


def test_an_unknown_form_is_refused(monkeypatch):
    monkeypatch.setenv("FLJAX_CONV", "fft")
    with pytest.raises(ValueError, match="FLJAX_CONV='fft': choose one of loop, matrices, grouped"):
        jax.vmap(conv)(jnp.ones((2, 1, 4, 4, 1)), jnp.ones((2, 3, 3, 1, 1)))


def test_two_vmaps_over_a_gradient_inside_scan():
    x, w = operands((6, 6), (3, 3), 5, 4, stack=(2, 3))

    def train(convolve):
        def client(x, w):
            def step(w, _):
                return w - 1e-3 * jax.grad(lambda w: jnp.square(convolve(x, w)).sum())(w), None

            return lax.scan(step, w, length=3)[0]

        return jax.vmap(jax.vmap(client))(x, w)

    assert_close(*jax.device_get(jax.jit(lambda: (train(conv), train(native)))()))


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("padding", PADDINGS)
def test_matrix_form_of_other_devices(monkeypatch, strides, padding):
    x, w = operands((8, 7), (3, 2), 3, 4, stack=(2,))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    same_value_and_gradients(
        jax.vmap(lambda x, w: conv(x, w, strides, padding)),
        jax.vmap(lambda x, w: native(x, w, (strides, strides), padding)),
        x,
        w,
    )


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("channels", "features"), [(6, 7), (7, 3)])
def test_halved_matrix_form_of_other_devices(monkeypatch, channels, features, padding):
    x, w = operands((9, 11), (5, 4), channels, features, stack=(2,))
    window = Window.of(x.shape[1:], w.shape[1:], 1, padding)
    assert all(conv_forms._halves_pay(window, turn, channels, features) for turn in range(3))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    same_value_and_gradients(
        jax.vmap(lambda x, w: conv(x, w, 1, padding)), jax.vmap(lambda x, w: native(x, w, (1, 1), padding)), x, w
    )


def test_a_jitted_function_that_was_traced_to_count_runs_as_ever():
    x, w = operands((8, 8), (3, 3), 8, 5)
    jitted = jax.jit(conv)

    def program():
        return str(jax.make_jaxpr(lambda x, w: jitted(x, w))(x, w))

    with as_defined():
        counted = program()
    assert ("conv_general_dilated" in counted, "conv_general_dilated" in program()) == (False, True)


def test_halved_forms_add_their_parts_in_float32():
    """In bfloat16 each part is rounded once, and their sum once more; columns are rounded once in all."""
    x, w = (operand.astype(jnp.bfloat16) for operand in operands((9, 11), (7, 7), 6, 6))
    window = Window.of(x.shape, w.shape, 1, "SAME")
    g = x[..., ::-1]  # as many features as channels

    def error(f, *operands):
        expected = f(window, *(operand.astype(jnp.float32) for operand in operands))
        return float(jnp.abs(f(window, *operands).astype(jnp.float32) - expected).mean())

    assert error(conv_forms._forward_halved, x, w) < 1.8 * error(conv_forms.forward_matrix, x, w)
    assert error(conv_forms._input_gradient_halved, w, g) < 1.8 * error(conv_forms._input_gradient_matrix, w, g)


@pytest.mark.parametrize(
    ("shape", "kernel", "halved"),
    [
        ((28, 28, 1), (5, 5, 1, 32), (False, True, False)),  # few channels: columns are small; the gradient's are not
        ((14, 14, 32), (5, 5, 32, 64), (True, True, True)),
        ((30, 30, 32), (3, 3, 32, 64), (False, True, False)),
        ((16, 16, 128), (3, 3, 128, 128), (True, True, True)),
        ((16, 16, 128), (1, 1, 128, 256), (False, False, False)),
        ((2, 2, 512), (3, 3, 512, 512), (False, False, False)),  # its padded width is twice its own
    ],
)
def test_what_a_matrix_form_lays_out_is_the_least(shape, kernel, halved):
    """Against sizes of the arrays themselves."""
    window, channels, features = Window.of((1, *shape), kernel, 1, "SAME"), kernel[2], kernel[3]
    x, g = jnp.zeros((1, *shape)), jnp.zeros((1, *window.out, features))

    def size(make, *args):
        return jax.eval_shape(lambda: make(window, *args)).size

    size_of_halves = size(conv_forms._image_shifts, x) + size(conv_forms._gradient_shifts, g)
    columns = [size(conv_forms._columns, x), size(conv_forms._columns, g), size(conv_forms._columns, x)]
    assert tuple(size_of_halves < n for n in columns) == halved
    assert tuple(conv_forms._halves_pay(window, turn, channels, features) for turn in range(3)) == halved


@pytest.mark.parametrize(
    ("n_images", "side", "pairs", "n_images_of_part"),
    [
        (20, 16, (32, 64), 5),  # 5 images have 1,280 pixels
        (50, 30, (32, 64), 1),
        (20, 7, (128, 128), 20),  # 980 pixels in all
        (23, 16, (32, 64), 23),  # a prime number: parts of one image would be too small
        (20, 16, (4, 8), 20),  # a small kernel
    ],
)
def test_a_large_kernels_gradient_is_taken_over_parts_of_few_pixels(n_images, side, pairs, n_images_of_part):
    window = Window.of((n_images, side, side, pairs[0]), (3, 3, *pairs), 1, "SAME")
    assert conv_forms._part(window, n_images, pairs[0] * pairs[1]) == n_images_of_part


def test_the_sum_over_parts_is_the_weight_gradient(monkeypatch):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 20, 19, 16)).astype(np.float32), rng.normal(size=(3, 3, 16, 32)).astype(np.float32)
    g = rng.normal(size=(6, 10, 10, 32)).astype(np.float32)
    window = Window.of(x.shape, w.shape, 2, "SAME")
    monkeypatch.setattr(conv_forms, "_MOST_PIXELS", 250)
    monkeypatch.setattr(conv_forms, "_FEWEST_PIXELS", 100)
    assert conv_forms._part(window, 6, 16 * 32) == 2
    actual = jax.jit(lambda g, x: conv_forms._weight_gradient(window, g, x))(g, x)
    expected = np.zeros(w.shape)
    (top, bottom), (left, right) = window.padding
    padded_x = np.pad(x.astype(float), ((0, 0), (top, bottom), (left, right), (0, 0)))
    for i, j in itertools.product(range(3), range(3)):
        expected[i, j] = np.einsum("bhwc,bhwo->co", padded_x[:, i : i + 19 : 2, j : j + 19 : 2], g)
    assert_close(actual, expected)


def test_second_derivative():
    x, w = operands((5, 5), (3, 3), 2, 3)

    def curvature(convolve):
        return jax.grad(lambda w: jnp.square(jax.grad(lambda x: jnp.sin(convolve(x, w)).sum())(x)).sum())(w)

    assert_close(*jax.device_get(jax.jit(lambda: (curvature(conv), curvature(native)))()))


@pytest.mark.parametrize(
    ("channels", "padding", "n_convolutions"),
    [(8, "SAME", 3), (8, "VALID", 2), (6, "SAME", 2), (6, "VALID", 1)],  # columns for few channels; see conv_forms
)
def test_every_convolution_in_a_loop_is_in_the_fast_layout(channels, padding, n_convolutions):
    x, w = operands((9, 8), (4, 5), channels, 7, stack=(3,))

    def gradients_of(convolve):
        return jax.vmap(jax.grad(lambda x, w: jnp.square(convolve(x, w, padding=padding)).sum(), (0, 1)))

    for actual, expected in zip(gradients_of(conv)(x, w), gradients_of(native)(x, w), strict=True):
        assert_close(actual, expected)
    text = jax.jit(gradients_of(conv)).lower(x, w).as_text()
    layouts = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    assert len(layouts) == n_convolutions
    assert all("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in line and "reverse = [true" not in line for line in layouts)
    assert all("feature_group_count = 1" in line for line in layouts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(strides=0), "strides"),
        (dict(padding=((0, 0), (-1, 0))), "padding"),
        (dict(kernel_channels=2), "equal c"),
        (dict(padding="FULL"), "padding"),
    ],
)
def test_bad_input(arguments, message):
    kernel_channels = arguments.pop("kernel_channels", 3)
    with pytest.raises(ValueError, match=message):
        conv(jnp.zeros((1, 4, 4, 3)), jnp.zeros((3, 3, kernel_channels, 2)), **arguments)


BLOCKS = list(
    itertools.product([1, 3, 6], [(5, "SAME"), (3, "VALID"), (4, "VALID"), (2, ((1, 0), (2, 1)))], [(8, 10), (9, 11)])
)


@pytest.mark.parametrize(
    ("channels", "kernel", "size"),
    # Every second one: each kernel with each number of channels and with each size.
    [pytest.param(*case, marks=[pytest.mark.slow] * ((i // 8 + i // 2 + i) % 2)) for i, case in enumerate(BLOCKS)],
)
def test_block_equals_flax(channels, kernel, size):
    kernel, padding = kernel
    block = ConvReluPool(4, (kernel, kernel), padding)
    x, weights = operands(size, (kernel, kernel), channels, 4)
    params = {"kernel": weights, "bias": np.linspace(-0.5, 0.5, 4, dtype=np.float32)}
    assert jax.tree.map(jnp.shape, jax.eval_shape(block.init, jax.random.key(0), x)["params"]) == jax.tree.map(
        jnp.shape, params
    )

    def slow(params, x):
        conv = nn.Conv(4, (kernel, kernel), padding=padding)
        return nn.max_pool(nn.relu(conv.apply({"params": params}, x)), (2, 2), (2, 2))

    same_value_and_gradients_of_trees(lambda p, x: block.apply({"params": p}, x), slow, params, x)


def same_value_and_gradients_of_trees(convolve, expected_convolve, params, x):
    names = sorted(params)

    def with_leaves(f):
        return lambda x, *leaves: f(dict(zip(names, leaves, strict=True)), x)

    same_value_and_gradients(
        with_leaves(convolve), with_leaves(expected_convolve), x, *(params[name] for name in names)
    )


@pytest.mark.parametrize("strides", [1, 2])
def test_conv_module_equals_flax(key, strides):
    x, kernel = operands((7, 6), (3, 3), 3, 5)
    own_module, flax_module = Conv(5, (3, 3), strides), nn.Conv(5, (3, 3), strides)
    params = {"kernel": kernel, "bias": np.arange(5, dtype=np.float32)}
    for module in (own_module, flax_module):
        assert jax.tree.map(np.shape, jax.eval_shape(module.init, key, x)["params"]) == jax.tree.map(np.shape, params)
    same_value_and_gradients_of_trees(
        lambda p, x: own_module.apply({"params": p}, x), lambda p, x: flax_module.apply({"params": p}, x), params, x
    )


def test_pooling_in_forward_mode_is_the_transpose_of_reverse_mode():
    rng = np.random.default_rng(0)
    (y, d_y), (bias, d_bias) = (rng.normal(size=(2, *shape)).astype(np.float32) for shape in ((3, 6, 4, 5), (5,)))
    cotangent = rng.normal(size=(3, 3, 2, 5)).astype(np.float32)

    @jax.jit
    def forward(*tangents):
        with as_defined():
            return jax.jvp(relu_pool, (y, bias), tangents)

    out, slope = forward(d_y, d_bias)
    expected, backward = jax.vjp(jax.jit(relu_pool), y, bias)
    np.testing.assert_array_equal(out, expected)
    by_y, by_bias = jax.jit(backward)(cotangent)
    np.testing.assert_allclose(np.vdot(slope, cotangent), np.vdot(by_y, d_y) + np.vdot(by_bias, d_bias), rtol=1e-5)
