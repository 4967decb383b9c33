"""The figures of a comparison: pure functions from arrays to a matplotlib Figure, which `save` writes as PNG, PDF."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fljax.sealed import naming

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F", "#000000", "#B8A800")
"""Colours that colour-blind readers can distinguish (Okabe and Ito, extended); they repeat beyond ten."""

MARKERS = "os^DvP*X<>"
"""Markers of the true groups; they repeat beyond ten."""

_GREY = "#5A5A5A"


STYLES = ("-", "--", ":", "-.")
"""Line styles: the next one each time the colours repeat, so that forty curves can be distinguished."""


def learning_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    ylabel: str = "test accuracy",
    *,
    title: str = "",
    spread: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    xlabel: str = "round",
) -> Figure:
    """One line per method: ``{name: (rounds, values)}``, with the name at its end, in the order of the ends.

    A method without values, for example with losses that are all NaN, has no line; the others keep their colours.

    Args:
        curves: the curves.
        ylabel: label of the values.
        title: title above the axes.
        spread: lower and upper values of some of the curves, drawn as a band.
        xlabel: label of the other axis.
    """
    figure, axes = new_figure(6.4, max(4.0, 0.27 * len(curves) + 1.0))
    arrays = {name: (np.asarray(rounds), np.asarray(values)) for name, (rounds, values) in curves.items()}
    for i, (name, (rounds, values)) in enumerate(arrays.items()):
        if not len(values):
            continue
        marker = "o" if len(rounds) == 1 else None
        style: dict[str, Any] = {"color": COLORS[i % len(COLORS)], "linestyle": STYLES[i // len(COLORS) % len(STYLES)]}
        axes.plot(rounds, values, linewidth=2 if len(curves) < 6 else 1.5, marker=marker, label=name, **style)
        if spread is not None and name in spread:
            low, high = map(np.asarray, spread[name])
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _name_ends(axes, {name: values[-1] if len(values) else None for name, (_, values) in arrays.items()})
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, fontsize=11)
    axes.grid(axis="y", color="#E6E6E6")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return figure


def _name_ends(axes: Axes, ends: Mapping[str, float | None]) -> None:
    """Writes each curve's name and last value beside its end, within the axes' height, with a line if it is moved."""
    drawn = [(COLORS[i % len(COLORS)], name, end) for i, (name, end) in enumerate(ends.items()) if end is not None]
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    inches = cast(Figure, axes.figure).get_size_inches()[1] - 0.8
    gap = 0.19 / inches * (high - low)
    heights = _apart(np.nan_to_num(np.array([end for *_, end in drawn], float), nan=low), gap, low, high)
    transform = axes.get_yaxis_transform()
    for (color, name, end), height in zip(drawn, heights, strict=True):
        coordinates: dict[str, Any] = {"xycoords": transform, "textcoords": transform, "annotation_clip": False}
        line: dict[str, Any] = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        line["relpos"] = (0, 0.5)  # the line ends at the name's left edge
        arrow = line if abs(height - end) > gap / 4 else None
        axes.annotate(
            f"{name}  {end:.3f}", (1.0, end), (1.03, height), color=color, va="center", arrowprops=arrow, **coordinates
        )


def over_clients(values: Mapping[str, ArrayLike], ylabel: str = "client's test accuracy") -> Figure:
    """The distribution of a metric over the clients: for each method its clients as points, quartiles and median."""
    figure, axes = new_figure(max(3.2, 1.1 + 0.75 * len(values)), 4.0)
    for i, client_values in enumerate(map(np.asarray, values.values())):
        finite = np.sort(client_values[np.isfinite(client_values)])
        if not len(finite):
            continue
        # Side by side by rank, so that equal clients do not hide each other, without randomness.
        x = i + 0.36 * np.sin(2.4 * np.arange(len(finite)))
        color = COLORS[i % len(COLORS)]
        axes.scatter(x, finite, s=9, color=color, alpha=0.45, linewidths=0)
        low, middle, high = np.percentile(finite, (25, 50, 75))
        axes.plot([i, i], [low, high], color=color, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([i - 0.3, i + 0.3], [middle, middle], color=color, linewidth=2)
    few = len(values) < 5
    axes.set_xticks(range(len(values)), list(values), rotation=0 if few else 40, ha="center" if few else "right")
    axes.set(ylabel=ylabel)
    axes.grid(axis="y", color="#E6E6E6")
    axes.set_axisbelow(True)
    return figure


def clusters_over_time(label: ArrayLike, title: str = "") -> Figure:
    """The cluster of each client in each round: ``label`` (rounds, clients), negative where it is not known."""
    label = np.asarray(label)
    n_rounds, n_clients = label.shape
    figure, axes = new_figure(6.4, max(2.2, min(7.0, 1.2 + 0.12 * n_clients)))
    label_colors = [to_rgb(COLORS[i % len(COLORS)]) for i in range(max(int(label.max()) + 1, 1))]
    colors = np.array([*label_colors, to_rgb("#F2F2F2")])  # the last one is that of a negative label
    extent = (0.5, n_rounds + 0.5, n_clients - 0.5, -0.5)
    axes.imshow(colors[np.maximum(label.T, -1)], aspect="auto", interpolation="nearest", extent=extent)
    axes.set(xlabel="round", ylabel="client")
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def confusion(counts: ArrayLike, names: Sequence[str] = (), title: str = "") -> Figure:
    """A confusion matrix: ``counts`` (true, predicted), coloured by the share of the true class."""
    counts = np.asarray(counts)
    n = len(counts)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = new_figure(1.8 + 0.42 * min(n, 20), 1.6 + 0.42 * min(n, 20))
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if n <= 20:
        for (row, column), count in np.ndenumerate(counts):
            ink = "white" if share[row, column] > 0.6 else _GREY
            axes.text(column, row, str(count) if count else "·", ha="center", va="center", color=ink, fontsize=8)
        words = list(names) or [str(i) for i in range(n)]
        axes.set_xticks(range(n), words, rotation=90 if names else 0)
        axes.set_yticks(range(n), words)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def cluster_table(counts: ArrayLike, title: str = "") -> Figure:
    """The number of clients of each true group in each cluster: ``counts`` (clusters, groups), in the cells."""
    counts = np.asarray(counts)
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
    coordinates: ArrayLike,
    share: ArrayLike,
    label: ArrayLike,
    group: ArrayLike | None = None,
    title: str = "",
    named: str = "cluster",
) -> Figure:
    """The clients' models in the plane of their principal components.

    Clients with the same model and group are one mark, whose area grows with their number; a number above 1 is written
    beside it.

    Args:
        coordinates: (clients, 2).
        share: (2,) share of the variance that each axis explains.
        label: (clients,) shown by the colour; grey if negative.
        group: (clients,) shown by the shape; None: one shape.
        title: title above the axes.
        named: name of a label in the legend.
    """
    figure, axes = new_figure(5.6, 4.4)
    coordinates, share, label = (np.asarray(value) for value in (coordinates, share, label))
    shape = np.zeros(len(label), int) if group is None else np.asarray(group)
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


def save(figure: Figure, path: str | Path, *, pdf: bool = False) -> None:
    """Writes the figure as PNG; with ``pdf`` as PDF beside it, whose lines stay sharp in print."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn for it
        _save(figure, Path(path), pdf)


