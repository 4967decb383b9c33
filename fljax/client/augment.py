"""Data augmentation: each step trains on new versions of its examples, such as shifted or mirrored images.

Augmentation is a term on a client's loss, so that everything in the loss, such as a teacher's and a student's outputs,
is computed from the same version of an example. Metrics, and a method's computations other than training, use the
original examples.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.objectives import Loss
from fljax.keys import descend
from fljax.types import Batch, Key, Params

Augment = Callable[[Key, Array, Any], Array]
"""``augment(key, x, hyper) -> x``: a version of one example, of its shape and dtype; ``hyper``: hyperparameters."""


def augmented(augment: Augment) -> Callable[[Loss, Any], Loss]:
    """The `fljax.rounds.local.Term` that applies ``augment`` to the examples of a batch before the loss.

    Each example has its own random key, a new one in each step. Pixels are in [0, 1], before a network scales them
    (`fljax.models.normalized`).

    Raises:
        ValueError: in the loss, if ``augment`` returns an example of another shape or dtype.
    """

    def term(loss: Loss, hyper: Any) -> Loss:
        def seen(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
            key, key_augment = jax.random.split(key)
            keys = descend(key_augment, jnp.arange(len(batch.x)))  # independent of the batch's size
            x = jax.vmap(lambda key, x: augment(key, x, hyper))(keys, batch.x)
            if (x.shape, x.dtype) != (batch.x.shape, batch.x.dtype):
                name, shape, expected = getattr(augment, "__name__", "augment"), x.shape[1:], batch.x.shape[1:]
                raise ValueError(
                    f"{name} returned an example of shape {shape} and type {x.dtype}; return {expected} and "
                    f"{batch.x.dtype}, those of its input"
                )
            return loss(params, batch._replace(x=x), key, *own)

        return seen

    return term


def flip(key: Key, x: Array, hyper: Any) -> Array:
    """The image (height, width, ...) mirrored left to right with probability ``hyper.flip_rate``."""
    _check_image("flip", x)
    return jnp.where(jax.random.bernoulli(key, hyper.flip_rate), x[:, ::-1], x)


def crop(key: Key, x: Array, hyper: Any) -> Array:
    """A random crop of the image (height, width, ...), of its size, after zero padding by ``hyper.crop_padding``.

    It equals the image shifted by up to that many whole pixels in each direction; all shifts are equally likely.
    """
    _check_image("crop", x)
    max_shift = _pixels(hyper.crop_padding)
    shift = jax.random.randint(key, (2,), -max_shift, max_shift + 1, jnp.int32)
    shifted = jnp.roll(x, shift, (0, 1))
    for axis in (0, 1):
        source = jnp.arange(x.shape[axis]) - shift[axis]
        is_inside = (source >= 0) & (source < x.shape[axis])
        shifted = jnp.where(_along(axis, is_inside, x), shifted, 0)
    return shifted


def cutout(key: Key, x: Array, hyper: Any) -> Array:
    """The image (height, width, ...) with a random square of side ``hyper.cutout_size`` pixels set to 0.

    The square's centre may be any pixel, so part of the square may be outside the image (DeVries and Taylor, 2017).
    """
    _check_image("cutout", x)
    size, is_cut = _pixels(hyper.cutout_size), jnp.bool_(True)
    for axis, key_axis in enumerate(jax.random.split(key)):
        begin = jax.random.randint(key_axis, (), 0, x.shape[axis], jnp.int32) - size // 2
        position = jnp.arange(x.shape[axis])
        is_cut = is_cut & _along(axis, (position >= begin) & (position < begin + size), x)
    return jnp.where(is_cut, 0, x)


def _pixels(number: Any) -> Array:
    """A number of pixels, rounded."""
    return jnp.round(jnp.asarray(number, jnp.float32)).astype(jnp.int32)


def _along(axis: int, mask: Array, x: Array) -> Array:
    """``mask`` over the positions of an axis, shaped to broadcast against ``x``."""
    return mask.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _check_image(name: str, x: Array) -> None:
    """Raises ValueError if an example is not an image."""
    if x.ndim < 2:
        raise ValueError(
            f"{name} needs images (height, width, channels), but the examples are {x.shape}; leave it out, or give "
            "your own function by fljax.rounds.Brick(name, 'augment', function, summary)"
        )
