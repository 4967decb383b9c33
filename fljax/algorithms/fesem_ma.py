"""FeSEM-MA: FeSEM that matches the hidden units of models before it compares and averages them.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better personalization,
World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026, with the matched averaging of Wang et al., ICLR 2020.
As FeSEM, but the distance of a model to a center, and the mean of a center's models, are computed over matched units.

Differences from the paper: those of FeSEM; centers keep the clients' widths, and units are matched one to one by the
Hungarian method on squared distances (see `fljax.server.matching`). For the first k-means, all models are matched to
the first client's. Since clients start each round from a common center, there is little to match: the paper also finds
no gain over FeSEM.
"""

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.fesem import Empty, FeSEMHyper, Geometry, Proximal, expectation_maximisation, held_near_centers
from fljax.choices import Positive
from fljax.rounds import Combining, mean, method
from fljax.server.matching import match, matched_members, matched_squared_l2
from fljax.types import Algorithm, Model, Stacked, Work


@method(FeSEMHyper, "Long et al., WWW Journal 2023", "https://arxiv.org/abs/2005.01026", kind="clustered")
def fesem_ma(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    n_sweeps: Positive = 3,
    proximal_weight: Proximal = "objective",
    empty: Empty = "keep",
    objective: bool = False,
    combine: Combining = mean,
) -> Algorithm:
    """FeSEM-MA: FeSEM with matched distances and means, and with FeSEM's hyperparameters.

    Args:
        model: a chain of dense and convolutional layers, see `fljax.server.matching`.
        n_sweeps: sweeps over a cluster's members in which their units are matched.
        proximal_weight: see `fljax.fesem`.
        empty: see `fljax.fesem`.
        objective: see `fljax.fesem`; its distances to the centers are without matching, as in the clients' loss.
        combine: how the server combines the matched models of a center's clients.
    """

    def points(models: Stacked) -> Array:
        first = tree.first(models)
        return tree.flatten(lax.map(lambda one: match(one, first, model.layers), models))

    def squared(models: Stacked, centers: Stacked) -> Array:
        return matched_squared_l2(models, centers, model.layers)

    def aligned(models: Stacked, label: Array, centers: Stacked) -> Stacked:
        return matched_members(models, jnp.ones(label.shape[0], jnp.float32), label, centers, model.layers, n_sweeps)

    geometry = Geometry(points, squared, aligned)
    rule = expectation_maximisation(model, work, n_clusters, geometry, reseed=empty == "reseed", objective=objective)
    return held_near_centers(model, work, rule, proximal_weight, combine)
