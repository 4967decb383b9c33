"""Figures of tables: a number for each pair of names, and a number against another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import Row, Spread

from fljax.run.plots import learning_curves, new_figure


def number(cell: Any) -> float:
    """A cell of a table as a number: the mean of a spread; NaN where there is none."""
    return np.nan if cell is None else float(cell.mean if isinstance(cell, Spread) else cell)


def grid(rows: Sequence[Row], row: str, column: str, value: str = "accuracy") -> Figure:
    """``value`` for each pair of the names in the columns ``row`` and ``column`` of a table, written into the cells."""
    lines, heads = (list(dict.fromkeys(str(one[name]) for one in rows)) for name in (row, column))
    found = np.full((len(lines), len(heads)), np.nan)
    for one in rows:
        found[lines.index(str(one[row])), heads.index(str(one[column]))] = number(one.get(value))
    figure, axes = new_figure(2.6 + 0.8 * len(heads), 1.4 + 0.42 * len(lines))
    image = axes.imshow(found, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), cell in np.ndenumerate(found):
        ink = "white" if cell > 0.5 else "#5A5A5A"
        axes.text(j, i, "" if np.isnan(cell) else f"{cell:.2f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(heads)), heads, rotation=40, ha="right")
    axes.set_yticks(range(len(lines)), lines)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label=value)
    return figure


def against(rows: Sequence[Row], x: str, by: str = "method", value: str = "accuracy") -> Figure:
    """``value`` against the number in the column ``x``, a line for each name in the column ``by``."""
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in dict.fromkeys(str(one[by]) for one in rows):
        pairs = sorted((number(one.get(x)), number(one.get(value))) for one in rows if str(one[by]) == name)
        finite = np.array([pair for pair in pairs if np.isfinite(pair).all()]).reshape(-1, 2)
        if len(finite):
            curves[name] = finite[:, 0], finite[:, 1]
    return learning_curves(curves, value, xlabel=x)
