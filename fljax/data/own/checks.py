"""Checks of a user's own examples: arrays of equal length, finite numbers, and known splits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fljax.data.items import as_array

PARTS = ("train", "val", "test")
"""Names of the splits in a column of the data."""
VALIDATION = ("validation", "valid", "dev")
"""Other names for "val"."""


def parts_of(part: Any) -> np.ndarray:
    """(examples,) words of `PARTS`; raises ValueError for another word."""
    array = np.asarray(part).astype(str)
    if array.ndim != 1:
        raise ValueError(f"part has shape {array.shape}; give one for each example")
    array = np.where(np.isin(array, VALIDATION), "val", array)
    if (is_unknown := ~np.isin(array, PARTS)).any():
        i = int(np.argmax(is_unknown))
        raise ValueError(f"part of example {i} is {str(array[i])!r}; choose one of {', '.join(PARTS)}")
    return array


def check_halves(part: np.ndarray) -> None:
    """Raises ValueError unless there are examples for training and for test, and none for validation."""
    if n_val := int((part == "val").sum()):
        raise ValueError(
            f"{n_val} examples are marked as val, but a partition takes validation examples from each client's "
            "examples (val_fraction); mark them as train or test"
        )
    for name in ("train", "test"):
        if not (part == name).any():
            raise ValueError(
                f"no example is marked as {name}, but a partition needs some; mark some, or mark none at all"
            )


def check_lengths(n: int, **columns: Any) -> None:
    """Raises ValueError for a column without exactly ``n`` values; None stands for no column."""
    for name, column in columns.items():
        if column is None:
            continue
        if not (shape := as_array(name, column).shape):
            raise ValueError(f"{name} is one value, {column!r}; give one for each of {n} examples")
        if shape[0] != n:
            raise ValueError(f"x has {n} examples and {name} {shape[0]}; give one for each example")


def check_finite(x: np.ndarray, client: np.ndarray, clients: Sequence[str]) -> None:
    """Raises ValueError for the first example with a number that is not finite in float32, naming its client."""
    if not np.issubdtype(x.dtype, np.floating):
        return
    fits = np.abs(x) <= np.finfo(np.float32).max if x.dtype.itemsize > 4 else np.isfinite(x)
    if not fits.all():
        row, *place = (int(i) for i in np.argwhere(~fits)[0])
        where = f", column {place[0]}" if len(place) == 1 else f" at {tuple(place)}" if place else ""
        whose, value = clients[int(client[row])], x[row, *place]
        raise ValueError(f"x of example {row}{where}, of client {whose!r}, is {value}; correct it, or leave it out")
