"""Pictures of the primitives, of what `fljax.server` gives: ``python docs/pictures.py`` draws them into pictures/."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import dendrogram

from fljax import server

CENTERS = np.array([[0.0, 1.0], [4.0, 0.5], [2.0, 4.0]])
GROUP = np.repeat(np.arange(3), 4)
MODELS = jnp.asarray(CENTERS[GROUP] + 0.35 * np.random.default_rng(0).normal(size=(12, 2)), jnp.float32)


def draw_all(folder: Path) -> None:
    """Draws all of them."""
    folder.mkdir(exist_ok=True)
    for draw in (distances, clusters, dendrogram_of_clients, robust):
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(folder / f"{draw.__name__.partition('_')[0]}.png", dpi=120)


def distances(axes) -> None:
    """Euclidean distances of the clients' models."""
    image = axes.imshow(server.pairwise_l2(MODELS), cmap="viridis")
    axes.set(xlabel="client", ylabel="client", title="pairwise_l2", xticks=range(0, 12, 3), yticks=range(0, 12, 3))
    axes.figure.set_size_inches(3.9, 3.2)  # as wide as a square and its scale are
    axes.figure.colorbar(image)


def clusters(axes) -> None:
    """k-means with three centers."""
    found = server.kmeans(jax.random.key(0), MODELS, 3)
    axes.scatter(*MODELS.T, c=found.label, cmap="tab10", vmax=9)
    axes.scatter(*np.asarray(found.centers).T, marker="x", color="black", label="centers")
    axes.set(xlabel="first weight", ylabel="second weight", title="kmeans")
    axes.legend()


def dendrogram_of_clients(axes) -> None:
    """The tree that `linkage` finds, by SciPy's drawing."""
    tree = np.asarray(server.linkage(server.pairwise_l2(MODELS), "average"), float)
    dendrogram(tree, ax=axes, color_threshold=2.0)
    axes.set(xlabel="client", ylabel="distance", title="linkage")


def robust(axes) -> None:
    """Averages of ten honest models and two hostile ones."""
    honest = np.random.default_rng(1).normal(size=(10, 2)).astype(np.float32)
    received = jnp.concatenate([jnp.asarray(honest), jnp.array([[9.0, 8.0], [10.0, 7.0]])])
    axes.scatter(*honest.T, color="tab:gray", label="honest")
    axes.scatter(*received[10:].T, color="tab:red", marker="x", label="hostile")
    averages = {
        "mean": server.weighted_mean(received, jnp.ones(12)),
        "coordinate_median": server.coordinate_median(received),
        "krum": server.krum(received, 2),
        "geometric_median": server.geometric_median(received),
    }
    for mark, (name, point) in zip("sD^o", averages.items(), strict=True):
        axes.scatter(*np.asarray(point), marker=mark, s=60, label=name)
    axes.set(xlabel="first weight", ylabel="second weight", title="what the server makes of twelve models")
    axes.legend(fontsize="small")


if __name__ == "__main__":
    draw_all(Path(__file__).with_name("pictures"))
