"""LeNet: two 5x5 convolutions with pooling and three dense layers, in DC-PFL's two sizes."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from fljax.models.cnn import cnn
from fljax.models.linen import Init
from fljax.models.sizes import is_colour
from fljax.types import Model


def lenet(
    input_shape: tuple[int, ...] = (28, 28, 1),
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """The two CNNs of DC-PFL, for colour and for grey images; layers conv1, conv2, fc1, fc2, fc3.

    Colour: conv(6) - pool - conv(16) - pool, valid, 62,006 parameters at 32x32x3. Grey: conv(16) - pool - conv(32) -
    pool, same padding, 212,542 parameters at 28x28x1. Then fc120 - fc84 - fc.
    """
    if is_colour(input_shape):
        return cnn(input_shape, n_classes, (6, 16), 5, "VALID", "each", (120, 84), (0.0, 0.0), dtype, init)
    return cnn(input_shape, n_classes, (16, 32), 5, "SAME", "each", (120, 84), (0.0, 0.0), dtype, init)
