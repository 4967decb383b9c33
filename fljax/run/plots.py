"""The figures of a comparison: pure functions from arrays to a matplotlib Figure, which `save` writes as PNG."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F", "#000000", "#B8A800")
"""Colours that stay apart for colour-blind readers (Okabe and Ito, extended); they repeat beyond ten."""

MARKERS = "os^DvP*X<>"
"""One for each true group; they repeat beyond ten."""

_GREY = "#5A5A5A"


def learning_curves(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], ylabel: str = "test accuracy") -> Figure:
    """One line per method: ``{name: (rounds, values)}``, named at its end."""
    figure, axes = new_figure(6.4, 4.0)
    for i, (name, (rounds, values)) in enumerate(curves.items()):
        marker = "o" if len(rounds) == 1 else None
        axes.plot(rounds, values, color=COLORS[i % len(COLORS)], linewidth=2, marker=marker, label=name)
    ends = [values[-1] for _, values in curves.values()]
    low, high = axes.get_ylim()
    for i, (name, height) in enumerate(zip(curves, _apart(np.array(ends), 0.055 * (high - low)), strict=True)):
        axes.annotate(
            f"{name}  {ends[i]:.3f}",
            (1.01, height),
            xycoords=axes.get_yaxis_transform(),
            color=COLORS[i % len(COLORS)],
            va="center",
        )
    axes.set(xlabel="round", ylabel=ylabel)
    axes.grid(axis="y", color="#E6E6E6")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return figure


def cluster_table(counts: np.ndarray, title: str = "") -> Figure:
    """How many clients of each true group each cluster holds: ``counts`` (clusters, groups), written into the cells."""
    n_clusters, n_groups = counts.shape
    figure, axes = new_figure(1.6 + 0.62 * n_groups, 1.3 + 0.5 * n_clusters)
    axes.imshow(counts, cmap="Blues", vmin=0, vmax=max(counts.max(), 1), aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        dark = count > 0.6 * counts.max()
        axes.text(column, row, str(count) if count else "·", ha="center", va="center", color="white" if dark else _GREY)
    axes.set(xticks=range(n_groups), yticks=range(n_clusters), xlabel="true group", ylabel="cluster")
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def model_map(
    coordinates: np.ndarray,
    share: np.ndarray,
    label: np.ndarray,
    group: np.ndarray | None = None,
    title: str = "",
    named: str = "cluster",
) -> Figure:
    """The clients' models in the plane of their principal components.

    Clients with the same model and group are one mark whose area is their number, written beside it where above 1.

    Args:
        coordinates: (clients, 2).
        share: (2,) of the variance that each axis explains.
        label: (clients,) what the colour tells; negative is grey.
        group: (clients,) what the shape tells; None: one shape.
        title: above the axes.
        named: what a label is called in the legend.
    """
    figure, axes = new_figure(5.6, 4.4)
    shape = np.zeros(len(label), int) if group is None else group
    for color in np.unique(label):
        for mark in np.unique(shape[label == color]):
            chosen = (label == color) & (shape == mark)
            style = {
                "color": COLORS[color % len(COLORS)] if color >= 0 else _GREY,
                "marker": MARKERS[mark % len(MARKERS)],
            }
            _marks(axes, coordinates[chosen], style, _legend(named, color, None if group is None else mark))
    axes.set(xlabel=f"component 1 ({share[0]:.0%} of variance)", ylabel=f"component 2 ({share[1]:.0%})")
    axes.set_title(title, fontsize=11)
    axes.margins(0.15)
    axes.legend(frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left", markerscale=0.8)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG."""
    figure.savefig(path, dpi=150, bbox_inches="tight")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of so many inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _marks(axes: Axes, points: np.ndarray, style: Mapping[str, str], name: str) -> None:
    places, count = np.unique(points, axis=0, return_counts=True)
    axes.scatter(*places.T, s=60 * np.sqrt(count), alpha=0.8, linewidths=0.6, edgecolors="white", label=name, **style)
    for place, n in zip(places, count, strict=True):
        if n > 1:
            axes.annotate(
                f"{n} clients", place, xytext=(0, 9), textcoords="offset points", ha="center", color=_GREY, fontsize=9
            )


def _legend(named: str, color: int, mark: int | None) -> str:
    name = f"{named} {color}" if color >= 0 else f"no {named}"
    return name if mark is None or named == "group" else f"{name}, group {mark}"


def _apart(heights: np.ndarray, gap: float) -> np.ndarray:
    """``heights`` moved up as little as keeps them ``gap`` apart, in their order."""
    order, placed = np.argsort(heights, kind="stable"), heights.astype(float).copy()
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    return placed
