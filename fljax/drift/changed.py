"""Checks of examples that a function has changed, so that a pool can store them."""

from typing import Any

import numpy as np


def changed(who: str, made: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A function's result for the examples ``x`` and labels ``y``, in their dtypes.

    Args:
        who: the function's name in messages.
        made: its result.
        x: the examples that it received.
        y: their labels.

    Raises:
        ValueError: the result is not a pair, has other shapes, or numbers outside of the dtypes.
    """
    if not isinstance(made, tuple) or len(made) != 2:
        kind = f"{len(made)} things" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise ValueError(f"{who} gave {kind}; give a pair (x, y)")
    return _like(who, "x", made[0], x), _like(who, "y", made[1], y)


def _like(who: str, name: str, made: Any, given: np.ndarray) -> np.ndarray:
    made = np.asarray(made)
    if made.shape != given.shape:
        raise ValueError(
            f"{who} gave {name} of shape {made.shape} for {given.shape}; give as many examples as there are, in their "
            "shape"
        )
    if made.dtype == given.dtype:
        return made
    if np.issubdtype(given.dtype, np.integer) and made.size:  # `astype` would silently wrap around
        least, most = np.iinfo(given.dtype).min, np.iinfo(given.dtype).max
        low, high = made.min(), made.max()
        if not (least <= low and high <= most):  # NaN is neither
            raise ValueError(
                f"{who} gave {name} from {low} to {high}, and {given.dtype} has {least} to {most}; clip them"
            )
    return made.astype(given.dtype)
