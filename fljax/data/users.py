"""Examples that come with their users, the persons who made them."""

from typing import NamedTuple, cast

import numpy as np
from jax import Array

from fljax.data.shown import short

NAME = np.dtype("S64")
"""The dtype of a cached column of users: UTF-8, padded with zeros."""


class UserExamples(NamedTuple):
    """Labelled examples of natural users; train and test share ``names``."""

    x: Array  # (examples, height, width, channels) uint8
    y: Array  # (examples,) int32
    user: np.ndarray  # (examples,) int32 into names
    names: tuple[str, ...]


def with_users(x: np.ndarray, y: np.ndarray, user: np.ndarray, names: tuple[str, ...]) -> UserExamples:
    """NumPy arrays as `UserExamples`."""
    return UserExamples(cast(Array, x), cast(Array, np.asarray(y, np.int32)), np.asarray(user, np.int32), names)


def encode(names: list[str], source: object = "the data") -> np.ndarray:
    """Names from ``source`` as a column of the cache.

    Raises:
        ValueError: a name is too long, or would be read back as another name.
    """
    column = [name.encode(errors="replace") for name in names]
    if max(map(len, column), default=0) > NAME.itemsize:
        raise ValueError(
            f"{source}: user {short(max(names, key=len))} has a name of more than {NAME.itemsize} bytes of UTF-8"
        )
    if bad := next((name for name in names if "\0" in name or not _is_unicode(name)), None):
        raise ValueError(f"{source}: user {short(bad)} has a zero byte or half a character in the name; get it again")
    return np.array(column, NAME)


def join(train: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> tuple[UserExamples, UserExamples]:
    """Columns ``x, y, user`` (bytes) of both splits, with the users of both numbered in the order of their names."""
    names, user = np.unique(np.concatenate([train["user"], test["user"]]), return_inverse=True)
    texts = tuple(name.decode() for name in names.tolist())
    cut = len(train["y"])
    first = with_users(train["x"], train["y"], user[:cut], texts)
    return first, with_users(test["x"], test["y"], user[cut:], texts)


def _is_unicode(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
