"""What FedCPS's server makes of what it receives: a top for each cluster and one base."""

from typing import Any, Literal

import jax

from fljax import tree
from fljax.algorithms.fedcps.roles import Roles
from fljax.rounds import Combine, Sent
from fljax.rounds.combine import members_of
from fljax.rounds.sharing import compose, split
from fljax.types import Stacked

SharedMean = Literal["participants", "models"]
"""What the base is the mean of: the participants' bases, or the k cluster models', each counting once."""


def means(
    combine: Combine, hyper: Any, memory: Any, theta: Stacked, sent: Sent, roles: Roles, shared_mean: SharedMean
) -> tuple[Stacked, Any]:
    """The clusters' new models, whose base is the same in every row and whose personal layers stay; and the memory.

    Args:
        combine: of what travels; of everybody where a base is the mean of all participants'.
        hyper: the method's numbers.
        memory: of ``combine``.
        theta: (clusters, ...); a cluster without members keeps its top, and all keep the base where nobody counts.
        sent: what travels of the participants' models, who counts and in which cluster.
        roles: of the layers.
        shared_mean: "models": the base is the mean of the clusters' once these are combined.
    """
    travel, stay = split(theta, roles.personal)
    new, memory = members_of(combine, hyper, memory, travel, *sent)
    if shared_mean == "models":
        base, tops = split(new, roles.middle)
        shared = jax.tree.map(lambda leaf: leaf.mean(axis=0), base)
        new = compose(tree.broadcast(shared, tree.n_rows(theta)), tops)
    return compose(new, stay), memory
