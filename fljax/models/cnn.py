"""Small convolutional networks: two or more convolutions, then dense layers."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from fljax.models.blocks import Conv, ConvReluPool, Padding
from fljax.models.linen import Init, from_linen
from fljax.models.sizes import check_images, check_tuples, check_widths, is_colour, smallest_images
from fljax.ranges import real
from fljax.tree import at_least_float32
from fljax.types import Model


class ConvNet(nn.Module):
    """``[conv - ReLU - pool]* - dropout - flatten - [fc - ReLU - dropout]* - fc``; layers conv1, ..., fc1, ..."""

    channels: tuple[int, ...]
    kernel: int
    padding: Padding
    pool: str  # "each": after every convolution; "once": after the last
    hidden: tuple[int, ...]
    n_classes: int
    dropout: tuple[float, float]  # before the dense layers, after each hidden one
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x, train):
        """(batch, height, width, channels) -> logits (batch, n_classes) float32."""
        for i, features in enumerate(self.channels, start=1):
            pooled = self.pool == "each" or i == len(self.channels)
            size, name = (self.kernel, self.kernel), f"conv{i}"
            if pooled:
                x = ConvReluPool(features, size, self.padding, self.dtype, name=name)(x)
            else:
                x = nn.relu(Conv(features, size, padding=self.padding, dtype=self.dtype, name=name)(x))
        x = nn.Dropout(self.dropout[0], deterministic=not train)(x).reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden, start=1):
            x = nn.relu(nn.Dense(width, dtype=self.dtype, name=f"fc{i}")(x))
            x = nn.Dropout(self.dropout[1], deterministic=not train)(x)
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name=f"fc{len(self.hidden) + 1}")(x))


def cnn(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    channels: tuple[int, ...] = (32, 64),
    kernel: int = 3,
    padding: Padding = "VALID",
    pool: str = "once",
    hidden: tuple[int, ...] = (512,),
    dropout: tuple[float, float] = (0.25, 0.5),
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """FedTSDP's CNN and similar networks: convolutions with ReLU, max pooling, dense layers.

    By default conv3x3(32) - conv3x3(64) - pool - dropout 0.25 - fc512 - dropout 0.5 - fc10, valid convolutions:
    6,447,562 parameters. Parameters and logits are float32. Source: Zhu, Fan and Xie, FedTSDP, Complex & Intelligent
    Systems 2024, which does not state padding and pooling; hence these arguments.

    Args:
        input_shape: (height, width, channels) of an image.
        n_classes: width of the output.
        channels: output channels of each convolution.
        kernel: side of the square kernels.
        padding: of the convolutions: "VALID", "SAME" or explicit.
        pool: "once": a 2x2 max pool after the last convolution; "each": after each convolution.
        hidden: widths of the dense layers before the last.
        dropout: two rates: before the dense layers, and after each hidden dense layer.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: `pool` is neither "once" nor "each", `dropout` is not two rates in [0, 1), a width is below 1, or
            the images are too small.
    """
    if pool not in ("once", "each"):
        raise ValueError(f"pool={pool!r}: choose 'once' or 'each'")
    if isinstance(kernel, tuple | list):
        raise ValueError(f"kernel={kernel}: kernels are square; give one whole number")
    are_two = isinstance(dropout, tuple | list) and len(dropout) == 2
    if not (are_two and all(0 <= real("dropout", rate) < 1 for rate in dropout)):
        raise ValueError(f"dropout={dropout}: give two rates, each in [0, 1)")
    check_tuples(channels=channels, hidden=hidden)
    check_widths(channels=channels, kernel=kernel, hidden=hidden, n_classes=n_classes)
    pools = [pool == "each" or i == len(channels) for i in range(1, len(channels) + 1)]
    remedy = "cnn with other channels, kernel, padding or pool"
    check_images(input_shape, smallest_images(kernel, padding, pools), remedy)
    rates = (dropout[0], dropout[1])  # a tuple, also if a list was given
    module = ConvNet(tuple(channels), kernel, padding, pool, tuple(hidden), n_classes, rates, dtype)
    return from_linen(module, input_shape, init=init)


def mnist_cnn(
    input_shape: tuple[int, ...] = (28, 28, 1),
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """conv5x5(32) - pool - conv5x5(64) - pool - fc128 - fc10, same padding: 454,922 parameters at 28x28x1."""
    return cnn(input_shape, n_classes, (32, 64), 5, "SAME", "each", (128,), (0.0, 0.0), dtype, init)


def femnist_cnn(
    input_shape: tuple[int, ...] = (28, 28, 1),
    n_classes: int = 62,
    hidden: int = 2048,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """LEAF's FEMNIST CNN: `mnist_cnn` with a wider dense layer; 6,603,710 parameters by default.

    ``hidden=248`` (845,510) is the network of the multi-center code, ``hidden=200`` (691,958) that of its proximal
    variant.
    Source: Caldas et al., LEAF, arXiv:1812.01097.
    """
    return cnn(input_shape, n_classes, (32, 64), 5, "SAME", "each", (hidden,), (0.0, 0.0), dtype, init)


def fedcr_cnn(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """FedCR's networks: two valid 5x5 convolutions with pooling, fc1024, fc1024, fc.

    64 and 64 channels on colour images (2,806,602 parameters at 32x32x3, 10 classes), 4 and 12 on grey ones
    (1,258,798 at 28x28x1). Source: Zhang et al., FedCR, ICML 2023.
    """
    channels = (64, 64) if is_colour(input_shape) else (4, 12)
    return cnn(input_shape, n_classes, channels, 5, "VALID", "each", (1024, 1024), (0.0, 0.0), dtype, init)
