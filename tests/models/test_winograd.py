"""Convolutions by Winograd's filtering against sums of products in double precision."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax.models import cnn, winograd
from fljax.models.conv import _ops as of_windows
from fljax.models.conv import conv
from fljax.models.window import Window
from tests.slow import slow_rows


@pytest.fixture(autouse=True)
def switch(monkeypatch):
    """Turns it on, and on or off again: JAX keeps what a function was traced to."""

    def set_switch(value):
        monkeypatch.setenv("FLJAX_WINOGRAD", value)
        of_windows.cache_clear()

    set_switch("1")
    yield set_switch
    of_windows.cache_clear()


@pytest.mark.parametrize("k", [3, 5])
def test_the_matrices_give_a_correlation(k):
    output, kernel, image = winograd.matrices(k)
    rng = np.random.default_rng(0)
    pixels, taps = rng.normal(size=len(image)), rng.normal(size=k)
    tile = output.T @ ((kernel @ taps) * (image.T @ pixels))
    np.testing.assert_allclose(tile, np.correlate(pixels, taps, "valid"), rtol=0, atol=1e-12)


def by_taps(window, x, w, g):
    """The convolution and its gradients for images and kernel, in double precision, tap by tap."""
    (top, bottom), (left, right) = window.padding
    (height, width), (h, v) = window.size, window.out
    padded = np.pad(x.astype(float), ((0, 0), (top, bottom), (left, right), (0, 0)))
    output, image_gradient, kernel_gradient = np.zeros(g.shape), np.zeros(padded.shape), np.zeros(w.shape)
    for i, j in itertools.product(*map(range, window.kernel)):
        window_pixels = padded[:, i : i + h, j : j + v]
        output += window_pixels @ w[i, j].astype(float)
        image_gradient[:, i : i + h, j : j + v] += g @ w[i, j].astype(float).T
        kernel_gradient[i, j] = np.einsum("bhwc,bhwo->co", window_pixels, g)
    return output, image_gradient[:, top : top + height, left : left + width], kernel_gradient


def assert_close(actual, expected, bound=1e-4):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound * expected.std())


SHAPES = [
    ((12, 12), (5, 5), "VALID"),  # tiles of two by two: PFLlib's second layer
    ((14, 9), (5, 5), "SAME"),  # the last tiles reach beyond the output
    ((8, 7), (3, 3), "SAME"),
    ((10, 15), (3, 3), "VALID"),
    ((12, 13), (3, 5), ((2, 0), (1, 4))),  # uneven, more than the kernel reaches
    ((8, 8), (5, 3), ((7, 3), (0, 0))),
    ((4, 4), (3, 3), "SAME"),  # one tile
]


@pytest.mark.parametrize(("size", "kernel", "padding"), [*SHAPES[:5], *slow_rows(*SHAPES[5:])])
def test_value_and_gradients_are_sums_of_products(size, kernel, padding):
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(3, *size, 17)), rng.normal(size=(*kernel, 17, 16))
    x, w = x.astype(np.float32), w.astype(np.float32)
    window = Window.of(x.shape, w.shape, 1, padding)
    assert winograd.pays(window, 17, 16, x.dtype)
    g = rng.normal(size=(3, *window.out, 16)).astype(np.float32)

    @jax.jit
    def output_and_gradients(x, w, g):
        output, vjp = jax.vjp(lambda x, w: conv(x, w, 1, padding), x, w)
        return output, *vjp(g)

    for actual, expected in zip(output_and_gradients(x, w, g), by_taps(window, x, w, g), strict=True):
        assert_close(np.asarray(actual), expected)


def test_clients_with_kernels_of_their_own_and_second_derivatives():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 3, 8, 8, 16)).astype(np.float32)
    w = 0.1 * rng.normal(size=(2, 3, 3, 16, 16)).astype(np.float32)

    def curvature(convolve):
        def squared_gradient(x, w):
            return jnp.square(jax.grad(lambda x: jnp.sin(convolve(x, w)).sum())(x)).sum()

        return jax.jit(jax.vmap(jax.grad(squared_gradient, 1)))

    def native(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert products(x[0], w[0]) == 1
    assert_close(*map(np.asarray, (curvature(conv)(x, w), curvature(native)(x, w))))


def test_clients_with_one_kernel_are_one_batch():
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(2, 3, 8, 8, 16)).astype(np.float32), rng.normal(size=(3, 3, 16, 16)).astype(np.float32)
    conv_of_clients = jax.vmap(conv, (0, None))
    program = str(jax.make_jaxpr(conv_of_clients)(x, w))
    assert (program.count("([0], [0]))"), "scan" in program) == (1, False)  # no loop over clients
    actual = jax.jit(conv_of_clients)(x, w)
    assert_close(np.asarray(actual), np.stack([jax.jit(conv)(client_x, w) for client_x in x]), 1e-6)


@pytest.mark.slow
def test_a_networks_gradient_is_the_same_with_it_and_without(switch):
    rng = np.random.default_rng(4)
    x, y = rng.integers(256, size=(10, 16, 16, 1), dtype=np.uint8), rng.integers(3, size=10, dtype=np.int32)
    model = cnn((16, 16, 1), 3, (16, 16), 5, "SAME", "each", (8,), (0.0, 0.0))
    start = jax.jit(model.init)(jax.random.key(0))

    def gradient(value):
        switch(value)
        loss = jax.jit(jax.grad(lambda params: model.loss(model.apply(params, x, None)[0], y).mean()))
        return jax.tree.leaves(jax.device_get(loss(start)))

    pairs = list(zip(gradient("1"), gradient("0"), strict=True))
    assert any((actual != expected).any() for actual, expected in pairs)  # it was used
    for actual, expected in pairs:
        assert_close(actual, expected)


def products(x, w, **options):
    return str(jax.make_jaxpr(lambda x, w: conv(x, w, **options))(x, w)).count(
        "([0], [0]))"
    )  # one for each value of a tile


def test_where_it_does_not_pay_nothing_changes(switch):
    images, kernel = jnp.ones((2, 8, 8, 16)), jnp.ones((3, 3, 16, 16))
    assert products(images, kernel) == 1
    assert products(images, kernel, strides=2) == 0
    assert products(images[..., :15], kernel[:, :, :15]) == 0
    assert products(images, kernel[..., :15]) == 0
    assert products(images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)) == 0
    assert products(images.astype(jnp.int32), kernel.astype(jnp.int32)) == 0
    assert products(images, jnp.ones((4, 4, 16, 16))) == 0
    assert products(images[:, :7, :7], kernel) == 1
    assert products(images[:, :5, :5], kernel) == 0  # four tiles of 16 pixels for 25
    switch("0")
    assert products(images, kernel) == 0
    switch("no")
    with pytest.raises(ValueError, match="FLJAX_WINOGRAD='no': give 0 or 1, or leave it unset"):
        products(images, kernel)
