"""Dense networks: logistic regression and the multi-layer perceptron."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.sizes import check_tuples, check_widths
from fljax.tree import at_least_float32
from fljax.types import Model


class _MLP(nn.Module):
    hidden: tuple[int, ...]
    n_classes: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x, train):
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden):
            x = nn.relu(nn.Dense(width, dtype=self.dtype, name=f"fc{i + 1}")(x))
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name=f"fc{len(self.hidden) + 1}")(x))


def mlp(
    input_shape: tuple[int, ...] = (28, 28, 1),
    hidden: tuple[int, ...] = (200,),
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """Dense layers with ReLU between: ``flatten - [hidden - ReLU]* - n_classes``.

    Layers ``fc1, fc2, ...``; 159,010 parameters by default. Parameters and logits are float32.

    Args:
        input_shape: shape of an example.
        hidden: widths of the dense layers before the last.
        n_classes: width of the output.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, or an unknown `init`.
    """
    check_tuples(input_shape=input_shape, hidden=hidden)
    check_widths(input_shape=input_shape, hidden=hidden, n_classes=n_classes)
    return from_linen(_MLP(tuple(hidden), n_classes, dtype), input_shape, init=init)


def logistic_regression(
    input_shape: tuple[int, ...] = (28, 28, 1),
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """Softmax regression: `mlp` without a hidden layer (7,850 parameters by default).

    ``dtype`` is the type of the computation; parameters and logits are float32. ``init`` is "lecun" or "pytorch".
    """
    return mlp(input_shape, (), n_classes, dtype, init)
