"""The convolution and its two gradients, each written in the forms that are fastest on some device.

Each map is for one `Window`. Canonical forms are convolutions NHWC x HWIO -> NHWC (fast on a CPU, in loops too).
Matrix forms are products of matrices: fast on a GPU with a client axis, because they become batched products. Most of
their time is spent on their operands in memory. These are columns, all pixels under the kernel at each position
(`_columns`); or, if smaller, the image's vertical shifts and the output gradient's horizontal shifts (`_image_shifts`,
`_gradient_shifts`): the gradient of the kernel is the product of both; each other map is the product of one of them
with the kernel, whose parts are then shifted along the other axis and added.

On a CPU, other forms are faster for some shapes: `fljax.models.winograd` for many channels on both sides; matrix
products for images with few channels, whose inner loops would be short, and for the input gradient if the convolution
shrinks its images, because a convolution would then mostly read padding. On a CPU, the gradient of a large kernel is
computed over a few images at a time, so that they fit into the caches.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.models import winograd
from fljax.models.window import Window
from fljax.tree import at_least_float32

_NONE = ((0, 0), (0, 0))

_FEW = 8
"""From this many channels, XLA's convolution is faster than columns on a CPU; with 4 to 6 it takes twice as long."""
_SHRUNK = 1.4
"""From this ratio of image to output pixels, `_input_gradient_halved` is faster: 1.6 to 7 times at a ratio of 2."""
_LARGE_KERNEL = 4096
"""From this many weights, a kernel's gradient is computed over parts of a batch; with fewer, a loop costs more."""
_MOST_PIXELS, _FEWEST_PIXELS = 1300, 325
"""Output pixels of a part: 1.3 to 2.5 times faster than a whole batch of 50 images of 16 x 16 or 28 x 28 pixels."""


def forms(window: Window) -> list[tuple[Callable, Callable]]:
    """(canonical, matrix) forms of ``(x, w) -> g``, ``(w, g) -> x`` and ``(g, x) -> w``.

    Canonical forms that are products use columns: if a kernel is as large as its image, shifts are not smaller.
    """
    matrix = [partial(f, window) for f in (forward_matrix, _input_gradient_matrix, _weight_gradient_matrix)]
    canonical = [partial(f, window) for f in (_forward, _input_gradient, _weight_gradient)]
    if window.kernel == (1, 1) or _is_small(window):  # few columns or none
        canonical = [matrix[0], canonical[1] if _is_shrunk(window) else matrix[1], matrix[2]]
    fastest = [partial(_filtered_or, window, turn, direct) for turn, direct in enumerate(canonical)]
    smaller = [partial(_halved_or, window, turn, columns) for turn, columns in enumerate(matrix)]
    return list(zip(fastest, smaller, strict=True))


def _halved_or(window: Window, turn: int, columns: Callable, a: Array, b: Array) -> Array:
    """The map number ``turn`` of `forms`: by shifts along one axis each if these are smaller than `columns`."""
    channels, features = _sides(turn, a, b)
    if _halves_pay(window, turn, channels, features):
        return (_forward_halved, _input_gradient_halved, _weight_gradient_halved)[turn](window, a, b)
    return columns(a, b)


def _halves_pay(window: Window, turn: int, channels: int, features: int) -> bool:
    """Whether `_image_shifts` and `_gradient_shifts` together are smaller than the columns of map number ``turn``."""
    (h, w), (kh, kw), (height, width) = window.size, window.kernel, window.out
    columns = kh * kw * (h * w * features if turn == 1 else height * width * channels)
    return window.strides == (1, 1) and height * (width + kw - 1) * (kh * channels + kw * features) < columns


def _sides(turn: int, a: Array, b: Array) -> tuple[int, int]:
    """(channels, features) of the operands of the map number ``turn`` of `forms`."""
    return ((b.shape[2], b.shape[3]), (a.shape[2], a.shape[3]), (b.shape[3], a.shape[3]))[turn]


def _filtered_or(window: Window, turn: int, direct: Callable, a: Array, b: Array) -> Array:
    """The map number ``turn`` of `forms`: Winograd's form if it is faster, else `direct`."""
    channels, features = _sides(turn, a, b)
    if winograd.pays(window, channels, features, a.dtype):
        return (winograd.forward, winograd.input_gradient, winograd.weight_gradient)[turn](window, a, b)
    return direct(a, b)


def _is_small(window: Window) -> bool:
    """Whether columns are faster than XLA's convolution also on a CPU: 90 times if the kernel exceeds the image."""
    (h, w), (kh, kw) = window.size, window.kernel
    return window.out[0] * window.out[1] <= 16 or kh > h or kw > w


