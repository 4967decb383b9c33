"""Cells of a table that cannot be read: where they stand, and those of all columns in one line."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fljax.data.shown import short


class Where(NamedTuple):
    """How to say where a value stands."""

    client: np.ndarray | None
    lines: Sequence[int] | None  # of a text file, where its rows begin
    is_of_run: bool = True  # or of new examples, whose columns are as the run's were

    def row(self, i: int) -> str:
        """A row of the table, as a text editor or the frame counts, and whose it is."""
        whose = "" if self.client is None else f" (client {short(str(self.client[i]))})"
        return f"{f'row {i}' if self.lines is None else f'line {self.lines[i]}'}{whose}"


class BadCellsError(ValueError):
    """Values of one column that cannot be."""

    def __init__(self, said: str, name: str, where: str, n: int) -> None:
        super().__init__(said)
        self.name, self.where, self.n = name, where, n


def check_none(bad: Sequence[BadCellsError], most: int = 5) -> None:
    """Raises ValueError with what is wrong in the first column, and where up to ``most`` others are wrong too."""
    if not bad:
        return
    told = [f"{one.name!r} ({one.where}{f' and {one.n - 1} more' if one.n > 1 else ''})" for one in bad[1 : 1 + most]]
    others = [f"{n} more"] if (n := len(bad) - 1 - len(told)) else []
    also = f"; other columns with such values: {', '.join([*told, *others])}" if told else ""
    raise ValueError(f"{bad[0]}{also}")


def and_more(n: int) -> str:
    """The number of further bad values in a column that has ``n`` of them."""
    return f" ({n - 1} more such value{'s' * (n > 2)} in this column)" if n > 1 else ""
