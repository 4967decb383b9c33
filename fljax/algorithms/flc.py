"""FLC: FedAvg, then one split into two groups by the clients' weight updates, layer by layer (an interpretation).

Kim et al., ICUFN 2021, known only from its abstract and from papers that compare with it: this file is an
interpretation.
After a few rounds of FedAvg the server clusters the clients' last updates by 2-means, with every layer scaled to length
1 for equal influence; from then on each group averages its own members.

Differences from the paper: not known beyond its abstract (an analysis of weights by layer, two groups, formed once).
With partial participation, the last uploaded updates are clustered; a client that has not participated before the
groups form joins the largest group, a new client after the run the group with the least training loss.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, clustered, mean, method, one_shot_clustering
from fljax.server.kmeans import kmeans
from fljax.types import Algorithm, Key, Model, Stacked, Work


@hyper
class FLCHyper(LocalHyper):
    warmup: Scalar = number(
        5.0, "rounds of FedAvg, in the last of which the groups form; inf: FedAvg", least=1, infinite=True
    )


@method(FLCHyper, "Kim et al., ICUFN 2021", kind="clustered")
def flc(
    model: Model, work: Work, n_clusters: Positive = 2, *, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FLC: FedAvg; ``a = kmeans(updates of round warmup)``; then ``theta_k <- mean of w_i over a_i = k`` by omega_i.

    Args:
        n_clusters: number of groups; the paper has 2.
        combine: how the server combines a group's models, and all models before there are groups.
    """

    def find(key: Key, hyper: FLCHyper, update: Stacked, has_sent: Array) -> Array:
        return kmeans(key, update, n_clusters, n_init=20, where=has_sent).label

    rule = one_shot_clustering(model, find, n_clusters, scaled_layers)
    return clustered(model, work, rule, combine=combine, weighting=weighting)


def scaled_layers(update: Stacked) -> Stacked:
    """Every layer of every client's update divided by its length; an unchanged layer stays 0."""

    def unit(layer: Stacked) -> Stacked:
        squared = tree.squared_norms(layer)
        length = jnp.where(squared > 0, jnp.sqrt(squared), 1.0)
        return jax.tree.map(lambda leaf: leaf / tree.along(length, leaf), layer)

    return {name: unit(layer) for name, layer in tree.trainable(update).items()}
