"""Data augmentation: a step sees another version of each of its examples, as a shifted or a mirrored image.

Augmentation is a term on a client's loss, so that all that the loss makes of an example, as a teacher's answer beside
the student's, is made of one version of it. What is measured of a client, and what a method does with its examples
besides training on them, sees them as they are.
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
"""``augment(key, x, hyper) -> x``: another version of one example, of its shape and type; ``hyper`` has its numbers."""


def augmented(augment: Augment) -> Callable[[Loss, Any], Loss]:
    """The `fljax.rounds.local.Term` by which a loss sees the examples of its batch through ``augment``.

    Each example has a random key of its own, in each step another one. Pixels are in [0, 1], before a network scales
    them (`fljax.models.normalized`).

    Raises:
        ValueError: in the loss, where ``augment`` gives an example of another shape or type.
    """

    def term(loss: Loss, hyper: Any) -> Loss:
        def seen(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
            key, drawn = jax.random.split(key)
            keys = descend(drawn, jnp.arange(len(batch.x)))  # which do not depend on how many places there are
            x = jax.vmap(lambda key, x: augment(key, x, hyper))(keys, batch.x)
            if (x.shape, x.dtype) != (batch.x.shape, batch.x.dtype):
                name, given, wanted = getattr(augment, "__name__", "augment"), x.shape[1:], batch.x.shape[1:]
                raise ValueError(
                    f"{name} gave an example of shape {given} and type {x.dtype}; give {wanted} and {batch.x.dtype}, "
                    "as it was given"
                )
            return loss(params, batch._replace(x=x), key, *own)

        return seen

    return term


def flip(key: Key, x: Array, hyper: Any) -> Array:
    """The image (height, width, ...) mirrored left to right with probability ``hyper.flip_rate``."""
    _check_image("flip", x)
    return jnp.where(jax.random.bernoulli(key, hyper.flip_rate), x[:, ::-1], x)


def crop(key: Key, x: Array, hyper: Any) -> Array:
    """A crop of the image (height, width, ...), of its size, out of it with ``hyper.crop_padding`` zeros on each side.

    That is the image shifted by up to so many whole pixels in either direction, each shift as likely as another.
    """
    _check_image("crop", x)
    most = _pixels(hyper.crop_padding)
    shift = jax.random.randint(key, (2,), -most, most + 1, jnp.int32)
    moved = jnp.roll(x, shift, (0, 1))
    for axis in (0, 1):
        came_from = jnp.arange(x.shape[axis]) - shift[axis]
        is_inside = (came_from >= 0) & (came_from < x.shape[axis])
        moved = jnp.where(_along(axis, is_inside, x), moved, 0)
    return moved


def cutout(key: Key, x: Array, hyper: Any) -> Array:
    """The image (height, width, ...) without a square of ``hyper.cutout_size`` pixels a side, which are 0.

    The square's centre is any pixel, so that a part of it may lie outside (DeVries and Taylor, 2017).
    """
    _check_image("cutout", x)
    size, is_cut = _pixels(hyper.cutout_size), jnp.bool_(True)
    for axis, key_axis in enumerate(jax.random.split(key)):
        first = jax.random.randint(key_axis, (), 0, x.shape[axis], jnp.int32) - size // 2
        place = jnp.arange(x.shape[axis])
        is_cut = is_cut & _along(axis, (place >= first) & (place < first + size), x)
    return jnp.where(is_cut, 0, x)


def _pixels(number: Any) -> Array:
    """A number of pixels, to the nearest whole one."""
    return jnp.round(jnp.asarray(number, jnp.float32)).astype(jnp.int32)


def _along(axis: int, mask: Array, x: Array) -> Array:
    """``mask`` of the places of an axis, to be used beside ``x``."""
    return mask.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _check_image(name: str, x: Array) -> None:
    """Raises ValueError where an example is no image."""
    if x.ndim < 2:
        raise ValueError(
            f"{name} moves pixels of images, (height, width, channels), and the examples are {x.shape}; leave it out, "
            "or give a function of your own by fljax.rounds.Brick(name, 'augment', function, summary)"
        )
