"""Changes to stacks of images, on the host: rotation, resizing, handwriting styles and noise."""

import numpy as np
import scipy  # its submodules are imported on first use

_CHUNK = 4096


def rotate(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images (n, height, width, channels) rotated counter-clockwise; multiples of 90 are exact, others bilinear.

    Corners that come from outside the image are 0.

    Raises:
        ValueError: a quarter turn of images that are not square, or examples that are not images.
    """
    if x.ndim < 3:
        raise ValueError(f"examples have shape {x.shape[1:]}; only images, (height, width, channels), can be rotated")
    quarters, rest = divmod(degrees, 90)
    if rest:
        angle = np.deg2rad(degrees)
        return affine(x, np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]))
    if quarters % 2 and x.shape[1] != x.shape[2]:
        size = f"{x.shape[1]} by {x.shape[2]}"
        raise ValueError(f"images of {size} cannot be rotated by {degrees:g} degrees; use square images")
    return np.rot90(x, int(quarters), axes=(1, 2))


def affine(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Images (n, height, width, channels) resampled bilinearly: ``out(c + r) = x(c + matrix r)`` about the centre c.

    ``r`` is (row, column); pixels outside the image are 0. uint8 in, uint8 out.

    Raises:
        ValueError: examples that are not images.
    """
    if x.ndim != 4:
        raise ValueError(f"examples have shape {x.shape[1:]}; give images (height, width, channels)")
    stack = np.moveaxis(x, 3, 1)
    shape = stack.shape
    full = np.eye(3)
    full[1:, 1:] = matrix
    centre = np.array([0, (shape[2] - 1) / 2, (shape[3] - 1) / 2])
    flat = stack.reshape(-1, *shape[2:]).astype(np.float32)
    offset = centre - full @ centre
    out = scipy.ndimage.affine_transform(flat, full, offset, order=1)
    return np.moveaxis(_in_dtype_of(x, out).reshape(shape), 1, 3)


def resize(x: np.ndarray, side: int) -> np.ndarray:
    """Images (n, height, width, channels) as (n, side, side, channels), bilinear, with antialiasing if they shrink."""
    if side < 1:
        raise ValueError(f"side={side}: give the height and width in pixels, at least 1")
    if x.shape[1:3] == (side, side):
        return x
    import jax.image  # imported here, so that partitions without resize start no JAX backend
    import jax.numpy as jnp

    out = np.empty((len(x), side, side, x.shape[3]), x.dtype)
    for start in range(0, len(x), _CHUNK):
        part = jnp.asarray(x[start : start + _CHUNK], jnp.float32)
        shape = (part.shape[0], side, side, part.shape[3])
        out[start : start + _CHUNK] = _in_dtype_of(x, np.asarray(jax.image.resize(part, shape, "linear")))
    return out


def thicken(x: np.ndarray, amount: float) -> np.ndarray:
    """Bright strokes made thicker (0 to 1) or thinner (-1 to 0): a blend with the 3 by 3 maximum or minimum."""
    extreme = scipy.ndimage.maximum_filter if amount > 0 else scipy.ndimage.minimum_filter
    blend = (1 - abs(amount)) * x.astype(np.float32) + abs(amount) * extreme(x, size=(1, 3, 3, 1))
    return _in_dtype_of(x, blend)


def gamma_curve(x: np.ndarray, gamma: float) -> np.ndarray:
    """uint8 pixels mapped by ``255 (x / 255)^gamma``; gamma below 1 makes faint strokes stronger."""
    curve = np.round(255 * (np.arange(256) / 255) ** gamma).astype(np.uint8)
    return curve[x]


def _in_dtype_of(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values), 0, 255).astype(np.uint8) if x.dtype == np.uint8 else values.astype(x.dtype)


def with_noise(rng: np.random.Generator, x: np.ndarray, std: float) -> np.ndarray:
    """Inputs with normal noise of standard deviation ``std`` in units of their range (255 for uint8, 1 for others)."""
    top = 255.0 if x.dtype == np.uint8 else 1.0
    noisy = x.astype(np.float64) + rng.normal(0, std * top, x.shape)
    return (np.clip(noisy, 0, top) if x.dtype == np.uint8 else noisy).astype(x.dtype)
