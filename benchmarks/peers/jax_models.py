"""The networks in plain JAX, for the systems that take any function; runs in old versions of JAX too."""

import jax
import jax.numpy as jnp
from jax import lax


def logits(params, x):
    """Layers of `peers.work.first_models` on images (batch, height, width, channels); ReLU between all."""
    for place, layer in enumerate(params):
        last = place == len(params) - 1
        if layer["kernel"].ndim == 4:
            x = _pool(jax.nn.relu(_convolution(x, layer["kernel"]) + layer["bias"]))
        else:
            x = x.reshape(x.shape[0], -1) @ layer["kernel"] + layer["bias"]
            x = x if last else jax.nn.relu(x)
    return x


def losses(params, x, y):
    """(batch,) cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], 1)[:, 0]


def accuracy_of(params, x, y) -> float:
    """Share of right answers."""
    return float((jax.jit(logits)(params, x).argmax(1) == y).mean())


def _convolution(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
