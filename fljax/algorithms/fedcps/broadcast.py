"""Which cluster models FedCPS sends to whom, and the traffic of a round."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.fedcps.proximal import LambdaMode
from fljax.algorithms.fedcps.roles import Roles
from fljax.rounds import traffic
from fljax.rounds.sharing import n_floats
from fljax.types import Metrics, Stacked


def is_open(hyper: Any, quiet: Array) -> Array:
    """Whether all cluster models are sent: until identities are stable, then in every n_reopen-th round.

    Args:
        hyper: has ``n_stable`` and ``n_reopen``.
        quiet: () int32 rounds in a row without a change of identity.
    """
    since = quiet.astype(jnp.float32) - hyper.n_stable
    return (since < 0) | (jnp.mod(since + 1, hyper.n_reopen) == 0)


def sends(theta: Stacked, roles: Roles, chooses: Array, mode: LambdaMode) -> Metrics:
    """Traffic: the base once, the middle of every cluster or only of the client's own; an id, and lambda's scalars.

    The client sends its drift and receives a tau^2 with each model ("adaptive", "relative"), with "per_client" also a
    mean distance.

    Args:
        theta: (clusters, ...).
        roles: of the layers.
        chooses: (cohort,) bool: receives all models, and chooses.
        mode: how lambda is estimated.
    """
    model, n_clusters = tree.first(theta), tree.n_rows(theta)
    base, middle = n_floats(model, roles.base), n_floats(model, roles.middle)
    n_up, n_down = {"adaptive": (1, 1), "relative": (1, 1), "per_client": (1, 2)}.get(mode, (0, 0))
    n_sent = jnp.where(chooses, n_clusters, 1)
    return traffic(base + middle + 1 + n_up, (base + n_sent * (middle + n_down)).astype(jnp.float32))
