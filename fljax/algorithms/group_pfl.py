"""Group-based PFL: clients grouped by their label distributions, once, and FedAvg inside each group.

As Liu et al.: Dynamic Clustering for Personalised Federated Learning describe it, for comparison.
An average-linkage tree of the divergences between the clients' label distributions is cut at a threshold; each group
averages its members' models.

Differences: the label counts are uploaded with the first round's models. ``one_group_rounds`` starts with one group for
all and splits it later, see Group-based PFL, naive dynamic. A client that never took part joins the group whose model
has the least training loss.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.data.federation import class_histogram, minibatch
from fljax.rounds.joining import join_cluster
from fljax.server.aggregate import cluster_mean
from fljax.server.distance import label_kld
from fljax.server.inherit import inherit
from fljax.server.linkage import cut, cut_k, linkage
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, Stacked, State, Work


class GroupPFLHyper(NamedTuple):
    """Numbers of group-based personalised federated learning.

    lr: clients' learning rate, > 0.
    gamma: groups are merged up to this mean divergence, >= 0: the symmetric Kullback-Leibler divergence, natural
        logarithm, of label distributions smoothed by 1e-4, which is 9.2 at most. inf is FedAvg. Not read with
        ``n_groups``.
    one_group_rounds: rounds before which all clients are one group.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    gamma: Array | float = 3.0
    one_group_rounds: Array | float = 0.0
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class GroupPFLServer(NamedTuple):
    """The server's groups. There are as many slots as clients; those past the last group are not used."""

    centers: Stacked  # (clusters, ...)
    label: Array  # (clients,) groups of the last round
    group: Array  # (clients,) those that the label distributions say


@cache
def group_pfl(model: Model, work: Work, *, n_groups: int | None = None, weighting: str = "size") -> Algorithm:
    """Group-based PFL: groups by UPGMA on label divergences, cut at gamma; ``theta_k <- mean of its members' w_i``.

    Args:
        model: the network.
        work: local effort.
        n_groups: the tree is cut into so many groups, wherever that is; None: at gamma.
        weighting: of a group's members, "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    if n_groups is not None and n_groups < 1:
        raise ValueError(f"n_groups={n_groups} is not positive; choose n_groups >= 1")

    def init(key: Key, hyper: GroupPFLHyper, data: ClientData) -> State:
        theta, n_clients = model.init(key), data.size.shape[0]
        divergence = label_kld(class_histogram(data, n_outputs(model, theta, data)))
        merges = linkage(divergence, "average")
        group = cut(merges, hyper.gamma) if n_groups is None else cut_k(merges, n_groups)
        return State(GroupPFLServer(tree.broadcast(theta, n_clients), jnp.zeros(n_clients, jnp.int32), group), ())

    def round(key: Key, hyper: GroupPFLHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        centers, label, group = state.server
        split = cohort.round.astype(jnp.float32) >= hyper.one_group_rounds
        new = jnp.where(split, group, label)
        centers, own = inherit(centers, label, new), new[cohort.ids]
        optimizer, start = local_optimizer(hyper, work, cohort.round), ModelTable(centers, own)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        weight = client_weight(weighting, cohort, trained.ok)
        centers = cluster_mean(trained.params, weight, own, empty=centers)
        theta = tree.take(centers, jnp.int32(0))
        n_parameters, n_counts = tree.size(theta), n_outputs(model, theta, cohort.data)
        uplink = n_parameters + n_counts * (cohort.round == 0).astype(jnp.float32)
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": own, "n_clusters": new.max() + 1}
        return State(GroupPFLServer(centers, new, group), ()), metrics | traffic(uplink, n_parameters)

    def deploy(key: Key, hyper: GroupPFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.centers, state.server.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, deploy))


def n_outputs(model: Model, params: Params, data: ClientData) -> int:
    """How many classes the network tells apart."""
    one = minibatch(data.pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
    return jax.eval_shape(lambda: model.apply(params, one.x, None)[0]).shape[-1]
