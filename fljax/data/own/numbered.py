"""Names or ids of clients and classes as numbers from 0."""

from typing import Any

import numpy as np

from fljax.data.items import as_array
from fljax.data.own.cells import as_text, missing


def numbered(values: Any, what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """(examples,) int32, and the sorted names that they stand for; if all names are numbers, sorted by value.

    Raises:
        ValueError: the values are not a vector, or a value is missing.
    """
    array = as_array(f"{what}s", values)
    if array.ndim != 1:
        raise ValueError(f"{what}s have shape {array.shape}; give one for each example")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(
                f"{what} of example {int(np.argmin(np.isfinite(array)))} is missing; give one for each example"
            )
        array = array.astype(np.int64) if are_whole(array) else array
    if (gaps := missing(array)).any():
        raise ValueError(f"{what} of example {int(np.argmax(gaps))} is missing; give one for each example")
    if array.dtype.kind in "OS":
        array = np.array([as_text(value) for value in array], str)
    names, place = np.unique(array, return_inverse=True)
    if array.dtype.kind == "U" and all(name.removeprefix("-").isdecimal() for name in names):
        order = np.argsort(np.array([int(name) for name in names], object), kind="stable")  # 2 before 10
        names, place = names[order], np.argsort(order)[place]
    return place.astype(np.int32), tuple(str(name) for name in names)


def are_whole(values: np.ndarray) -> bool:
    """Whether all floating-point numbers are whole and fit into int64."""
    wide = values.astype(np.promote_types(values.dtype, np.float64))  # 2**63 is beyond float16
    return bool((np.isfinite(wide) & (np.abs(wide) < 2.0**63) & (wide == np.round(wide))).all())
