"""Input normalisation as part of a model: pixels stay uint8 in the pool, and the network scales them.

A batch has ``pixels / 255`` (`fljax.data.federation.minibatch`); a model made by `normalized` subtracts a mean and
divides by a standard deviation before its first layer, which XLA does in the pass that converts the pixels. The two
numbers are part of the model, so results folders record them (`fljax.run.identity`), and new clients, tests and
fine-tuning always apply them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fljax.argument_kinds import checked_kinds
from fljax.models.task import as_float32
from fljax.types import Halves, Key, Model, Params

Channels = float | tuple[float, ...]
"""One number for all channels of an image, or one per channel."""
_PerChannel = Channels | Array | np.ndarray
Normalize = str | tuple[_PerChannel, _PerChannel]
"""``"unit"``, ``"centred"`` or (mean, deviation)."""

NORMALIZATIONS: dict[str, tuple[Channels, Channels]] = {"unit": (0.0, 1.0), "centred": (0.5, 0.5)}
"""Name -> (mean, deviation), which are subtracted and divided by, in units of the full scale 255."""


@checked_kinds
def normalized(model: Model, normalize: Normalize) -> Model:
    """The model whose inputs are ``(x - mean) / deviation``, where x is ``pixels / 255``.

    Args:
        model: the network; also one with a Gaussian representation.
        normalize: "unit": ``model`` itself, with inputs in [0, 1]; "centred": mean 0.5 and deviation 0.5, that is
            inputs in [-1, 1]; or (mean, deviation), such as ``(0.1307, 0.3081)`` for MNIST: each a number for all
            channels, a tuple with one per channel, or an array () or (channels,), in units of the full scale. Arrays
            may be traced, so that one program serves several normalisations.

    Returns:
        A model with the same parameters and layers. Equal numbers return the same object, which compiles once; traced
        arrays are not part of the model's description.

    Raises:
        ValueError: an unknown name, a number that is not finite, a deviation that is not positive, or a network for
            tokens, which have no scale.
    """
    if not _is_unit(normalize) and (kind := dict(model.about).get("input_dtype")):
        raise ValueError(f"the network takes {kind} tokens, which have no scale; leave normalize at 'unit'")
    if isinstance(normalize, tuple) and any(isinstance(part, Tracer) for part in normalize):
        return _scaling(model, *normalize)
    mean, deviation = _numbers(normalize)
    return model if (mean, deviation) == NORMALIZATIONS["unit"] else _wrap(model, mean, deviation)


def _is_unit(normalize: Any) -> bool:
    return isinstance(normalize, str) and normalize == "unit"


@cache
def _wrap(model: Model, mean: Channels, deviation: Channels) -> Model:
    numbers = (("mean", mean), ("deviation", deviation)) if model.about else ()  # else the network has no description
    return _scaling(model, mean, deviation)._replace(about=(*model.about, *numbers))


def _scaling(model: Model, mean: _PerChannel, deviation: _PerChannel) -> Model:
    def scaled(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(jnp.float32)  # as integers, the two numbers would lose their fractions
        return (x - _by_channel("mean", mean, x)) / _by_channel("deviation", deviation, x)

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        return model.apply(params, scaled(x), key)

    halves = None if model.halves is None else _halves(model.halves, scaled)
    return model._replace(apply=apply, halves=halves)


def _halves(halves: Halves, scaled: Callable[[Array], Array]) -> Halves:
    def encode(params: Params, x: Array) -> tuple[Array, Array]:
        return halves.encode(params, scaled(x))

    return halves._replace(encode=encode)


def _by_channel(name: str, value: _PerChannel, x: Array) -> Array:
    """The numbers as an array that broadcasts with (batch, ..., channels)."""
    numbers = jnp.asarray(value, x.dtype)
    if numbers.ndim and numbers.shape != x.shape[-1:]:
        text = f"normalize has a {name} of {numbers.size} channels and the examples have {x.shape[-1]}"
        raise ValueError(f"{text}; give one number, or one per channel")
    return numbers.reshape((1,) * (x.ndim - 1) + (-1,)) if numbers.ndim else numbers


def _numbers(normalize: Any) -> tuple[Channels, Channels]:
    """Mean and deviation as floats or tuples of them, checked."""
    allowed = f"give {', '.join(map(repr, NORMALIZATIONS))} or (mean, deviation), each a number or one per channel"
    if isinstance(normalize, str):
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize={normalize!r}: {allowed}")
        return NORMALIZATIONS[normalize]
    try:
        mean, deviation = (_channels(part) for part in normalize)
    except (TypeError, ValueError):
        raise ValueError(f"normalize={normalize!r}: {allowed}") from None
    flat = [value for part in (mean, deviation) for value in (part if isinstance(part, tuple) else (part,))]
    if not np.isfinite(as_float32(flat)).all():
        raise ValueError(f"normalize={normalize!r}: the numbers must be finite")
    if not as_float32(deviation).min() > 0:
        raise ValueError(f"normalize={normalize!r}: the deviation must be above 0")
    return mean, deviation


def _channels(numbers: object) -> Channels:
    if isinstance(numbers, np.ndarray | Array):
        numbers = numbers.tolist()
    if isinstance(numbers, tuple | list):
        if not numbers:
            raise ValueError("no channel")
        return tuple(float(number) for number in numbers)
    return float(numbers)  # pyrefly: ignore[bad-argument-type]
