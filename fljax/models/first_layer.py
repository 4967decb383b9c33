"""Convolution, bias, ReLU and 2x2 max pool of an image with few channels, as one matrix product.

A row of the product is a pooling window: the (k + 1) x (k + 1) input pixels of its four outputs, times a matrix with
four shifted copies of the kernel. With 1 or 3 channels this is faster than a convolution, whose inner loops are short.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.models.conv_forms import forms
from fljax.models.pooling import check_poolable, first_winner, pool_gradient
from fljax.models.window import Window

_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def conv_relu_pool(window: Window, x: Array, kernel: Array, bias: Array) -> Array:
    """``relu_pool(conv(x, kernel), bias)`` for strides 1; odd sides of the convolution lose their last row.

    Args:
        window: of the convolution; its strides must be 1.
        x: (batch, height, width, channels).
        kernel: (kernel height, kernel width, channels, out channels).
        bias: (out channels,).

    Returns:
        (batch, out height / 2, out width / 2, out channels).

    Raises:
        ValueError: the convolution's output has a side of 1.
    """
    check_poolable(*window.out)
    return _forward(window, x, kernel, bias)[0]


def _forward(window: Window, x: Array, kernel: Array, bias: Array) -> tuple[Array, tuple]:
    h, w = window.out
    columns = _window_columns(window, x)
    corners = [jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i, j in _CORNERS]
    matrix = jnp.concatenate(corners, axis=-1).reshape(columns.shape[-1], -1)
    parts = jnp.split(columns @ matrix, 4, axis=-1)
    out, winner = first_winner(parts, bias.reshape(1, -1))
    return out.reshape(x.shape[0], h // 2, w // 2, -1), (columns, winner, kernel)


def _window_columns(window: Window, x: Array) -> Array:
    """(pooling windows, (kernel height + 1) (kernel width + 1) channels): the input pixels of each window."""
    (kh, kw), (h, w) = window.kernel, window.out
    x = jnp.pad(x, ((0, 0), *window.padding, (0, 0)))
    x = jnp.concatenate([lax.slice_in_dim(x, j, j + w // 2 * 2 - 1, 2, axis=2) for j in range(kw + 1)], axis=-1)
    x = jnp.concatenate([lax.slice_in_dim(x, i, i + h // 2 * 2 - 1, 2, axis=1) for i in range(kh + 1)], axis=-1)
    return x.reshape(-1, x.shape[-1])


def _backward(window: Window, residuals: tuple, g: Array) -> tuple[Array, Array, Array]:
    columns, winner, kernel = residuals
    kh, kw, channels, features = kernel.shape
    flat, zero = g.reshape(-1, features), jnp.zeros((), g.dtype)
    spread = jnp.concatenate([jnp.where(winner == i, flat, zero) for i in range(4)], axis=-1)
    blocks = lax.dot_general(columns, spread, (((0,), (0,)), ((), ())))
    blocks = blocks.reshape(kh + 1, kw + 1, channels, 4, features)
    dkernel = sum((blocks[i : i + kh, j : j + kw, :, n] for n, (i, j) in enumerate(_CORNERS)), start=zero)
    # The gradient of the input layer's images is not used: XLA then removes all of this.
    dy = pool_gradient(winner.reshape(g.shape), g)
    dy = jnp.pad(dy, ((0, 0), (0, window.out[0] % 2), (0, window.out[1] % 2), (0, 0)))
    dx = forms(window)[1][0](kernel, dy)
    return dx, dkernel, jnp.where(winner < 4, flat, zero).sum(0)


conv_relu_pool.defvjp(_forward, _backward)
