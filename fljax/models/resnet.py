"""ResNet18 for 32x32 images: a 3x3 stem and four stages of two basic blocks."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.norm import ConvNorm, check_norm
from fljax.models.sizes import check_images, check_widths
from fljax.tree import at_least_float32
from fljax.types import Model

_WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)


class _BasicBlock(nn.Module):
    features: int
    strides: int
    norm: str
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        settings = {"norm": self.norm, "use_bias": False, "dtype": self.dtype}
        y = ConvNorm(self.features, strides=self.strides, name="conv1", **settings)(x, train)
        y = ConvNorm(self.features, relu=False, name="conv2", **settings)(y, train)
        if x.shape != y.shape:
            shortcut = ConvNorm(self.features, strides=self.strides, kernel=1, relu=False, name="shortcut", **settings)
            x = shortcut(x, train)
        return nn.relu(x + y)


class _ResNet18(nn.Module):
    n_classes: int
    norm: str
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = ConvNorm(64, self.norm, use_bias=False, dtype=self.dtype, name="stem")(x, train)
        for i, features in enumerate(_WIDTHS):
            strides = 2 if features > x.shape[-1] else 1
            x = _BasicBlock(features, strides, self.norm, self.dtype, name=f"block{i + 1}")(x, train)
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name="fc")(x.mean((1, 2))))


def resnet18(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    norm: str = "group",
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """ResNet18 with a 3x3 stem and no first pool: 11,173,962 parameters at 10 classes.

    Layers stem, block1 to block8, fc. Source: He et al., Deep Residual Learning, CVPR 2016.

    Args:
        input_shape: (height, width, channels) of an image.
        n_classes: width of the output.
        norm: "group" (up to 32 groups, no state), "batch" (running statistics in the parameters, under "batch_stats")
            or "untracked" (the statistics of the current batch, in evaluation too). The number of parameters is equal.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: an unknown `norm`, or a size below 1.
    """
    check_norm(norm, ("group", "batch", "untracked"))
    check_widths(n_classes=n_classes)
    check_images(input_shape, (1, 1), "another model")
    return from_linen(_ResNet18(n_classes, norm, dtype), input_shape, init=init)
