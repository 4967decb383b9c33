"""Cells of a table that cannot be read: their places, and one message about those of all columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fljax.data.shown import short


class Where(NamedTuple):
    """How messages name the place of a value."""

    client: np.ndarray | None
    lines: Sequence[int] | None  # where the rows of a text file begin
    is_of_run: bool = True  # False: new examples, whose columns are those of the run

    def row(self, i: int) -> str:
        """The line of row ``i`` in a text file, or its number in a frame, and its client."""
        whose = "" if self.client is None else f" (client {short(str(self.client[i]))})"
        return f"{f'row {i}' if self.lines is None else f'line {self.lines[i]}'}{whose}"


class BadCellsError(ValueError):
    """Invalid values of one column."""

    def __init__(self, message: str, name: str, where: str, n: int) -> None:
        super().__init__(message)
        self.name, self.where, self.n = name, where, n


def check_none(errors: Sequence[BadCellsError], most: int = 5) -> None:
    """Raises ValueError with the fault of the first column, and the places of faults in up to ``most`` others."""
    if not errors:
        return
    places = [
        f"column {error.name!r} at {error.where}{f' and {error.n - 1} more' * (error.n > 1)}"
        for error in errors[1 : 1 + most]
    ]
    remainder = [f"{n} more columns"] if (n := len(errors) - 1 - len(places)) else []
    also_text = f"; also {', '.join([*places, *remainder])}" if places else ""
    raise ValueError(f"{errors[0]}{also_text}")


def and_more(n: int) -> str:
    """The number of invalid values besides the first, of ``n`` in a column; "" if there are none."""
    return f" ({n - 1} more in this column)" if n > 1 else ""
