"""The static shape of a convolution: sizes, strides and padding, and the resulting size of the output."""

from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

from jax import lax


class Window(NamedTuple):
    """The static shape of a convolution; every pair is (vertical, horizontal)."""

    size: tuple[int, int]  # of the input image
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]

    @classmethod
    def of(cls, x: Sequence[int], kernel: Sequence[int], strides, padding) -> "Window":
        """The window of a convolution of shapes `x` and `kernel`; raises ValueError for invalid or too small sizes."""
        strides = (int(strides), int(strides)) if isinstance(strides, Integral) else tuple(strides)
        if len(x) != 4 or len(kernel) != 4 or x[3] != kernel[2]:
            raise ValueError(f"x has shape {x} and kernel {kernel}: give (b, h, w, c) and (kh, kw, c, o), equal c")
        if min(strides) < 1:
            raise ValueError(f"strides={strides}: each must be at least 1")
        try:
            is_named = padding in ("SAME", "VALID")
            pads = lax.padtype_to_pads(x[1:3], kernel[:2], strides, padding) if is_named else padding
            pads = ((int(pads[0][0]), int(pads[0][1])), (int(pads[1][0]), int(pads[1][1])))
        except (TypeError, IndexError, ValueError):
            allowed = "'SAME', 'VALID' or ((top, bottom), (left, right))"
            raise ValueError(f"padding={padding!r}: give {allowed}") from None
        if min(map(min, pads)) < 0:
            raise ValueError(f"padding={padding}: each side must be at least 0")
        window = cls((x[1], x[2]), (kernel[0], kernel[1]), strides, pads)
        if min(window.out) < 1:
            raise ValueError(
                f"an image of {window.size} padded by {pads} is smaller than the kernel {window.kernel}; choose a "
                "smaller kernel or more padding"
            )
        return window

    @property
    def out(self) -> tuple[int, int]:
        """Size of the output image."""
        h, w = (
            (n + lo + hi - k) // s + 1
            for n, k, s, (lo, hi) in zip(self.size, self.kernel, self.strides, self.padding, strict=True)
        )
        return h, w

    @property
    def back(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding of the dilated output gradient with which the input gradient is a convolution; may be negative."""
        top, left = (
            (k - 1 - lo, n + lo - (out - 1) * s - 1)
            for n, k, s, (lo, _), out in zip(self.size, self.kernel, self.strides, self.padding, self.out, strict=True)
        )
        return top, left
