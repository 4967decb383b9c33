"""Normalisation layers by name, and the block convolution - norm - ReLU - pool."""

import math

import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax
from jax.typing import DTypeLike

from fljax.models.conv import conv
from fljax.models.pooling import relu_pool
from fljax.tree import at_least_float32

NORMS = ("none", "group", "batch", "untracked")
"""No normalisation; GroupNorm with up to 32 groups; BatchNorm with running statistics; BatchNorm without these, which
uses the statistics of the current batch in evaluation too, where a batch has up to 100 examples of one client.
Batches are full: a client's last, short batch is filled with repeats of its own examples, which count in BatchNorm's
moments (not in the loss)."""


def check_norm(norm: str, allowed: tuple[str, ...] = NORMS) -> None:
    """Raises ValueError if `norm` is not one of `allowed`."""
    if norm not in allowed:
        raise ValueError(f"norm={norm!r}: choose one of {', '.join(allowed)}")


class Norm(nn.Module):
    """The normalisation `norm` with parameters "scale" and "bias" (channels,), epsilon 1e-5.

    ``(y - mean) / sqrt(var + 1e-5) * scale + bias``. Running statistics have momentum 0.9.
    """

    norm: str

    @property
    def reads_batch(self) -> bool:
        """Whether an example's output depends on the other examples of its batch in evaluation too."""
        return self.norm == "untracked"

    @nn.compact
    def __call__(self, y: Array, train: bool) -> Array:
        """(batch, height, width, channels) -> the same shape and dtype; moments are computed in at least float32."""
        scale = self.param("scale", nn.initializers.ones, y.shape[-1:], jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, y.shape[-1:], jnp.float32)
        exact = at_least_float32(y)
        mean, var = _group_moments(exact) if self.norm == "group" else self._batch_moments(exact, train)
        factor = _by_channel(scale) * lax.rsqrt(var + 1e-5)
        return (exact * factor + (_by_channel(bias) - mean * factor)).astype(y.dtype)

    def _batch_moments(self, y: Array, train: bool) -> tuple[Array, Array]:
        """Mean and variance of each channel, (1, 1, 1, channels).

        The running variance averages the batches' biased variances, as in flax; PyTorch's n / (n - 1) times these.
        """
        if self.norm == "untracked":
            return _moments(y, (0, 1, 2))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, y.shape[-1:], jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, y.shape[-1:], jnp.float32)
        if not train:
            return _by_channel(running_mean.value), _by_channel(running_var.value)
        mean, var = _moments(y, (0, 1, 2))
        if not self.is_initializing():
            running_mean.value = 0.9 * running_mean.value + 0.1 * mean.reshape(-1).astype(running_mean.value.dtype)
            running_var.value = 0.9 * running_var.value + 0.1 * var.reshape(-1).astype(running_var.value.dtype)
        return mean, var


def _by_channel(row: Array) -> Array:
    return row.reshape(1, 1, 1, -1)


def _moments(y: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    mean = y.mean(axes, keepdims=True)
    return mean, jnp.square(y - mean).mean(axes, keepdims=True)


def _group_moments(y: Array) -> tuple[Array, Array]:
    """Mean and variance of each image's groups of channels, repeated per channel: (batch, 1, 1, channels)."""
    batch, height, width, channels = y.shape
    n_groups = math.gcd(32, channels)
    mean, var = _moments(y.reshape(batch, height * width, n_groups, -1), (1, 3))
    shape = (batch, 1, n_groups, channels // n_groups)
    mean, var = (jnp.broadcast_to(m.reshape(batch, 1, n_groups, 1), shape) for m in (mean, var))
    return mean.reshape(batch, 1, 1, channels), var.reshape(batch, 1, 1, channels)


class ConvNorm(nn.Module):
    """Padded convolution ("kernel", "bias"), normalisation (subtree "norm"), ReLU and an optional max pool."""

    features: int
    norm: str
    pool: str = "none"  # "each": 2x2 max pool; "cover": the same, keeping an odd side's last half window
    strides: int = 1
    kernel: int = 3
    use_bias: bool = True
    relu: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """(batch, height, width, channels) -> (batch, out height, out width, features)."""
        shape = (self.kernel, self.kernel, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32).astype(self.dtype)
        # Equal padding on both sides at any stride, as in PyTorch: windows are centred on the pixels of a 1x1 kernel.
        around = (self.kernel // 2, (self.kernel - 1) // 2)
        y = conv(x.astype(self.dtype), kernel, self.strides, (around, around))
        shift = jnp.zeros(self.features, self.dtype)
        if self.use_bias:
            shift = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32).astype(self.dtype)
        if self.norm != "none":
            y = Norm(self.norm, name="norm")(y + _by_channel(shift) if self.use_bias else y, train)
            shift = jnp.zeros_like(shift)
        if self.pool != "none":
            return relu_pool(y, shift, cover=self.pool == "cover")
        y = y + _by_channel(shift)
        return nn.relu(y) if self.relu else y
