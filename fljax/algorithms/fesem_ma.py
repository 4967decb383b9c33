"""FeSEM-MA: FeSEM, whose models are compared and averaged after their hidden units have been matched.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better personalization,
World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026, with the matched averaging of Wang et al., ICLR 2020.
As FeSEM; the distance of a model to a center is taken, and a center averages its clients' models, unit by matched unit.

Differences from the paper: those of FeSEM; centers keep the clients' widths, and units are matched one to one by the
Hungarian method on squared distances (see `fljax.server.matching`). The first k-means sees all models matched to the
first client's. Since clients start each round from a common center there is little to match: the paper, too, finds no
gain over FeSEM.
"""

from functools import cache

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.fesem import Geometry, check_choices, expectation_maximisation
from fljax.server.matching import match, matched_mean, matched_squared_l2
from fljax.types import Algorithm, Model, Stacked, Work


@cache
def fesem_ma(
    model: Model, work: Work, n_clusters: int = 2, *, n_sweeps: int = 3, pull: str = "objective", empty: str = "keep"
) -> Algorithm:
    """FeSEM-MA with K = ``n_clusters`` centers; its numbers are `FeSEMHyper`.

    Args:
        model: a chain of dense and convolutional layers, see `fljax.server.matching`.
        work: local effort.
        n_clusters: K.
        n_sweeps: sweeps over a cluster's members in which their units are matched.
        pull: "objective" weights client i's distance by mu * mean(n) / n_i, "plain" by mu for everyone.
        empty: a cluster without clients keeps its center ("keep") or moves to the client farthest from its own
            center ("reseed").
    """
    check_choices(n_clusters, "model", pull, empty)
    if n_sweeps < 1:
        raise ValueError(f"n_sweeps={n_sweeps} is not positive; choose n_sweeps >= 1")

    def points(models: Stacked) -> Array:
        first = tree.take(models, jnp.int32(0))
        return tree.flatten(lax.map(lambda one: match(one, first, model.layers), models))

    def squared(models: Stacked, centers: Stacked) -> Array:
        return matched_squared_l2(models, centers, model.layers)

    def mean(models: Stacked, weight: Array, label: Array, empty: Stacked) -> Stacked:
        return matched_mean(models, weight, label, empty, model.layers, n_sweeps)

    return expectation_maximisation(model, work, n_clusters, pull, empty, Geometry(points, squared, mean))
