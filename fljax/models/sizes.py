"""Sizes for which a network can be built, checked before tracing."""

import math
from collections.abc import Sequence
from numbers import Integral

from fljax.models.window import Window


def check_widths(**widths: int | tuple[int, ...]) -> None:
    """Raises ValueError, naming the argument, for a width that is not a whole number of at least 1, as in
    ``check_widths(hidden=(64, 0), n_classes=10)``."""
    for name, width in widths.items():
        values = width if isinstance(width, tuple | list) else (width,)
        if not all(isinstance(value, Integral) and value >= 1 for value in values):
            raise ValueError(f"{name}={width}: each width must be a whole number of at least 1")


def check_tuples(**tuples: tuple[int, ...]) -> None:
    """Raises ValueError, naming the argument, if it is not a tuple or list of numbers."""
    for name, numbers in tuples.items():
        if isinstance(numbers, Integral):
            raise ValueError(f"{name}={numbers} is not a tuple; give one, such as ({numbers},)")
        if not isinstance(numbers, tuple | list):
            raise ValueError(f"{name}={numbers!r} is not a tuple of whole numbers; give one")


def check_tokens(input_shape: tuple[int, ...], **widths: int) -> None:
    """Raises ValueError if examples are not rows of tokens, or a width is not a whole number of at least 1."""
    check_tuples(input_shape=input_shape)
    check_widths(input_shape=input_shape, **widths)
    if len(input_shape) != 1:
        raise ValueError(f"input_shape={input_shape}: give (length,), the number of tokens of a text")


def is_colour(input_shape: tuple[int, ...]) -> bool:
    """Whether examples of this shape are in colour, with 3 channels; raises ValueError if it is not a tuple."""
    check_tuples(input_shape=input_shape)
    return tuple(input_shape[-1:]) == (3,)


def check_images(input_shape: tuple[int, ...], smallest: tuple[int, int], remedy: str) -> None:
    """Checks the size of images for a convolutional network.

    Args:
        input_shape: as the user gave it.
        smallest: least (height, width) for the network, see `smallest_images`.
        remedy: advice for images that are too small, after "choose larger images or".

    Raises:
        ValueError: `input_shape` is not (height, width, channels), or is too small.
    """
    check_tuples(input_shape=input_shape)
    if len(input_shape) != 3 or min(input_shape) < 1:
        grey = "; images without channels are x[..., None], with one" if len(input_shape) == 2 else ""
        raise ValueError(f"input_shape={input_shape}: give (height, width, channels), each at least 1{grey}")
    if not fits(input_shape, smallest):
        raise ValueError(
            f"input_shape={input_shape} is too small: the convolutions and pools need a height of at least "
            f"{smallest[0]} and a width of at least {smallest[1]}; choose larger images or {remedy}"
        )


def n_outputs(kernel: tuple[int, ...], bias: tuple[int, ...] | None) -> int:
    """The number of outputs of a layer of these shapes: the size of its bias, which has several axes in a layer with
    heads; without a bias, the kernel's last axis."""
    return kernel[-1] if bias is None else math.prod(bias)


def fits(input_shape: tuple[int, ...], smallest: tuple[int, int]) -> bool:
    """Whether examples of this shape are images, at least as large as the smallest."""
    return len(input_shape) == 3 and input_shape[0] >= smallest[0] and input_shape[1] >= smallest[1]


def smallest_images(kernel: int, padding: str | Sequence[tuple[int, int]], pools: Sequence[bool]) -> tuple[int, int]:
    """(height, width) of the smallest images with a non-empty result after convolutions and 2x2 pools.

    Args:
        kernel: side of the square kernels.
        padding: of every convolution: "VALID", "SAME" or ((top, bottom), (left, right)).
        pools: for each convolution, whether a pool follows it.

    Raises:
        ValueError: an unknown padding.
    """
    # An image as large as the kernel loses as many pixels as any image.
    out = Window.of((1, kernel, kernel, 1), (kernel, kernel, 1, 1), 1, padding).out
    height, width = (_smallest_side(kernel - side, pools) for side in out)
    return height, width


def _smallest_side(lost: int, pools: Sequence[bool]) -> int:
    """Backwards from a side of 1; a convolution takes `lost` (negative: adds) and a pool halves."""
    side = 1
    for pooled in reversed(pools):
        side = max(1, side * (2 if pooled else 1) + lost)
    return side