def _is_shrunk(window: Window) -> bool:
    """Whether the input gradient on this device is `_input_gradient_halved`."""
    (h, w), (height, width) = window.size, window.out
    return jax.default_backend() == "cpu" and window.strides == (1, 1) and h * w >= _SHRUNK * height * width


def _forward(window: Window, x: Array, w: Array) -> Array:
    if x.shape[3] < _FEW and jax.default_backend() == "cpu":
        return forward_matrix(window, x, w)
    return _convolve(x, w, window.padding, strides=window.strides)


def _input_gradient(window: Window, w: Array, g: Array) -> Array:
    """The output gradient, dilated by the strides, convolved with the kernel rotated by 180 degrees."""
    if _is_shrunk(window):
        return _input_gradient_halved(window, w, g)
    if min(map(min, window.back)) >= 0:
        return _convolve(g, _turned(w), window.back, lhs_dilation=window.strides)
    return _convolve(_dilated(window, g), _turned(w), _NONE)


def _weight_gradient(window: Window, g: Array, x: Array) -> Array:
    """The sum over the batch; on a CPU, over parts of the size `_part`."""
    n_images, n = x.shape[0], _part(window, x.shape[0], x.shape[3] * g.shape[3])
    if n == n_images:
        return _weight_gradient_at_once(window, g, x)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _weight_gradient_at_once(window, *part).astype(total.dtype), None

    zeros = jnp.zeros((*window.kernel, x.shape[3], g.shape[3]), at_least_float32(x).dtype)
    parts = g.reshape(n_images // n, n, *g.shape[1:]), x.reshape(n_images // n, n, *x.shape[1:])
    return lax.scan(add, zeros, parts)[0].astype(x.dtype)


def _part(window: Window, n_images: int, n_pairs: int) -> int:
    """The number of images in a part of a weight gradient: a divisor of the batch size ``n_images``, or all.

    Args:
        window: of the convolution.
        n_images: in the batch.
        n_pairs: channels of the image times those of the output.
    """
    pixels = window.out[0] * window.out[1]
    if jax.default_backend() != "cpu" or window.kernel[0] * window.kernel[1] * n_pairs < _LARGE_KERNEL:
        return n_images
    most_images = max(_MOST_PIXELS // pixels, 1)
    n = max(n for n in range(1, most_images + 1) if n_images % n == 0)
    return n if n * pixels >= _FEWEST_PIXELS else n_images


def _weight_gradient_at_once(window: Window, g: Array, x: Array) -> Array:
    """A convolution of x, with its channels as batch, by the output gradient as kernel, dilated by the strides."""
    (top, bottom), (left, right) = (
        (lo, (out - 1) * s + k - n - lo)
        for n, k, s, (lo, _), out in zip(
            window.size, window.kernel, window.strides, window.padding, window.out, strict=True
        )
    )
    # Strides can leave the last rows of the image unused: these are cut off, because negative padding is slow.
    x = x[:, : x.shape[1] + min(bottom, 0), : x.shape[2] + min(right, 0)]
    padding = ((top, max(bottom, 0)), (left, max(right, 0)))
    turned = _convolve(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), padding, rhs_dilation=window.strides)
    return turned.transpose(1, 2, 0, 3)


def _convolve(x, w, padding, strides=(1, 1), lhs_dilation=(1, 1), rhs_dilation=(1, 1)) -> Array:
    """NHWC x HWIO -> NHWC. On a CPU always with padding: without it, XLA calls a library that is 3 times slower."""
    convolution = partial(
        lax.conv_general_dilated,
        window_strides=strides,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    if jax.default_backend() != "cpu" or padding != _NONE:
        return convolution(x, w, padding=padding)
    n_rows = ((x.shape[1] - 1) * lhs_dilation[0] - (w.shape[0] - 1) * rhs_dilation[0]) // strides[0] + 1
    if w.shape[0] > n_rows:  # a tall kernel: one more row in it, of zeros, costs less than one more in the output
        return convolution(x, jnp.pad(w, ((0, 1), (0, 0), (0, 0), (0, 0))), padding=((0, rhs_dilation[0]), (0, 0)))
    return convolution(x, w, padding=((0, strides[0]), (0, 0)))[:, :n_rows]


def _dilated(window: Window, g: Array) -> Array:
    """Output gradient with strides - 1 zeros between its rows and columns, padded (or cut) by `window.back`."""
    (top, bottom), (left, right) = window.back
    sv, sh = window.strides
    return lax.pad(g, jnp.zeros((), g.dtype), ((0, 0, 0), (top, bottom, sv - 1), (left, right, sh - 1), (0, 0, 0)))


def _turned(w: Array) -> Array:
    """The kernel rotated by 180 degrees, with its channels exchanged."""
    return w[::-1, ::-1].transpose(0, 1, 3, 2)


def _padded(window: Window, x: Array) -> Array:
    return jnp.pad(x, ((0, 0), *window.padding, (0, 0)))


def _shifted(x: Array, axis: int, window: Window) -> Array:
    """The kernel's shifts of x along image axis 1 or 2, joined along the channels."""
    k, s, n = window.kernel[axis - 1], window.strides[axis - 1], window.out[axis - 1]
    return jnp.concatenate([lax.slice_in_dim(x, j, j + (n - 1) * s + 1, s, axis) for j in range(k)], axis=-1)


def _columns(window: Window, x: Array) -> Array:
    """(batch, out height, out width, kernel height * kernel width * channels)."""
    return _shifted(_shifted(_padded(window, x), 2, window), 1, window)


def _product(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())))


