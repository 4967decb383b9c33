"""Examples that come with the person who made them."""

from typing import NamedTuple, cast

import numpy as np
from jax import Array

from fljax.types import Examples


class UserExamples(NamedTuple):
    """A labelled set by natural users; train and test share ``names``."""

    x: Array  # (examples, height, width, channels) uint8
    y: Array  # (examples,) int32
    user: np.ndarray  # (examples,) int32 into names
    names: tuple[str, ...]


Data = Examples | UserExamples


def with_users(x: np.ndarray, y: np.ndarray, user: np.ndarray, names: tuple[str, ...]) -> UserExamples:
    """NumPy arrays as `UserExamples`."""
    return UserExamples(cast(Array, x), cast(Array, np.asarray(y, np.int32)), np.asarray(user, np.int32), names)
