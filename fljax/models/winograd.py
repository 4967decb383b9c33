"""Convolutions by Winograd's minimal filtering: 1/4 to 1/6 of the multiplications, for many channels on a CPU.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, CVPR 2016, https://arxiv.org/abs/1509.09308.
The output is cut into tiles of m x m pixels, each of which depends on n x n pixels of the image, n = m + k - 1 for a
kernel of side k. With the matrices of Toom and Cook for n - 1 points (and infinity), and a product over channels for
each of the n x n values,

    output = A' [(G kernel G') (B' image B)] A.

The gradients are the transposes of the same three transforms and one product. Rounding errors are larger: in float32 up
to 1e-4 of the outputs' standard deviation, instead of 1e-5 for sums of products. FLJAX_WINOGRAD=0 selects sums of
products.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.models.window import Window

USUAL = "1"
"""Default of FLJAX_WINOGRAD: these forms are used where they are faster."""
_TILE = 4
"""m: output pixels per side of a tile. Larger tiles have larger rounding errors, smaller tiles cost more products."""
_POINTS = {3: (0.0, 1.0, -1.0, 2.0, -2.0), 5: (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)}
"""Side of the kernel -> points; 0, 1, 2 and 1/2 need few sums and lose little precision."""
_MANY = 16
"""Least number of channels on either side for which the transforms cost less than they save."""
_FILLED = 0.6
"""Least share of the tiles' pixels that are output: at 0.56 nothing is gained, at 0.77 a factor of 1.9."""


class Side(NamedTuple):
    """One axis of the image, cut into tiles."""

    n_tiles: int
    output: np.ndarray  # A: (n, m)
    kernel: np.ndarray  # G: (n, k)
    image: np.ndarray  # B: (n, n)

    @property
    def reach(self) -> int:
        """Pixels of the image on which all tiles together depend."""
        return (self.n_tiles - 1) * _TILE + len(self.image)


@cache
def matrices(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (n, m), G (n, k) and B (n, n) of a kernel of side ``k``, in double precision.

    Row i of the Vandermonde matrix V evaluates a polynomial at point i, the last row returns its leading coefficient; a
    product of polynomials is V_n^-1 [(V_m a) (V_k b)], and a correlation its transpose. Columns of B are scaled to a
    largest value of 1.
    """
    n = _TILE + k - 1

    def values(size: int) -> np.ndarray:
        return np.vstack([np.vander(_POINTS[k], size, increasing=True), np.eye(1, size, size - 1)])

    inverse = np.linalg.inv(values(n))  # fractions with small denominators: values about 0 are 0
    image = np.where(np.abs(inverse) < 1e-12, 0.0, inverse)
    scale = np.abs(image).max(0)
    return values(_TILE), values(k) * scale[:, None], image / scale


def pays(window: Window, channels: int, features: int, dtype: jnp.dtype) -> bool:
    """Whether these are the fastest forms of a convolution of ``channels`` to ``features`` on this device.

    False with FLJAX_WINOGRAD=0, which is read at tracing, so set it before the first run.

    Raises:
        ValueError: FLJAX_WINOGRAD is neither 0 nor 1.
    """
    if (setting := os.environ.get("FLJAX_WINOGRAD") or USUAL) not in ("0", "1"):
        raise ValueError(f"FLJAX_WINOGRAD={setting!r}: give 0 or 1, or leave it unset")
    is_precise = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 32
    if setting == "0" or jax.default_backend() != "cpu" or not is_precise:
        return False
    if window.strides != (1, 1) or not set(window.kernel) <= set(_POINTS) or min(channels, features) < _MANY:
        return False
    tiles = [side.n_tiles * _TILE for side in _sides(window)]
    return window.out[0] * window.out[1] >= _FILLED * tiles[0] * tiles[1]


def forward(window: Window, x: Array, w: Array) -> Array:
    """(batch, height, width, channels), (kh, kw, channels, features) -> (batch, out, out, features)."""
    product = _products(_of_image(window, x), _of_kernel(window, w), 2, 1)
    down, across = _sides(window)
    tiles = product.reshape(len(down.image), len(across.image), x.shape[0], down.n_tiles, across.n_tiles, -1)
    rows = jnp.stack(_sums(across.output.T, _slices(tiles, 1)), 4)
    rows = rows.reshape(*rows.shape[:3], -1, rows.shape[-1])
    out = jnp.stack(_sums(down.output.T, _slices(rows, 0)), 2)
    out = out.reshape(out.shape[0], -1, *out.shape[3:])
    return out[:, : window.out[0], : window.out[1]]


def input_gradient(window: Window, w: Array, g: Array) -> Array:
    """(kh, kw, channels, features), (batch, out, out, features) -> (batch, height, width, channels)."""
    product = _products(_of_output(window, g), _of_kernel(window, w), 2, 2)
    down, across = _sides(window)
    tiles = product.reshape(len(down.image), len(across.image), g.shape[0], down.n_tiles, across.n_tiles, -1)
    rows = _overlapped(_sums(across.image, _slices(tiles, 1)), 3)
    image = _overlapped(_sums(down.image, _slices(rows, 0)), 1)
    return _cut(image, [lo for lo, _ in window.padding], window.size)


def weight_gradient(window: Window, g: Array, x: Array) -> Array:
    """(batch, out, out, features), (batch, height, width, channels) -> (kh, kw, channels, features)."""
    product = _products(_of_image(window, x), _of_output(window, g), 1, 1)
    down, across = _sides(window)
    values = product.reshape(len(down.image), len(across.image), *product.shape[1:])
    columns = jnp.stack(_sums(across.kernel.T, _slices(values, 1)), 1)
    return jnp.stack(_sums(down.kernel.T, _slices(columns, 0)))


def _sides(window: Window) -> tuple[Side, Side]:
    """The vertical and the horizontal axis."""
    down, across = (Side(-(-n // _TILE), *matrices(k)) for n, k in zip(window.out, window.kernel, strict=True))
    return down, across


def _of_image(window: Window, x: Array) -> Array:
    """B' x B of all tiles: (values, batch * tiles, channels)."""
    down, across = _sides(window)
    x = _cut(x, [-lo for lo, _ in window.padding], (down.reach, across.reach))
    x = jnp.stack(_sums(down.image.T, _pixels(x, 1, down)))
    x = jnp.stack(_sums(across.image.T, _pixels(x, 3, across)), 1)
    return x.reshape(len(down.image) * len(across.image), -1, x.shape[-1])


def _of_kernel(window: Window, w: Array) -> Array:
    """G w G': (values, channels, features)."""
    down, across = _sides(window)
    w = jnp.stack(_sums(down.kernel, _slices(w, 0)))
    w = jnp.stack(_sums(across.kernel, _slices(w, 1)), 1)
    return w.reshape(-1, *w.shape[2:])


def _of_output(window: Window, g: Array) -> Array:
    """A g A' of all tiles: (values, batch * tiles, features)."""
    down, across = _sides(window)
    g = _cut(g, (0, 0), (down.n_tiles * _TILE, across.n_tiles * _TILE))
    g = g.reshape(g.shape[0], down.n_tiles, _TILE, across.n_tiles, _TILE, g.shape[-1])
    g = jnp.stack(_sums(down.output, _slices(g, 2)))
    g = jnp.stack(_sums(across.output, _slices(g, 4)), 1)
    return g.reshape(len(down.image) * len(across.image), -1, g.shape[-1])


def _products(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    """A product of matrices for each value, over one axis of each."""
    return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((0,), (0,))))


