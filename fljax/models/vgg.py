"""Networks of stacked 3x3 convolutions: VGG16, LEAF's CelebA CNN, FedBABU's four-layer CNN."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.norm import ConvNorm, check_norm
from fljax.models.sizes import check_images, check_widths, smallest_images
from fljax.tree import at_least_float32
from fljax.types import Model

_VGG16 = ((64, "none"), (64, "each"), (128, "none"), (128, "each"), *((256, "none"),) * 2, (256, "each")) + (
    *((512, "none"),) * 2,
    (512, "each"),
) * 2
_HEADS = {"512": (512, 512), "4096": (4096, 4096), "linear": ()}


class _Stack(nn.Module):
    """``[conv3x3 - norm - ReLU - pool]* - flatten - [fc - ReLU]* - fc``; layers conv1, ..., fc1, ..."""

    convolutions: tuple[tuple[int, str], ...]  # (output channels, the pool after it)
    norm: str
    hidden: tuple[int, ...]
    n_classes: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        for i, (features, pool) in enumerate(self.convolutions, start=1):
            x = ConvNorm(features, self.norm, pool, dtype=self.dtype, name=f"conv{i}")(x, train)
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden, start=1):
            x = nn.relu(nn.Dense(width, dtype=self.dtype, name=f"fc{i}")(x))
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name=f"fc{len(self.hidden) + 1}")(x))


def _stack(input_shape, convolutions, norm, hidden, n_classes, dtype, init) -> Model:
    check_norm(norm)
    check_widths(n_classes=n_classes)
    pools = [pool == "each" for _, pool in convolutions]  # "cover" is never empty
    check_images(input_shape, smallest_images(3, "SAME", pools), "another model")
    return from_linen(_Stack(convolutions, norm, hidden, n_classes, dtype), input_shape, init=init)


def vgg16(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    head: str = "512",
    norm: str = "none",
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """VGG16 for 32x32 images: thirteen convolutions, five pools, dense head; layers conv1 to conv13, fc1, ...

    With the head "512" (two hidden layers of 512) 15,245,130 parameters at 32x32x3 and 10 classes; "4096" has two
    hidden layers of 4096 (33,638,218), "linear" none (14,719,818). A normalisation adds 8,448. Source: Simonyan and
    Zisserman, ICLR 2015.

    Args:
        input_shape: (height, width, channels) of an image.
        n_classes: width of the output.
        head: "512", "4096" or "linear".
        norm: after each convolution: "none", "group", "batch" or "untracked" (see `fljax.models.norm.NORMS`).
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: an unknown `head` or `norm`.
    """
    if head not in _HEADS:
        raise ValueError(f"head={head!r}: choose one of {', '.join(_HEADS)}")
    return _stack(input_shape, _VGG16, norm, _HEADS[head], n_classes, dtype, init)


def celeba_cnn(
    input_shape: tuple[int, ...] = (84, 84, 3),
    n_classes: int = 2,
    norm: str = "untracked",
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """LEAF's CelebA CNN: four times conv3x3(32) - norm - pool, then one dense layer; 31,202 parameters.

    The norm uses the current batch's statistics, in evaluation too; "none" has 30,946 parameters. Pools keep an odd
    side's last half window. Source: Caldas et al., LEAF, arXiv:1812.01097.
    """
    return _stack(input_shape, ((32, "cover"),) * 4, norm, (), n_classes, dtype, init)


def fedbabu_cnn(
    input_shape: tuple[int, ...] = (32, 32, 3),
    n_classes: int = 10,
    norm: str = "untracked",
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """FedBABU's CNN: four times conv3x3(64) - norm - ReLU - pool, then one dense layer; 115,658 parameters.

    Its BatchNorm keeps no running statistics. Source: Oh et al., FedBABU, ICLR 2022.
    """
    return _stack(input_shape, ((64, "each"),) * 4, norm, (), n_classes, dtype, init)
