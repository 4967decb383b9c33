"""Max pooling over 2x2 windows after bias and ReLU, with a gradient that only selects."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.models.conv import is_as_defined


def relu_pool(y: Array, bias: Array, cover: bool = False) -> Array:
    """``max over each 2x2 window of relu(y + bias)``, in one pass over the data forward and one backward.

    Args:
        y: (batch, height, width, channels).
        bias: (channels,).
        cover: for an odd side, True keeps the last half window (TensorFlow's "SAME"), False drops it ("VALID").

    Returns:
        (batch, height / 2, width / 2, channels). The gradient goes to the first largest entry of a window.

    Raises:
        ValueError: a side is 1, without `cover`.
    """
    if not cover:
        check_poolable(y.shape[1], y.shape[2])
    return (_relu_pool_as_defined if is_as_defined() else _relu_pool)(_even(y, cover), bias)


def check_poolable(height: int, width: int) -> None:
    """Raises ValueError if an image has no whole 2x2 window."""
    if min(height, width) < 2:
        raise ValueError(f"an image of ({height}, {width}) has no 2x2 window to pool; each side must be at least 2")


def _even(y: Array, cover: bool) -> Array:
    """y with even sides."""
    _, h, w, _ = y.shape
    if cover:
        return jnp.pad(y, ((0, 0), (0, h % 2), (0, w % 2), (0, 0)), constant_values=-jnp.inf)
    return y[:, : h - h % 2, : w - w % 2]


def first_winner(parts: list[Array], bias: Array) -> tuple[Array, Array]:
    """``relu(max(parts) + bias)`` and the number of the first largest part, int8; 4 where the ReLU is 0."""
    top = jnp.maximum(jnp.maximum(parts[0], parts[1]), jnp.maximum(parts[2], parts[3]))
    out = top + bias
    number = jnp.int8(3)
    for i in (2, 1, 0):
        number = jnp.where(parts[i] == top, jnp.int8(i), number)
    return jnp.maximum(out, 0), jnp.where(out > 0, number, jnp.int8(4))


@jax.custom_vjp
def _relu_pool(y: Array, bias: Array) -> Array:
    return _forward(y, bias)[0]


def _forward(y: Array, bias: Array) -> tuple[Array, Array]:
    return first_winner(_parts(y), bias.reshape(1, 1, 1, -1))


def _parts(y: Array) -> list[Array]:
    """The four pixels of each window, (batch, h / 2, w / 2, c) each."""
    b, h, w, c = y.shape
    windows = y.reshape(b, h // 2, 2, w // 2, 2, c)
    return [windows[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


def pool_gradient(winner: Array, g: Array) -> Array:
    """`g` (batch, h, w, c) at the winner of each window: (batch, 2 h, 2 w, c), zero elsewhere."""
    b, h, w, c = g.shape
    number = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    spread = jnp.where(winner[:, :, None, :, None] == number, g[:, :, None, :, None], jnp.zeros((), g.dtype))
    return spread.reshape(b, 2 * h, 2 * w, c)


def _backward(winner: Array, g: Array) -> tuple[Array, Array]:
    return pool_gradient(winner, g), jnp.where(winner < 4, g, jnp.zeros((), g.dtype)).sum((0, 1, 2))


_relu_pool.defvjp(_forward, _backward)


@jax.custom_jvp
def _relu_pool_as_defined(y: Array, bias: Array) -> Array:
    """`_relu_pool`, with forward-mode derivatives too."""
    return _forward(y, bias)[0]


@_relu_pool_as_defined.defjvp
def _slope(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (out, winner), (d_y, d_bias) = _forward(*primals), tangents
    slopes = jnp.stack([part + d_bias.reshape(1, 1, 1, -1) for part in _parts(d_y)])
    is_winner = winner[None] == jnp.arange(4, dtype=winner.dtype).reshape(4, 1, 1, 1, 1)
    return out, jnp.where(is_winner, slopes, 0).sum(0)
