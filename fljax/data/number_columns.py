"""Columns of a table as numbers."""

import re
from typing import Any

import numpy as np

from fljax.data.bad_cells import BadCellsError, Where, and_more
from fljax.data.cells import is_empty
from fljax.data.shown import short

_OF_WORDS = "--category-column, --text-column or --ignored-column (in Python Columns(categories=, text=, ignored=))"
_OF_CLIENTS = "--client-column (Columns(client=)) if it names the client, else "
WITH_POINTS = "write numbers with a point, and not with a comma"
_NO_NUMBERS = (np.datetime64, np.timedelta64, complex)
"""What NumPy makes a number of, and should not."""


def numbers_of(
    column: np.ndarray, name: str, where: Where, of_words: str = "", may_be_empty: bool = False
) -> np.ndarray:
    """A column as float32; ``of_words``: what to make of one of words; an empty cell that may be one is NaN.

    Raises:
        ValueError: it has dates, durations or complex numbers, or naming the first value that is no finite number.
    """
    if column.dtype.kind in "mMc":
        what = "complex numbers" if column.dtype.kind == "c" else "dates or durations"
        raise ValueError(f"column {name!r} has {what} ({column.dtype}); make them numbers, or leave the column out")
    try:
        if column.dtype == object and any(isinstance(value, _NO_NUMBERS) for value in column):
            raise TypeError
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([as_number(value) for value in column])
    bad = ~np.isfinite(numbers) | (np.abs(numbers) > np.finfo(np.float32).max)
    if may_be_empty:
        bad[bad] = [not is_empty(value) for value in column[bad]]
    if bad.any():
        raise _bad_cells(column, bad, name, where, of_words)
    return numbers.astype(np.float32)


def _bad_cells(column: np.ndarray, bad: np.ndarray, name: str, where: Where, of_words: str) -> BadCellsError:
    i, n = int(np.argmax(bad)), int(bad.sum())
    value = column[i]
    empty = is_empty(value)
    what = "empty" if empty else f"{short(str(value))}, no finite number"
    is_word = isinstance(value, str) and not empty
    whose = "" if where.client is not None else _OF_CLIENTS
    words = f"{of_words or f'declare the column with {whose}{_OF_WORDS}'}, or " if is_word else ""
    fill = ", fill it (--fill median, Columns(fill=...))" if empty and not of_words else ""
    remedy = f"{words}correct it{fill}, or leave the {'' if is_word else 'column or the '}row out"
    remedy = remedy if where.is_of_run else "correct it, or leave the row out"
    remedy = WITH_POINTS if is_word and has_decimal_comma(value) else remedy
    return BadCellsError(f"{where.row(i)}, column {name!r} is {what}{and_more(n)}; {remedy}", name, where.row(i), n)


def as_number(value: Any) -> float:
    """A cell as a number, NaN for what is none."""
    if isinstance(value, _NO_NUMBERS):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def has_decimal_comma(value: str) -> bool:
    """Whether a text is a number whose decimals begin after a comma."""
    return re.fullmatch(r"\s*[+-]?\d*,\d+\s*", value) is not None
