"""FedClust: clients are clustered before the first round by the last layers of models that they trained alone.

Islam, Javaherian, Xu, Yuan, Chen, Tzeng: FedClust: Optimizing Federated Learning on Non-IID Data through Weight-Driven
Client Clustering, IPDPSW 2024, https://arxiv.org/abs/2403.04144; longer version: https://arxiv.org/abs/2407.07124.
All clients train the common initial model for some epochs and send their last layer only; the server clusters them once
by agglomeration of the distances between these layers, and each cluster then runs its own FedAvg from the initial
model. A new client does the same, and joins the cluster whose mean last layer is nearest to its own.

FL+HC with ``warmup=1`` clusters whole updates, of the first round's participants only, and goes on from their models;
here all clients are asked, and what they trained is not used again. This has not been compared with the paper's
pseudo-code. Chosen here: average linkage; the mean stands for a cluster when a client joins; a client whose training
failed, or that has no examples, joins the largest cluster.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, last_layers, mean, method, with_first_upload
from fljax.rounds.accounting import occupied
from fljax.rounds.local import train_beforehand
from fljax.rounds.one_shot import unseen_to_largest
from fljax.rounds.sharing import n_floats
from fljax.rounds.uplink.private import check_not_private
from fljax.server.aggregate import cluster_mean
from fljax.server.assign import lowest_loss
from fljax.server.distance import cross_squared_l2, pairwise_l2
from fljax.server.linkage import linkage as dendrogram
from fljax.server.tree_cuts import cut_at_or_k
from fljax.types import Algorithm, ClientData, Key, Model, ModelTable, Params, Stacked, State, Trained, Work


@hyper
class FedClustHyper(LocalHyper):
    threshold: Scalar = number(
        1.0,
        "lambda: clusters merge up to this distance, L2, which scales with layer and lr; inf is FedAvg; unused with "
        "n_clusters",
        least=0,
        infinite=True,
    )


class Alone(NamedTuple):
    """What the server keeps for clients that come later."""

    initial: Params  # theta_0
    means: Stacked  # (clusters, ...) mean last layers of the members' models


@method(FedClustHyper, "Islam et al., IPDPSW 2024", "https://arxiv.org/abs/2403.04144", kind="clustered")
def fedclust(
    model: Model,
    work: Work,
    *,
    alone_epochs: Positive = 1,
    n_compared: Positive = 1,
    linkage: Literal["average", "complete", "single"] = "average",
    n_clusters: Positive | None = None,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedClust: ``a = cut(linkage(|last(w_i) - last(w_j)|), lambda)`` once; ``theta_k <- mean of its members' w_i``.

    Args:
        alone_epochs: epochs that each client trains the initial model alone, before the clusters form.
        n_compared: number of last layers that a client then sends.
        n_clusters: the tree is cut into this many clusters; None: at the threshold.

    Raises:
        ValueError: the model has fewer than ``n_compared`` layers.
    """
    check_not_private(work, "clients of FedClust also train before the first round, and epsilon counts rounds only")
    compared = last_layers(model, n_compared, "n_compared")

    def alone(key: Key, hyper: FedClustHyper, theta: Params, data: ClientData) -> tuple[Trained, Stacked]:
        trained = train_beforehand(key, hyper, theta, data, model, work.for_epochs(alone_epochs))
        return trained, tree.select(trained.params, compared)

    def begin(key: Key, hyper: FedClustHyper, data: ClientData) -> Clusters:
        theta = model.init(key)
        trained, last = alone(jax.random.fold_in(key, 1), hyper, theta, data)
        has_sent = trained.ok & (data.size > 0)
        merges = dendrogram(pairwise_l2(last), linkage, has_sent)
        label = unseen_to_largest(cut_at_or_k(merges, hyper.threshold, n_clusters, has_sent), has_sent)
        n_slots = n_clusters or data.n_clients
        start = tree.broadcast(tree.select(theta, compared), n_slots)
        means = cluster_mean(last, has_sent.astype(jnp.float32), label, start)
        return Clusters(tree.broadcast(theta, n_slots), label, Alone(theta, means))

    def join(key: Key, hyper: FedClustHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        clusters, known = state.server, state.server.kept
        last = alone(key, hyper, known.initial, data)[1]
        distance = cross_squared_l2(last, known.means)
        is_held = occupied(clusters.label, tree.n_rows(clusters.centers))
        return ModelTable(clusters.centers, lowest_loss(jnp.where(is_held[None], distance, jnp.inf)))

    sends = with_first_upload(lambda center, cohort: n_floats(center, compared))
    rounds = clustered(model, work, Rule(begin), combine=combine, weighting=weighting, sends=sends)
    return rounds._replace(join=join)
