"""Figures of tables and runs: a number for each pair of names, curves and bars over seeds, and maps of matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from lines import over_participants
from matplotlib import colormaps
from matplotlib.figure import Figure
from reporting import Result
from tables import Row, Spread

from fljax.report.plots import COLORS, learning_curves, new_figure


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
    """``value`` against the number in the column ``x``, a line for each name in the column ``by``.

    Where it is a spread over several seeds, a band goes from the least to the most.
    """
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in dict.fromkeys(str(table_row[by]) for table_row in rows):
        points = sorted(
            (number(table_row.get(x)), number(cell), *ends(cell))
            for table_row in rows
            if str(table_row[by]) == name
            for cell in (table_row.get(value),)
        )
        finite = np.array([point for point in points if np.isfinite(point).all()]).reshape(-1, 4)
        if len(finite):
            curves[name] = finite[:, 0], finite[:, 1]
            bands[name] = finite[:, 2], finite[:, 3]
    return learning_curves(curves, value, xlabel=x, spread=bands)


def ends(cell: Any) -> tuple[float, float]:
    """The least and the most of a spread; a number twice."""
    values = cell.values if isinstance(cell, Spread) else (number(cell),)
    return min(values), max(values)


def over_rounds(results: Sequence[Result], name: str, ylabel: str, by_setting: bool = False) -> Figure:
    """The mean over seeds of a metric, round by round, and a band from the least to the most of the seeds.

    A curve for each method, or, ``by_setting``, for each setting. Rounds without a value are left out.
    """
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    name_of = lambda r: r.setting if by_setting else r.method  # noqa: E731
    for curve in dict.fromkeys(map(name_of, results)):
        runs = np.stack([over_participants(result, name) for result in results if name_of(result) == curve])
        measured = np.isfinite(runs).all(axis=0)
        values = runs[:, measured]
        curves[curve] = np.flatnonzero(measured) + 1, values.mean(axis=0)
        bands[curve] = values.min(axis=0), values.max(axis=0)
    return learning_curves(curves, ylabel, spread=bands)


def maps(
    panels: Sequence[tuple[str, np.ndarray]],
    labels: Sequence[str],
    names: tuple[str, str] = ("client", "client"),
    n_columns: int | None = None,
    without_diagonal: bool = True,
) -> Figure:
    """Matrices side by side, each on a scale of its own.

    Args:
        panels: titles, and (rows, columns) values.
        labels: what the values of each panel are.
        names: of the rows and the columns.
        n_columns: panels in a row; None: all.
        without_diagonal: whether the diagonal, of a thing with itself, is grey.
    """
    n_columns = n_columns or len(panels)
    n_rows = -(-len(panels) // n_columns)
    size, dpi = (2.9 * n_columns, 2.7 * n_rows + 0.5), 150 if n_columns < 4 else 100
    figure = Figure(figsize=size, layout="constrained", dpi=dpi)
    axes_of_panels = figure.subplots(n_rows, n_columns, squeeze=False)
    colors = colormaps["Blues"].with_extremes(bad="#DDDDDD")
    for axes, (title, values), label in zip(axes_of_panels.flat, panels, labels, strict=True):
        shown = np.where(np.eye(*values.shape, dtype=bool), np.nan, values) if without_diagonal else values
        figure.colorbar(axes.imshow(shown, cmap=colors, aspect="auto"), ax=axes, label=label)
        axes.set_title(title, fontsize=9)
        axes.set(ylabel=names[0], xlabel=names[1])
    return figure


def bars(rows: Sequence[Row], x: str, by: str, value: str) -> Figure:
    """``value`` as bars side by side: a group for each name in the column ``x``, in it a bar for each in ``by``.

    Where it is a spread over several seeds, a line goes from the least to the most.
    """
    groups, names = (list(dict.fromkeys(str(row[column]) for row in rows)) for column in (x, by))
    figure, axes = new_figure(6.4, 4.0)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        bars_of_name = [row for row in rows if str(row[by]) == name]
        places = [groups.index(str(row[x])) + (i - (len(names) - 1) / 2) * width for row in bars_of_name]
        axes.bar(places, [number(row[value]) for row in bars_of_name], width, color=COLORS[i], label=name)
        for place, row in zip(places, bars_of_name, strict=True):
            axes.plot([place, place], ends(row[value]), color="#5A5A5A", linewidth=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlabel=x, ylabel=value)
    axes.grid(axis="y", color="#E6E6E6")
    axes.set_axisbelow(True)
    figure.legend(loc="outside right center", frameon=False)
    return figure
