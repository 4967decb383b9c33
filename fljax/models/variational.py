"""The probabilistic network of FedSR and FedCR: a body that outputs a Gaussian, and a linear head on a draw from it."""

import math
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.blocks import ConvReluPool
from fljax.models.linen import Init, from_linen
from fljax.models.sizes import check_images, check_tuples, check_widths, fits, is_colour, smallest_images
from fljax.ranges import real
from fljax.tree import at_least_float32
from fljax.types import Halves, Model, Params

_KERNEL = 5


class _VariationalNet(nn.Module):
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    latent: int
    n_classes: int
    shift: float
    dtype: DTypeLike

    def setup(self):
        for i, features in enumerate(self.channels, start=1):
            setattr(self, f"conv{i}", ConvReluPool(features, (_KERNEL, _KERNEL), "VALID", self.dtype))
        for i, width in enumerate((*self.hidden, 2 * self.latent, self.n_classes), start=1):
            setattr(self, f"fc{i}", nn.Dense(width, dtype=self.dtype))

    def encode(self, x: Array) -> tuple[Array, Array]:
        for i in range(len(self.channels)):
            x = getattr(self, f"conv{i + 1}")(x)
        x = x.reshape(x.shape[0], -1)
        for i in range(len(self.hidden)):
            x = nn.relu(getattr(self, f"fc{i + 1}")(x))
        mu, rho = jnp.split(at_least_float32(getattr(self, f"fc{len(self.hidden) + 1}")(x)), 2, axis=-1)
        return mu, jax.nn.softplus(rho - self.shift)

    def classify(self, z: Array) -> Array:
        return at_least_float32(getattr(self, f"fc{len(self.hidden) + 2}")(z))

    def __call__(self, x: Array, train: bool) -> Array:
        mu, sigma = self.encode(x)
        if train:
            mu = mu + sigma * jax.random.normal(self.make_rng("dropout"), mu.shape, jnp.float32)
        return self.classify(mu)


def variational(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    latent: int = 256,
    hidden: tuple[int, ...] = (1024, 1024),
    channels: tuple[int, ...] | None = None,
    shift: float = 0.0,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """FedCR's network with a Gaussian representation ``z ~ N(mu(x), sigma(x)^2)``, ``sigma = softplus(rho - shift)``.

    In training mode, logits are those of one draw z, in evaluation mode those of the mean; ``model.halves`` has the
    body and the head as separate functions.

    Two valid 5x5 convolutions with pooling (64 and 64 channels on colour images, 4 and 12 on grey ones), the dense
    layers `hidden`, one that outputs (mu, rho) and the linear head, the last of ``model.layers``: 3,323,722 parameters
    at 32x32x3, 10 classes and the default widths (1024, 1024 before the Gaussian), 3,851,082 with ``latent=512``.
    Source: Nguyen et al., FedSR, NeurIPS 2022; Zhang et al., FedCR, ICML 2023.

    Args:
        input_shape: shape of an example; (height, width, channels) where there are convolutions.
        n_classes: width of the output.
        latent: dimension of z.
        hidden: widths of the dense layers before (mu, rho).
        channels: output channels of each convolution; (): a dense network. None: FedCR's two, or () if images have a
            side below 16, which is too small for them.
        shift: subtracted from rho, see above.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size is less than 1, or the images are too small for the `channels`.
    """
    check_tuples(input_shape=input_shape, hidden=hidden)
    check_widths(input_shape=input_shape, latent=latent, hidden=hidden, n_classes=n_classes)
    if not input_shape or not math.isfinite(real("shift", shift)):
        raise ValueError(f"input_shape={input_shape}, shift={shift}: give the sizes of an example, and a finite number")
    if channels is None:
        channels = (64, 64) if is_colour(input_shape) else (4, 12)
        channels = channels if fits(input_shape, _smallest(channels)) else ()
    check_tuples(channels=channels)
    if channels:
        check_widths(channels=channels)
        check_images(input_shape, _smallest(channels), "fewer channels (none at all make a dense network)")
    module = _VariationalNet(tuple(channels), tuple(hidden), latent, n_classes, shift, dtype)
    halves = Halves(_method(cast(Hashable, module), "encode"), _method(cast(Hashable, module), "classify"), latent)
    return from_linen(module, input_shape, halves=halves, init=init)


def variational_cnn(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    latent: int = 256,
    hidden: tuple[int, ...] = (1024, 1024),
    channels: tuple[int, ...] | None = None,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """`variational` with the widths of FedCR: the network for FedSR and FedCR, which need a Gaussian representation.

    Args:
        input_shape: shape of an example; (height, width, channels) where there are convolutions.
        n_classes: width of the output.
        latent: dimension of the Gaussian representation.
        hidden: widths of the dense layers before the Gaussian.
        channels: output channels of each 5x5 convolution; (): a dense network. None: FedCR's two, (64, 64) on colour
            images and (4, 12) on grey ones, or () if images have a side below 16, which is too small for them.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: as `variational`.
    """
    return variational(input_shape, n_classes, latent, hidden, channels, dtype=dtype, init=init)


def _smallest(channels: tuple[int, ...]) -> tuple[int, int]:
    return smallest_images(_KERNEL, "VALID", [True] * len(channels))


@cache
def _method(module: nn.Module, name: str) -> Callable:
    return partial(_call, module, name)


def _call(module: nn.Module, method: str, params: Params, inputs: Array) -> Any:
    return module.apply({"params": params}, inputs, method=method)
