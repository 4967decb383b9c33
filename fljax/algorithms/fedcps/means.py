"""What FedCPS's server makes of what it receives: a top for each cluster and one base."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.algorithms.fedcps.roles import Roles
from fljax.rounds import Combine, Sent
from fljax.rounds.combine import members_of, memory_of
from fljax.rounds.sharing import compose, split
from fljax.types import Params, Stacked

SharedMean = Literal["participants", "models"]
"""What the base is the mean of: the participants' bases, or the k cluster models', each counting once."""


def beginning(combine: Combine, hyper: Any, theta: Stacked, roles: Roles, shared_mean: SharedMean) -> Any:
    """What ``combine`` remembers before the first round: of each cluster's part, and of the base where it has its own.

    Arguments as of `means`.
    """
    base, tops = _parts(theta, roles, shared_mean)
    return memory_of(combine, hyper, tops), combine.init(hyper, tree.take(base, jnp.int32(0)))


def means(
    combine: Combine, hyper: Any, memory: Any, theta: Stacked, sent: Sent, roles: Roles, shared_mean: SharedMean
) -> tuple[Stacked, Any]:
    """The clusters' new models, whose base is the same in every row and whose personal layers stay; and the memory.

    Args:
        combine: for the members' tops of a cluster, and for all participants' bases.
        hyper: the method's numbers.
        memory: of both.
        theta: (clusters, ...); a cluster without members keeps its top, and all keep the base where nobody counts.
        sent: the participants' models, who counts and in which cluster.
        roles: of the layers.
        shared_mean: "models": the members' whole models are combined first, then the base is the mean of the clusters'.
    """
    (base, tops), (bases, members) = (_parts(models, roles, shared_mean) for models in (theta, sent.params))
    of_tops, of_base = memory
    tops, of_tops = members_of(combine, hyper, of_tops, tops, members, sent.weight, sent.label)
    if shared_mean == "participants":
        one = tree.take(base, jnp.int32(0))
        base, of_base = combine.apply(hyper, of_base, one, bases, sent.weight)
    else:
        base, tops = split(tops, roles.middle)
        base = jax.tree.map(lambda leaf: leaf.mean(axis=0), base)
    shared = tree.broadcast(base, tree.n_rows(theta))
    return compose(compose(shared, tops), split(theta, roles.personal)[1]), (of_tops, of_base)


def _parts(params: Stacked, roles: Roles, shared_mean: SharedMean) -> tuple[Params, Params]:
    """What everyone has a combined model of, and what each cluster has; without personal layers."""
    sent = split(params, roles.personal)[0]
    return ({}, sent) if shared_mean == "models" else split(sent, roles.middle)
