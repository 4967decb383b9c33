"""The figures of a sweep: learning curves of the best points, and a metric over one or two hyperparameters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fljax.metrics.headline import LOWER_IS_BETTER
from fljax.metrics.spread import measured
from fljax.report.plots import COLORS, Figure, learning_curves, new_figure, save
from fljax.report.summary import Row, curve
from fljax.run.sweep.points import rows as point_rows
from fljax.run.sweep.table import by_point, ranked
from fljax.run.sweep.table import named as named_of

N_CURVES = 6
"""Number of points whose learning curves are drawn."""


def save_all(
    points: Sequence[Mapping[str, float]],
    metric: str,
    results: Sequence[tuple[Mapping, Any]],
    rows: Sequence[Row],
    folder: Path,
    split: str,
) -> None:
    """Saves curves of the best points of each static setting, and the metric over one or two of the hyperparameters.

    ``results`` are those of `fljax.run.sweep.over_settings`, ``rows`` is the table of all settings, ``split`` the split
    of the tests.
    """
    folder.mkdir(exist_ok=True)
    names = list(points[0])
    for i, (setting, result) in enumerate(results):
        end = f"_{i}" if len(results) > 1 else ""
        title = ", ".join(f"{name}={value}" for name, value in setting.items())
        save(curves_of(points, result.metrics, metric, split), folder / f"curves{end}.png")
        setting_rows = [row for row in rows if all(row[name] == str(value) for name, value in setting.items())]
        save_responses(setting_rows, names, metric, folder, title, split, end)


def save_responses(
    rows: Sequence[Row],
    names: Sequence[str],
    metric: str,
    folder: Path,
    title: str = "",
    split: str = "test",
    end: str = "",
    pdf: bool = False,
) -> None:
    """Draws the metric over each hyperparameter of ``names``, and over the first two; file names end in ``end``."""
    if len(names) >= 2:
        save(heat_map(rows, names[0], names[1], metric, title, split), folder / f"heat_map{end}.png", pdf=pdf)
    for name in names:
        save(response(rows, name, metric, title, split), folder / f"{name}{end}.png", pdf=pdf)


def curves(
    hypers: Any, metrics: Mapping[str, ArrayLike], metric: str = "accuracy_macro", split: str = "test"
) -> Figure:
    """`curves_of` for the points of ``hypers``."""
    return curves_of(list(point_rows(hypers)), metrics, metric, split)


def curves_of(
    points: Sequence[Mapping[str, float]], metrics: Mapping[str, ArrayLike], metric: str, split: str = "test"
) -> Figure:
    """Learning curves, means over seeds, of the points with the best final value, those with the most rounds first;
    diverged points are left out.

    If not all points are drawn, the title states the number.
    """
    mean = measured(metrics, metric).mean(axis=1)
    if "diverged" in metrics:
        mean = np.where(np.any(np.asarray(metrics["diverged"]), axis=(1, 2)).reshape(-1, 1), np.nan, mean)
    names = named(points, metric)
    sign = 1 if metric in LOWER_IS_BETTER else -1
    ends = [int(np.flatnonzero(np.isfinite(row))[-1]) if np.isfinite(row).any() else -1 for row in mean]
    order = sorted((i for i in range(len(mean)) if ends[i] >= 0), key=lambda i: (-ends[i], sign * mean[i, ends[i]]))
    chosen = order[:N_CURVES]
    shown = {names[i]: curve({metric: mean[i]}, metric) for i in chosen}
    title = f"the best {len(chosen)} of {len(names)} points" if len(chosen) < len(names) else ""
    return learning_curves(shown, named_of(metric, split).replace("_", " "), title=title)


def named(points: Sequence[Mapping[str, float]], metric: str) -> list[str]:
    """The names of the points, with as few digits as distinguish them."""
    names: list[str] = []
    for digits in (3, 5, 9, 17):
        names = [" ".join(f"{name} {value:.{digits}g}" for name, value in point.items()) or metric for point in points]
        if len(set(names)) == len(names):
            break
    return names


def response(
    rows: Sequence[Row], name: str, metric: str = "accuracy_macro", title: str = "", split: str = "test"
) -> Figure:
    """The metric over one hyperparameter: for each of its values the best over the others, with its interval.

    Values at which all points diverged are crosses on the axis.
    """
    best_points = _best_of(rows, (name,), metric)
    figure, axes = new_figure(5.6, 3.8)
    x = np.array(sorted(value for (value,) in best_points))
    spreads = [best_points[value,] for value in x]
    mean, low, high = (np.array([getattr(spread, end) for spread in spreads]) for end in ("mean", "low", "high"))
    if len(x) > 1 and x[0] > 0 and x[-1] / x[0] > 20:
        axes.set_xscale("log")
    axes.plot(x, mean, color=COLORS[0], marker="o", linewidth=2)
    axes.fill_between(x, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
    diverged = x[np.isnan(mean)]
    axes.plot(diverged, np.full(len(diverged), axes.get_ylim()[0]), "x", color=COLORS[1], clip_on=False)
    axes.set(xlabel=name, ylabel=named_of(metric, split).replace("_", " "), title=title)
    axes.grid(axis="y", color="#E6E6E6")
    return figure


def heat_map(
    rows: Sequence[Row], x: str, y: str, metric: str = "accuracy_macro", title: str = "", split: str = "test"
) -> Figure:
    """The mean over seeds over two hyperparameters, the best over any others; a cross if it diverged."""
    best_points = _best_of(rows, (x, y), metric)
    columns, lines = (sorted({key[i] for key in best_points}) for i in range(2))
    values = np.full((len(lines), len(columns)), np.nan)
    for (column, line), spread in best_points.items():
        values[lines.index(line), columns.index(column)] = spread.mean
    figure, axes = new_figure(2.2 + 0.62 * len(columns), 1.6 + 0.5 * len(lines))
    image = axes.imshow(values, cmap="viridis", aspect="auto", origin="lower")
    has_text = values.size <= 100
    for (line, column), value in np.ndenumerate(values):
        if np.isnan(value) or has_text:
            text = "x" if np.isnan(value) else f"{value:.3f}"
            axes.text(column, line, text, ha="center", va="center", color=_ink(image, value), fontsize=8)
    axes.set_xticks(range(len(columns)), [f"{value:.3g}" for value in columns], rotation=45)
    axes.set_yticks(range(len(lines)), [f"{value:.3g}" for value in lines])
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label=named_of(metric, split).replace("_", " "))
    return figure


def _best_of(rows: Sequence[Row], names: tuple[str, ...], metric: str) -> dict[tuple, Any]:
    """For each combination of values of ``names``, the first of its points in the order of `ranked`."""
    best_points: dict[tuple, Any] = {}
    for spread in ranked(by_point(rows, metric), metric):
        best_points.setdefault(tuple(spread.point[name] for name in names), spread)
    return best_points


def _ink(image: Any, value: float) -> str:
    return "black" if np.isnan(value) or image.norm(value) > 0.6 else "white"