def _sums(matrix: np.ndarray, parts: Sequence[Array]) -> list[Array]:
    """``matrix @ parts``, written out: such short sums cost far less than a product of matrices."""
    # Not `sum`, which starts from 0: one more term in each sum.
    out = []
    for row in matrix:
        used = [i for i, factor in enumerate(row) if factor]
        total, *terms = (parts[i] if row[i] == 1 else parts[i] * np.asarray(row[i], parts[i].dtype) for i in used)
        for term in terms:
            total = total + term
        out.append(total)
    return out


def _slices(x: Array, axis: int) -> list[Array]:
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _pixels(x: Array, axis: int, side: Side) -> list[Array]:
    """The first pixels of all tiles, the second pixels, ...: each with tiles instead of the pixels of ``x``."""
    last = (side.n_tiles - 1) * _TILE + 1
    return [lax.slice_in_dim(x, i, i + last, _TILE, axis) for i in range(len(side.image))]


def _overlapped(pixels: Sequence[Array], axis: int) -> Array:
    """The transpose of `_pixels`: adds the tiles' contributions to each pixel."""
    zeros = [jnp.zeros_like(pixels[0])] * (-len(pixels) % _TILE)
    padded = [*pixels, *zeros]
    n_steps = len(padded) // _TILE
    total = jnp.zeros((), pixels[0].dtype)
    for step in range(n_steps):  # pixels that lie `step` tiles further
        block = jnp.stack(padded[step * _TILE : (step + 1) * _TILE], axis + 1)
        block = block.reshape(*block.shape[:axis], -1, *block.shape[axis + 2 :])
        widths = [(0, 0)] * block.ndim
        widths[axis] = (step * _TILE, (n_steps - 1 - step) * _TILE)
        total = total + jnp.pad(block, widths)
    return total


def _cut(x: Array, begin: Sequence[int], size: Sequence[int]) -> Array:
    """``size`` rows and columns of the images from ``begin`` on; zeros outside the images."""
    edges = ((-lo, lo + n - length, 0) for lo, n, length in zip(begin, size, x.shape[1:3], strict=True))
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *edges, (0, 0, 0)))
