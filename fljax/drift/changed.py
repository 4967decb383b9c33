"""Checks of examples that a function has changed, so that a pool can store them."""

from typing import Any

import numpy as np


def changed(function: str, result: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A function's result for the examples ``x`` and labels ``y``, in their dtypes.

    Args:
        function: the function's name in messages.
        result: its result.
        x: the examples that it received.
        y: their labels.

    Raises:
        ValueError: the result is not a pair, has other shapes, or numbers outside of the dtypes.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        kind = f"{len(result)} things" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise ValueError(f"{function} returned {kind}; return a pair (x, y)")
    return _like(function, "x", result[0], x), _like(function, "y", result[1], y)


def _like(function: str, name: str, result: Any, original: np.ndarray) -> np.ndarray:
    result = np.asarray(result)
    if result.shape != original.shape:
        raise ValueError(
            f"{function} returned {name} of shape {result.shape} for {original.shape}; return as many examples as it "
            "received, of the same shape"
        )
    if result.dtype == original.dtype:
        return result
    if np.issubdtype(original.dtype, np.integer) and result.size:  # `astype` would silently wrap around
        least, most = np.iinfo(original.dtype).min, np.iinfo(original.dtype).max
        low, high = result.min(), result.max()
        if not (least <= low and high <= most):  # NaN is neither
            raise ValueError(
                f"{function} returned {name} from {low} to {high}; return values from {least} to {most}, "
                f"for {original.dtype}"
            )
    return result.astype(original.dtype)