def _save(figure: Figure, path: Path, pdf: bool) -> None:
    # `Figure.savefig` draws twice, the first time for the layout, which a single drawing finds as well.
    with naming(path):
        FigureCanvasAgg(figure).print_png(path)
    if pdf:
        from matplotlib.backends.backend_pdf import FigureCanvasPdf  # imports fontTools, which takes as long as drawing

        figure.set_layout_engine("none")  # the layout takes longer than the drawing, and both files share it
        with naming(path.with_suffix(".pdf")):
            FigureCanvasPdf(figure).print_pdf(path.with_suffix(".pdf"), metadata={"CreationDate": None})


class ShownFigure(Figure):
    """A figure that a notebook shows, also without matplotlib's own extension."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        FigureCanvasAgg(self).print_png(buffer)
        return buffer.getvalue()


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of this size in inches, and its axes."""
    figure = ShownFigure(figsize=(width, height), layout="constrained", dpi=150)  # the layout depends on the resolution
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _marks(axes: Axes, points: np.ndarray, style: Mapping[str, Any], name: str) -> None:
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


def _apart(heights: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """``heights`` moved as little as possible so that they are ``gap`` apart, in order, within ``low`` and ``high``.

    The sum of squared moves is minimal. If there is not enough room, they are evenly spaced.
    """
    n, order = len(heights), np.argsort(heights, kind="stable")
    if not n:
        return heights
    gap = min(gap, (high - low) / max(n - 1, 1))
    steps = gap * np.arange(n)  # least distances from the lowest to each of them
    placed = np.clip(_ascending(heights[order] - steps), low, max(low, high - steps[-1]))
    moved = np.empty(n)
    moved[order] = placed + steps
    return moved


def _ascending(values: np.ndarray) -> np.ndarray:
    """The ascending numbers nearest to ``values`` in least squares, as from SciPy's ``isotonic_regression``.

    Descending neighbours are replaced by their mean; importing SciPy's function takes longer than drawing a figure.
    """
    means: list[tuple[float, int]] = []
    for value in values:
        mean, n = float(value), 1
        while means and means[-1][0] >= mean:
            before, m = means.pop()
            mean, n = (before * m + mean * n) / (m + n), m + n
        means.append((mean, n))
    return np.repeat([mean for mean, _ in means], [n for _, n in means])
