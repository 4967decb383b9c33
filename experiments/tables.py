"""Tables of runs beside the published numbers: columns of a run, spreads over seeds, printing and files."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kept_figures import Place, headed, keep_figure
from matplotlib.figure import Figure
from reporting import CONSOLE, Result, Scale
from rich.table import Table

from fljax.report.plots import save

Row = dict[str, Any]
"""One line of a table: column -> text, number, or `Spread`."""


class Spread(NamedTuple):
    """A number over several seeds."""

    mean: float
    std: float
    values: tuple[float, ...]

    def __str__(self) -> str:
        digits = 4 if abs(self.mean) < 10 else 1
        return f"{self.mean:.{digits}f}" + (f" ± {self.std:.{digits}f}" if len(self.values) > 1 else "")


def table(results: Sequence[Result], columns: Mapping[str, Callable[[Result], float]]) -> list[Row]:
    """A row for each setting and method, in the order in which they ran; each column over the seeds."""
    cells = list(dict.fromkeys((result.setting, result.method) for result in results))
    rows = []
    for setting, method in cells:
        runs = [result for result in results if (result.setting, result.method) == (setting, method)]
        rows.append({"setting": setting, "method": method, **{n: spread(map(f, runs)) for n, f in columns.items()}})
    return rows


def spread(values: Any) -> Spread:
    """Mean and standard deviation of a sample; NaN where a value is missing, as for a round that never came."""
    values = tuple(float(value) for value in values)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(np.mean(values)), deviation, values)


def mean_of_last(name: str, n: int = 10, unit: float = 1.0) -> Callable[[Result], float]:
    """``unit`` times the mean of the metric over those of the last ``n`` rounds in which it was measured."""
    return lambda result: unit * float(np.nanmean(result.metrics[name][-n:]))


def last(name: str) -> Callable[[Result], float]:
    """The metric after the last round; of one that each participant has, their mean."""
    return lambda result: np.mean(result.metrics[name][-1])


def first_round(name: str, reached: Callable[[np.ndarray], np.ndarray]) -> Callable[[Result], float]:
    """The first round (counted from 1) in which the metric is as it should be; NaN where it never is."""

    def column(result: Result) -> float:
        rounds_reached = np.flatnonzero(reached(result.metrics[name]))
        return rounds_reached[0] + 1 if len(rounds_reached) else np.nan

    return column


def published(paper: str, dataset: str, setting: str, method: str, metric: str) -> float:
    """A number that a paper states.

    Raises:
        ValueError: there is none of that name.
    """
    wanted = {"paper": paper, "dataset": dataset, "setting": setting, "method": method, "metric": metric}
    with Path(__file__).with_name("published.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if wanted.items() <= row.items():
                return float(row["value"])
    raise ValueError(f"published.csv has no row {wanted}")


def beside(
    rows: Sequence[Row], column: str, stated: Mapping[tuple[str, str], float], unit: float = 1.0, name: str = ""
) -> list[Row]:
    """The rows with what the paper states for (setting, method), and ours less theirs; ``unit`` times our column.

    ``name`` ends the names of the two new columns, where a table has more than one such pair.
    """
    extended, suffix = [], f" {name}" if name else ""
    for row in rows:
        theirs = stated.get((row["setting"], row["method"]))
        ours = unit * row[column].mean
        difference = None if theirs is None else round(ours - theirs, 2)
        extended.append(row | {f"published{suffix}": theirs, f"difference{suffix}": difference})
    return extended


def show(
    scale: Scale,
    name: str,
    title: str,
    rows: Sequence[Row],
    figure: Figure | None = None,
    place: Place | None = None,
    about: str = "",
) -> None:
    """Prints the table; writes it and the figure as ``name``.csv and ``name``.png.

    Args:
        scale: how large; where files go.
        name: of the files.
        title: of the table, and of the figure where it says what it is ``about``.
        rows: of the table.
        figure: of the table.
        place: where the figure is kept beside its lines, unless it is of a part of the rounds or methods.
        about: data, clients, rounds and seeds, a second line of the figure's title.
    """
    printed = Table(title=title, title_justify="left", header_style="dim", box=None)
    columns = dict.fromkeys(column for row in rows for column in row)
    for column in columns:
        printed.add_column(column, overflow="fold")  # cut off, a name could not be told from others
    for row in rows:
        printed.add_row(*("" if row.get(column) is None else str(row[column]) for column in columns))
    CONSOLE.print(printed)
    scale.folder.mkdir(parents=True, exist_ok=True)
    with (scale.folder / f"{name}.csv").open("w", newline="") as file:
        flat = [dict(_flat(row)) for row in rows]
        writer = csv.DictWriter(file, dict.fromkeys(name for row in flat for name in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
    if figure is not None:
        if about:
            headed(figure, title, about)
        save(figure, scale.folder / f"{name}.png")
        if place is not None and scale.is_whole:
            keep_figure(scale.results, place, not scale.paper, figure)


def _flat(row: Row) -> list[tuple[str, Any]]:
    """A spread as its mean, its standard deviation and the value of each seed."""
    cells = []
    for name, cell in row.items():
        if isinstance(cell, Spread):
            cells += [(name, cell.mean), (f"{name} std", cell.std), (f"{name} seeds", " ".join(map(str, cell.values)))]
        else:
            cells.append((name, cell))
    return cells
