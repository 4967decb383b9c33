"""flax modules over the fast convolution: `Conv` and the block `ConvReluPool`."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.conv import conv, is_as_defined
from fljax.models.first_layer import conv_relu_pool
from fljax.models.pooling import relu_pool
from fljax.models.window import Window

_FEW_CHANNELS = 4  # up to this many, the matrix form of the input layer is faster

Padding = str | Sequence[tuple[int, int]]


class Conv(nn.Module):
    """`fljax.models.conv.conv` with parameters named and initialised as ``flax.linen.Conv`` does."""

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: int = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, height, width, channels) -> (batch, out height, out width, features)."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32)
        y = conv(x.astype(self.dtype), kernel.astype(self.dtype), self.strides, self.padding)
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        return y + bias.astype(self.dtype).reshape(1, 1, 1, -1)


class ConvReluPool(nn.Module):
    """Convolution, bias, ReLU and a 2x2 max pool in one block; parameters as `Conv`'s."""

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    padding: Padding = "SAME"
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, height, width, channels) -> (batch, out height / 2, out width / 2, features)."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32).astype(self.dtype)
        window = Window.of(x.shape, shape, 1, self.padding)
        if x.shape[-1] <= _FEW_CHANNELS and not is_as_defined():
            return conv_relu_pool(window, x.astype(self.dtype), kernel, bias)
        return relu_pool(conv(x.astype(self.dtype), kernel, 1, self.padding), bias)
