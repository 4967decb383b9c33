"""Several inputs of any rank in one array, such as an image and a few numbers, or a sequence and its length.

A federation holds one array of examples, which is gathered, padded and distributed over devices. `pack` places several
inputs side by side in it; the network separates them with `Layout.unpack`, at the cost of a slice per input.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.data.items import as_array, check_float32
from fljax.ranges import said

_LARGEST = 1 << 24
"""Whole numbers up to this are exact in float32."""


class Layout(NamedTuple):
    """The place of each input in a packed example; static and hashable."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of one example
    whole: tuple[bool, ...]  # whether an input has whole numbers

    def unpack(self, x: Array) -> dict[str, Array]:
        """``x`` (batch, floats) as ``{name: (batch, *shape)}``: int32 if whole numbers were packed, else float32.

        Raises:
            ValueError: ``x`` has another number of floats.
        """
        sizes = [math.prod(shape) for shape in self.shapes]
        if x.ndim != 2 or x.shape[1] != sum(sizes):
            raise ValueError(f"x has shape {x.shape}; give packed examples, (batch, {sum(sizes)})")
        parts = jnp.split(x, np.cumsum(sizes)[:-1], axis=1)
        shaped = (part.reshape(len(x), *shape) for part, shape in zip(parts, self.shapes, strict=True))
        return {
            name: jnp.round(part).astype(jnp.int32) if is_whole else part
            for name, part, is_whole in zip(self.names, shaped, self.whole, strict=True)
        }


def pack(inputs: Mapping[str, Any]) -> tuple[np.ndarray, Layout]:
    """``{name: (examples, ...)}`` as one float32 array (examples, floats), and its layout.

    Pixels of type ``uint8`` are divided by 255, as for a network with one input. `Layout.unpack` returns other whole
    numbers, such as tokens, unchanged.

    Raises:
        ValueError: no input, different numbers of examples, text, numbers that float32 cannot hold, or whole
            numbers that are not exact in it.
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(f"{said('inputs', inputs)} is not a dict; give one array for each name")
    arrays = {name: as_array(f"input {name!r}", value) for name, value in inputs.items()}
    if not arrays:
        raise ValueError("inputs are empty; give one array for each name")
    counts = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(counts.values())) > 1 or None in counts.values():
        raise ValueError(f"inputs have {counts} examples; give each the same number")
    for name, array in arrays.items():
        if array.dtype.kind not in "bfiu":
            raise ValueError(f"input {name!r} is of type {array.dtype}; give numbers")
        check_float32(f"input {name!r}:", array)
        if array.dtype.kind not in "iu" or not array.size:
            continue
        low, high = int(array.min()), int(array.max())
        if (largest := max(-low, high)) > _LARGEST:  # not `abs`, which leaves the least number of a type negative
            raise ValueError(f"input {name!r} has {largest}; give whole numbers up to {_LARGEST}")
    flat = [_floats(array).reshape(len(array), math.prod(array.shape[1:])) for array in arrays.values()]
    is_whole = tuple(array.dtype.kind in "iu" and array.dtype != np.uint8 for array in arrays.values())
    return np.concatenate(flat, axis=1), Layout(
        tuple(arrays), tuple(array.shape[1:] for array in arrays.values()), is_whole
    )


def _floats(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) / np.float32(255 if array.dtype == np.uint8 else 1)
