"""Columns of a table as numbers."""

import re
from typing import Any

import numpy as np

from fljax.data.own.bad_cells import BadCellsError, Where, and_more
from fljax.data.own.cells import is_empty, is_empty_number
from fljax.data.shown import short

_ROLES = "--category-column, --text-column or --ignored-column (in Python, in fljax.Columns)"
"""Other roles for a column of words."""
WITH_POINTS = "write numbers with a decimal point, not with a comma"
_NO_NUMBERS = (np.datetime64, np.timedelta64, complex)
"""Types that NumPy converts to numbers, but that are none here."""


def numbers_of(
    column: np.ndarray, name: str, where: Where, of_words: str = "", may_be_empty: bool = False
) -> np.ndarray:
    """A column as float32.

    Args:
        column: its values.
        name: of the column.
        where: how to name the place of a value.
        of_words: advice for a column of words; "": the roles that it may have instead.
        may_be_empty: True: empty cells, and texts such as NA that stand for them, become NaN.

    Raises:
        ValueError: the column has dates, durations or complex numbers, or a value that is not a finite number (the
            first is named).
    """
    if column.dtype.kind in "mMc":
        what = "complex numbers" if column.dtype.kind == "c" else "dates or durations"
        raise ValueError(f"column {name!r} has {what} ({column.dtype}); make them numbers, or leave the column out")
    try:
        if column.dtype.kind in "OUS" and any(map(_is_no_number, column)):
            raise TypeError
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([as_number(value) for value in column])
    is_bad = ~np.isfinite(numbers) | (np.abs(numbers) > np.finfo(np.float32).max)
    if may_be_empty:
        is_bad[is_bad] = [not is_empty_number(value) for value in column[is_bad]]
    if is_bad.any():
        raise _bad_cells(column, is_bad, name, where, of_words)
    return numbers.astype(np.float32)


def _bad_cells(column: np.ndarray, is_bad: np.ndarray, name: str, where: Where, of_words: str) -> BadCellsError:
    i, n = int(np.argmax(is_bad)), int(is_bad.sum())
    value = column[i]
    is_blank = is_empty_number(value)
    what = "empty" if is_empty(value) else short(str(value)) + (", not a finite number" if not is_blank else "")
    is_word = isinstance(value, str) and not is_empty(value)
    fill = ", fill it (--fill median, Columns(fill=...))" if is_blank and not of_words else ""
    words = f"; {of_words or _other_roles(where)}" if is_word else ""
    remedy = f"correct it{fill}, or leave the row or the column out{words}"
    remedy = remedy if where.is_of_run else "correct it, or leave the row out"
    remedy = WITH_POINTS if is_word and has_decimal_comma(value) else remedy
    return BadCellsError(f"{where.row(i)}, column {name!r} is {what}{and_more(n)}; {remedy}", name, where.row(i), n)


def _other_roles(where: Where) -> str:
    clients = "" if where.client is not None else "--client-column, "
    return f"if it holds no numbers, name it by {clients}{_ROLES}"


def as_number(value: Any) -> float:
    """A cell as a number; NaN if it is not a number."""
    if _is_no_number(value):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _is_no_number(value: Any) -> bool:
    """Whether a cell is none, although Python converts it to one: the code 1_0 would be 10."""
    return isinstance(value, _NO_NUMBERS) or (isinstance(value, str | bytes) and "_" in str(value))


def has_decimal_comma(value: str) -> bool:
    """Whether a text is a number with a decimal comma."""
    return re.fullmatch(r"\s*[+-]?\d*,\d+\s*", value) is not None
