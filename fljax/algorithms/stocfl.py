"""StoCFL: clusters of a round's participants are merged if their gradients have similar directions.

Zeng, Hu, Liu, Yu, Wang, Xu: Stochastic Clustered Federated Learning, 2023, https://arxiv.org/abs/2303.00897.
Official code: https://github.com/dunzeng/StoCFL.
Every client starts as its own cluster and is represented by the update that it makes to a common anchor model. In each
round, the participating clusters are merged if the cosine of their mean updates is at least tau. In addition to the
cluster models, a global model is trained on all participants; cluster models are held near it.

Differences from the paper: every client trains the anchor before the first round, not when it is first sampled; this
counts as an upload of the first round's participants. As in the code, a merged cluster keeps the model of its largest
part (here: with the most clients that have participated), and a cluster of clients that have not participated starts
with the global model. All participants train the global model in parallel; in the code, one after another. A new client
joins the cluster with the least training loss.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ops import segment_max, segment_min

from fljax import tree
from fljax.choices import Positive
from fljax.client.objectives import proximal, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, mean, method, regrouped, train
from fljax.rounds.accounting import occupied
from fljax.rounds.clustered import with_first_upload
from fljax.rounds.combine_parts import over_everybody
from fljax.rounds.joining import join_cluster
from fljax.rounds.local import train_beforehand
from fljax.rounds.uplink.private import check_not_private
from fljax.server.aggregate import cluster_mean
from fljax.server.distance import pairwise_cosine
from fljax.server.labels import canonical, rank
from fljax.server.linkage import linkage
from fljax.server.tree_cuts import cut
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, ModelTable, Params, Stacked, State, Trained, Work


@hyper
class StoCFLHyper(LocalHyper):
    tau: Scalar = number(
        0.2, "least cosine of two clusters that are merged; the code's commands have 0.2 to 0.65", least=-1, most=1
    )
    lam: Scalar = number(0.1, "lambda: proximal weight to the global model; the code has 0.05, 0.1", least=0)


class Known(NamedTuple):
    """What StoCFL remembers about the clients."""

    psi: Params  # (clients, ...) each client's update of the anchor
    seen: Array  # (clients,) bool: clients that have participated


@method(StoCFLHyper, "Zeng et al., 2023", "https://arxiv.org/abs/2303.00897", kind="clustered")
def stocfl(
    model: Model,
    work: Work,
    *,
    anchor_epochs: Positive = 1,
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """StoCFL: ``theta_k <- mean of argmin F_i(theta) + lambda/2 |theta - omega|^2``; ``omega`` by FedAvg.

    Clusters k, l of the round are merged if ``cos(Psi_k, Psi_l) >= tau``; Psi is the mean, over a cluster's
    participants, of the change of the anchor in ``anchor_epochs`` of training.

    Args:
        anchor_epochs: training epochs from the anchor, the initial model.
        combine: how the server combines a cluster's models, and all participants' global models.
    """
    check_not_private(work, "clients of StoCFL train the anchor and then two models, and epsilon counts one training")
    loss = training_loss(model)

    def begin(key: Key, hyper: StoCFLHyper, data: ClientData) -> Clusters:
        key_model, key_train = jax.random.split(key)
        theta, n_clients = model.init(key_model), data.n_clients
        pretrained = train_beforehand(key_train, hyper, theta, data, model, work.for_epochs(anchor_epochs))
        psi = tree.trainable(tree.subtract(pretrained.params, tree.broadcast(theta, n_clients)))
        centers = tree.broadcast(tree.side_by_side(theta=theta, omega=theta), n_clients)
        return Clusters(centers, jnp.arange(n_clients, dtype=jnp.int32), Known(psi, jnp.zeros(n_clients, bool)))

    def before(hyper: StoCFLHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        psi, seen = clusters.kept
        label = merged(psi, clusters.label, cohort, hyper.tau)
        new = regrouped(clusters._replace(label=largest_part(clusters.label, label, seen)), label)
        known = Known(psi, seen.at[cohort.ids].max(cohort.active))
        new_centers = tree.side_by_side(theta=initial_models(new), omega=tree.apart(new.centers)["omega"])
        return new._replace(centers=new_centers, kept=known)

    def local(hyper: StoCFLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        theta, omega = (ModelTable(tree.apart(start.params)[name], start.row) for name in ("theta", "omega"))
        center = train(hyper, theta, cohort, proximal(loss, hyper.lam), work, omega)
        common = train(hyper, omega, cohort, loss, work)
        return Trained(tree.side_by_side(theta=center.params, omega=common.params), center.loss, center.ok & common.ok)

    def deploy(key: Key, hyper: StoCFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(initial_models(state.server), state.server.label)

    rounds = clustered(
        model,
        local,
        Rule(begin, before),
        combine=over_everybody(combine, ("omega",)),
        weighting=weighting,
        sends=with_first_upload(lambda center, cohort: tree.size(center["theta"])),
        deploy=deploy,
    )
    return rounds._replace(join=join_cluster(model, deploy))


def merged(psi: Any, label: Array, cohort: Cohort, tau: Scalar) -> Array:
    """(clients,) canonical clusters after similar clusters with participants are merged.

    Args:
        psi: (clients, ...) updates of the anchor.
        label: (clients,) clusters so far.
        cohort: the participants.
        tau: least cosine.
    """
    n, own_cluster = label.shape[0], label[cohort.ids]
    # Only clusters with participants are compared, in as many rows as there are participants.
    n_places, place = own_cluster.shape[0], rank(own_cluster, cohort.active)
    empty = jax.tree.map(lambda leaf: jnp.zeros((n_places, *leaf.shape[1:]), leaf.dtype), psi)
    mean_move = cluster_mean(tree.take(psi, cohort.ids), cohort.active.astype(jnp.float32), place, empty)
    # A cluster whose update is 0, because its training diverged, is not merged; its cosine of 0 could reach tau.
    has_moved = [(leaf != 0).reshape(n_places, -1).any(1) for leaf in jax.tree.leaves(mean_move)]
    present = occupied(jnp.where(cohort.active, place, -1), n_places) & jnp.stack(has_moved).any(0)
    merged_place = cut(linkage(1 - pairwise_cosine(mean_move, present), "single", present), 1 - tau, present)
    # An absent cluster is not merged: it keeps a number that no merged cluster has.
    unmerged = n + jnp.arange(n, dtype=merged_place.dtype)
    place = jnp.minimum(place, n_places - 1)
    is_merged = cohort.active & present[place]
    group = unmerged.at[jnp.where(is_merged, own_cluster, n)].set(merged_place[place], mode="drop")
    return canonical(group[label])


def initial_models(clusters: Clusters) -> Stacked:
    """(clusters, ...) the clusters' models; for clusters that have not participated, the present global model."""
    (_, seen), n = clusters.kept, clusters.label.shape[0]
    is_trained = jnp.bincount(clusters.label, seen.astype(jnp.int32), length=n) > 0
    models = tree.apart(clusters.centers)
    return tree.where(is_trained, models["theta"], models["omega"])


def largest_part(old: Array, new: Array, seen: Array) -> Array:
    """(clients,) the ``old`` cluster whose model a client's ``new`` cluster takes over: the one with most clients seen.

    In a tie, the cluster of the client with the lowest id.
    """
    n = old.shape[0]
    n_seen = jnp.bincount(old, seen.astype(jnp.int32), length=n)[old]
    is_most = n_seen == segment_max(n_seen, new, n)[new]
    client = jnp.arange(n, dtype=jnp.int32)
    return old[segment_min(jnp.where(is_most, client, n - 1), new, n)[new]]
