"""Arrays made of single examples, such as the items of a PyTorch data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

_ALLOWED = "give a pair of arrays (x, y), or a data set: an object with a length and items data[i] = (x_i, y_i)"


def arrays_of(data: Any, whose: str) -> tuple[np.ndarray, np.ndarray]:
    """A pair of arrays ``(x, y)``, or a data set whose items are ``(x_i, y_i)``, as arrays (examples, ...).

    Args:
        data: the pair, or an object with ``__len__`` and ``__getitem__``, such as a ``torch.utils.data.Dataset``.
        whose: the owner, for messages.

    Raises:
        ValueError: it is neither, has no examples, or its items are not pairs or differ in shape.
    """
    if isinstance(data, tuple | list) or (isinstance(data, np.ndarray | Array) and data.ndim):
        if len(data) != 2:
            raise ValueError(f"{whose} has a {type(data).__name__} of length {len(data)}; {_ALLOWED}")
        x, y = as_array(f"{whose}'s x", data[0]), as_array(f"{whose}'s y", data[1])
    elif isinstance(data, Mapping | str | np.ndarray | Array) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    ):
        raise ValueError(f"{whose} has a {type(data).__name__}; {_ALLOWED}")
    else:
        items = [data[i] for i in range(len(data))]  # by index: iterating over a PyTorch data set need not end
        x, y = (_stacked(items, part, whose) for part in range(2))
    if not (x.ndim and y.ndim):
        raise ValueError(f"{whose} has x of shape {x.shape} and y of shape {y.shape}; {_ALLOWED}")
    if not len(x):
        raise ValueError(f"{whose} has no examples; leave it out")
    return x, y


def as_array(name: str, values: Any) -> np.ndarray:
    """``values`` as an array.

    Raises:
        ValueError: they are lists of different lengths.
    """
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name}: examples have different shapes; give an array (examples, ...)") from None


def check_float32(what: str, array: np.ndarray | Array) -> None:
    """Raises ValueError for the first finite number that float32 cannot hold; ``what`` names one number."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return
    values = np.asarray(array)
    is_beyond = np.isfinite(values) & (np.abs(values) > float(np.finfo(np.float32).max))
    if is_beyond.any():
        raise ValueError(f"{what} {values[is_beyond][0]:g} is too large for float32; correct it, or scale all")


def _stacked(items: Sequence[Any], part: int, whose: str) -> np.ndarray:
    """The x (0) or the y (1) of all items, (examples, ...)."""
    parts = []
    for i, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"{whose}: item {i} is a {type(item).__name__}, not (x, y); {_ALLOWED}")
        parts.append(np.asarray(item[part]))
        if (shape := parts[i].shape) != (first := parts[0].shape):
            what = "xy"[part]
            raise ValueError(
                f"{whose}: the {what} of item {i} has shape {shape} and that of item 0 {first}; give one shape"
            )
    return np.stack(parts) if parts else np.zeros(0)
