"""Figures of tables: a number for each pair of names, and a number against another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import Row, Spread

from fljax.report.plots import learning_curves, new_figure


def number(cell: Any) -> float:
    """A cell of a table as a number: the mean of a spread; NaN where there is none."""
    return np.nan if cell is None else float(cell.mean if isinstance(cell, Spread) else cell)


def grid(rows: Sequence[Row], row: str, column: str, value: str = "accuracy") -> Figure:
    """``value`` for each pair of the names in the columns ``row`` and ``column`` of a table, written into the cells."""
    row_names, column_names = (
        list(dict.fromkeys(str(table_row[name]) for table_row in rows)) for name in (row, column)
    )
    values = np.full((len(row_names), len(column_names)), np.nan)
    for table_row in rows:
        values[row_names.index(str(table_row[row])), column_names.index(str(table_row[column]))] = number(
            table_row.get(value)
        )
    figure, axes = new_figure(2.6 + 0.8 * len(column_names), 1.4 + 0.42 * len(row_names))
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), cell in np.ndenumerate(values):
        ink = "white" if cell > 0.5 else "#5A5A5A"
        axes.text(j, i, "" if np.isnan(cell) else f"{cell:.2f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(column_names)), column_names, rotation=40, ha="right")
    axes.set_yticks(range(len(row_names)), row_names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label=value)
    return figure


def against(rows: Sequence[Row], x: str, by: str = "method", value: str = "accuracy") -> Figure:
    """``value`` against the number in the column ``x``, a line for each name in the column ``by``."""
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in dict.fromkeys(str(table_row[by]) for table_row in rows):
        pairs = sorted(
            (number(table_row.get(x)), number(table_row.get(value))) for table_row in rows if str(table_row[by]) == name
        )
        finite = np.array([pair for pair in pairs if np.isfinite(pair).all()]).reshape(-1, 2)
        if len(finite):
            curves[name] = finite[:, 0], finite[:, 1]
    return learning_curves(curves, value, xlabel=x)
