"""Values of a table's column: which are missing, and the values as text."""

from typing import Any

import numpy as np

EMPTY_NUMBERS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""What R, pandas, Julia and databases write for an empty cell. In a column of words these may be words."""


def is_missing(value: Any) -> bool:
    """Whether a value is None, a NaN, or the NaT or NA of NumPy and pandas."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # the truth value of pandas' NA is undefined
        return True
    except ValueError:  # an array in a cell
        return False


def is_empty(value: Any) -> bool:
    """Whether a value is missing, or a text of white space only."""
    return is_missing(value) or (isinstance(value, str) and not value.strip())


def is_empty_number(value: Any) -> bool:
    """Whether a value in a column of numbers is empty, or a text that other programs write for an empty cell."""
    return is_empty(value) or (isinstance(value, str) and value.strip() in EMPTY_NUMBERS)


def missing(column: np.ndarray) -> np.ndarray:
    """(rows,) bool: which values of a column are missing."""
    if column.dtype.kind in "biuSU":
        return np.zeros(len(column), bool)
    return np.array([is_missing(value) for value in column], bool)


def as_text(value: Any) -> str:
    """A value as text; bytes are decoded, and bytes that are not UTF-8 are written as escapes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
