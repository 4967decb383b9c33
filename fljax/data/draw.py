"""Figures of a federation: each client's classes and sizes, and the distances between clients."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fljax.data.divergence import mean_kld, symmetric_kld
from fljax.data.federation import class_histogram, n_classes
from fljax.data.labels import are_classes
from fljax.types import Federation


def draw(federation: Federation, file: str | Path, title: str = "") -> Path:
    """Writes a PNG: class-by-client bubbles, sizes of each split, and the matrix of symmetric KLD between clients.

    For a regression, tenths of the first target replace the classes; for several labels per example, the labels.

    Args:
        federation: the federation to draw.
        file: the PNG; its folder is made.
        title: for example the data set and the partition.
    """
    counts, kind = counts_of(federation)
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    bubbles(left, counts, None if federation.group is None else np.asarray(federation.group), kind)
    sizes(middle, federation)
    kld(figure, right, counts)
    figure.suptitle(title)
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return file


def counts_of(federation: Federation) -> tuple[np.ndarray, str]:
    """(clients, kinds) training examples of each kind, and what a kind is: a class, a label, or a tenth of targets."""
    data = federation.train
    if are_classes(data.pool.y):
        return np.asarray(class_histogram(data, n_classes(federation))), "class"
    y, index, size = (np.asarray(value) for value in (data.pool.y, data.index, data.size))
    y = y.reshape(len(y), -1)
    by_client = [y[rows[:n]] for rows, n in zip(index, size, strict=True)]
    if y.shape[1] > 1 and np.isin(y, (0, 1)).all():
        return np.stack([labels.sum(axis=0) for labels in by_client]).astype(int), "label"
    edges = np.quantile(np.concatenate(by_client)[:, 0], np.linspace(0, 1, 11)[1:-1])
    tenths = [np.bincount(np.searchsorted(edges, targets[:, 0]), minlength=10) for targets in by_client]
    return np.stack(tenths), "tenth of targets"


def bubbles(axes: Axes, counts: np.ndarray, group: np.ndarray | None, kind: str) -> None:
    """A bubble for each client and class, with the count as area; coloured by true group if known."""
    client, label = np.nonzero(counts)
    shade = np.zeros(len(client)) if group is None else group[client]
    area = 150 * counts[client, label] / max(counts.max(), 1) * min(1.0, 40 / max(counts.shape))
    axes.scatter(client, label, s=area, c=shade, cmap="tab10" if shade.max(initial=0) < 10 else "tab20")
    axes.set(xlabel="client", ylabel=kind, title="training examples, area = count")


def sizes(axes: Axes, federation: Federation) -> None:
    """Stacked bars of train, validation and test sizes, in the order of the clients."""
    bottom = np.zeros(federation.train.n_clients)
    for name in ("train", "val", "test"):
        data = getattr(federation, name)
        if data is not None:
            size = np.asarray(data.size)
            axes.bar(np.arange(len(size)), size, width=1.0, bottom=bottom, label=name)
            bottom += size
    axes.set(xlabel="client", ylabel="examples", title=f"sizes, median {np.median(bottom):.0f}")
    axes.legend()


def kld(figure: Figure, axes: Axes, counts: np.ndarray) -> None:
    """The matrix of symmetric Kullback-Leibler divergence between clients' labels."""
    image = axes.imshow(symmetric_kld(counts), cmap="magma")
    axes.set(xlabel="client", ylabel="client", title=f"symmetric KLD of labels, mean {mean_kld(counts):.2f}")
    figure.colorbar(image, ax=axes)
