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

    def __init__(self, said: str, name: str, where: str, n: int) -> None:
        super().__init__(said)
        self.name, self.where, self.n = name, where, n


def check_none(bad: Sequence[BadCellsError], most: int = 5) -> None:
    """Raises ValueError with the fault of the first column, and the places of faults in up to ``most`` others."""
    if not bad:
        return
    shown = [f"column {one.name!r} at {one.where}{f' and {one.n - 1} more' * (one.n > 1)}" for one in bad[1 : 1 + most]]
    others = [f"{n} more columns"] if (n := len(bad) - 1 - len(shown)) else []
    also = f"; also {', '.join([*shown, *others])}" if shown else ""
    raise ValueError(f"{bad[0]}{also}")


def and_more(n: int) -> str:
    """The number of invalid values besides the first, of ``n`` in a column; "" if there are none."""
    return f" ({n - 1} more in this column)" if n > 1 else ""
