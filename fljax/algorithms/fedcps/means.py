"""How FedCPS's server combines the models that it receives: a top for each cluster and one base."""

from typing import Any, Literal

import jax

from fljax import tree
from fljax.algorithms.fedcps.roles import Roles
from fljax.rounds import Combine, Sent
from fljax.rounds.combine import members_of
from fljax.rounds.sharing import compose, split
from fljax.types import Stacked

SharedMean = Literal["participants", "models"]
"""The base is the mean of the participants' bases, or of the k cluster models' bases with equal weights."""


def means(
    combine: Combine, hyper: Any, memory: Any, theta: Stacked, sent: Sent, roles: Roles, shared_mean: SharedMean
) -> tuple[Stacked, Any]:
    """The clusters' new models and the state of ``combine``; every row has the same base and its old personal layers.

    Args:
        combine: combines the sent layers; for the base, over all participants if ``shared_mean`` is "participants".
        hyper: the method's hyperparameters.
        memory: state of ``combine``.
        theta: (clusters, ...); a cluster without members keeps its top; all keep the base if no participant counts.
        sent: the layers that participants send, their weights and their clusters.
        roles: of the layers.
        shared_mean: "models": the base is the mean of the clusters' bases, after these are combined.
    """
    sent_layers, personal_layers = split(theta, roles.personal)
    new_layers, memory = members_of(combine, hyper, memory, sent_layers, *sent)
    if shared_mean == "models":
        base, tops = split(new_layers, roles.middle)
        shared = jax.tree.map(lambda leaf: leaf.mean(axis=0), base)
        new_layers = compose(tree.broadcast(shared, tree.n_rows(theta)), tops)
    return compose(new_layers, personal_layers), memory