def forward_matrix(window: Window, x: Array, w: Array) -> Array:
    """``(x, w) -> g`` as one product with columns; JAX's gradients of it are products with equally many terms."""
    return _product(_columns(window, x), w.reshape(-1, w.shape[-1]), 3, 0)


def _input_gradient_matrix(window: Window, w: Array, g: Array) -> Array:
    dilated = _dilated(window, g)
    return forward_matrix(
        Window((dilated.shape[1], dilated.shape[2]), window.kernel, (1, 1), _NONE), dilated, _turned(w)
    )


def _image_shifts(window: Window, x: Array) -> Array:
    """(batch, out height, padded width, kernel height * channels), for strides 1."""
    return _shifted(_padded(window, x), 1, window)


def _gradient_shifts(window: Window, g: Array) -> Array:
    """(batch, out height, padded width, kernel width * features), strides 1: position w has columns w - kw + 1 to w."""
    kw, (height, width) = window.kernel[1], window.out
    row = Window((height, width + 2 * (kw - 1)), (1, kw), (1, 1), _NONE)
    return _shifted(jnp.pad(g, ((0, 0), (0, 0), (kw - 1, kw - 1), (0, 0))), 2, row)


def _forward_halved(window: Window, x: Array, w: Array) -> Array:
    """A vertical convolution for each column of the kernel; the results are shifted and added column by column."""
    (kh, kw, channels, features), width = w.shape, window.out[1]
    shifts = _image_shifts(window, x)
    parts = _product(shifts, w.transpose(0, 2, 1, 3).reshape(kh * channels, kw * features), 3, 0)
    parts = at_least_float32(parts).reshape(*shifts.shape[:3], kw, features)
    shifted = (parts[:, :, j : j + width, j] for j in range(kw))
    return sum(shifted, start=jnp.zeros((), parts.dtype)).astype(x.dtype)


def _weight_gradient_halved(window: Window, g: Array, x: Array) -> Array:
    (kh, kw), channels, features = window.kernel, x.shape[3], g.shape[3]
    image, gradient = _image_shifts(window, x), _gradient_shifts(window, g)
    flat = _product(image.reshape(-1, kh * channels), gradient.reshape(-1, kw * features), 0, 0)
    return flat.reshape(kh, channels, kw, features)[:, :, ::-1].transpose(0, 2, 1, 3)


def _input_gradient_halved(window: Window, w: Array, g: Array) -> Array:
    """For strides 1: a horizontal convolution for each row of the kernel; the results are added row by row."""
    (kh, kw, channels, features), (batch, height) = w.shape, g.shape[:2]
    columns = _gradient_shifts(window, g)
    turned = w[:, ::-1].transpose(1, 3, 0, 2).reshape(kw * features, kh * channels)
    rows = at_least_float32(_product(columns, turned, 3, 0)).reshape(batch, height, columns.shape[2], kh, channels)
    padded = (jnp.pad(rows[:, :, :, i], ((0, 0), (i, kh - 1 - i), (0, 0), (0, 0))) for i in range(kh))
    (top, _), (left, _) = window.padding
    image = sum(padded, start=jnp.zeros((), rows.dtype)).astype(g.dtype)
    return image[:, top : top + window.size[0], left : left + window.size[1]]


def _weight_gradient_matrix(window: Window, g: Array, x: Array) -> Array:
    columns = _columns(window, x)
    flat = _product(columns.reshape(-1, columns.shape[-1]), g.reshape(-1, g.shape[-1]), 0, 0)
    return flat.reshape(*window.kernel, x.shape[-1], g.shape[-1])
