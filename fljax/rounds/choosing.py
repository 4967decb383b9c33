"""Clients choose their cluster: each joins the cluster model with the least loss on its training data."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.client.measure import cross_loss
from fljax.rounds.averaging import Deploy
from fljax.rounds.clustered import Clusters, Rule
from fljax.rounds.first_models import balanced_draw
from fljax.server.assign import lowest_loss
from fljax.types import ClientData, Cohort, Key, Model, ModelTable, Stacked, State


@checked_kinds
def least_loss_rule(
    model: Model, n_clusters: Positive, first_models: Callable[[Key, Any, ClientData], Stacked] | None = None
) -> Rule:
    """``a_i = argmin_j F_i(theta_j)`` for the participants of each round; the others are in no cluster.

    Args:
        model: the network.
        n_clusters: K.
        first_models: ``(key, hyper, data) -> (K, ...)``, the initial models; None: a `balanced_draw` with
            ``hyper.min_share``.
    """

    def begin(key: Key, hyper: Any, data: ClientData) -> Clusters:
        if first_models is None:
            theta = balanced_draw(key, model, n_clusters, hyper.min_share, data)
        else:
            theta = first_models(key, hyper, data)
        return Clusters(theta, jnp.full(data.n_clients, -1, jnp.int32))

    def before(hyper: Any, clusters: Clusters, cohort: Cohort) -> Clusters:
        label = lowest_loss(cross_loss(model, clusters.centers, cohort.data))
        label = jnp.where(cohort.active, label, -1)
        return clusters._replace(label=jnp.full_like(clusters.label, -1).at[cohort.ids].set(label))

    return Rule(begin, before)


@checked_kinds
def least_loss_model(model: Model) -> Deploy:
    """A deploy: each client holds the cluster model with the least loss on its training data."""

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        theta = state.server.centers
        return ModelTable(theta, lowest_loss(cross_loss(model, theta, data)))

    return deploy
