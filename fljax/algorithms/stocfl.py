"""StoCFL: clusters of the clients that happen to take part are merged while their gradients point the same way.

Zeng, Hu, Liu, Yu, Wang, Xu: Stochastic Clustered Federated Learning, 2023, https://arxiv.org/abs/2303.00897.
Official code: https://github.com/dunzeng/StoCFL.
Every client begins as a cluster of its own and is known by how it moves a common anchor model. In each round the
clusters that are present are merged where the cosine of their mean moves is at least tau. Beside the clusters' models
a global one learns from everybody, and holds them.

Differences from the paper: every client trains the anchor before the first round, not when it is first drawn, which
counts as an upload of the first round's participants. As in the code, a merged cluster keeps the model of its largest
part (here: of most clients that have taken part), and one of new clients begins with the global model, which all
participants train; in the code each trains on from the one before it. A client that never took part joins the cluster
of least training loss.
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
from fljax.rounds.everybody import over_everybody
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
    lam: Scalar = number(0.1, "lambda: pull of the clusters' models to the global one; the code has 0.05, 0.1", least=0)


class Known(NamedTuple):
    """What StoCFL remembers of the clients."""

    psi: Params  # (clients, ...) how each moves the anchor
    seen: Array  # (clients,) bool, who has taken part


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

    Clusters k, l of the round are merged where ``cos(Psi_k, Psi_l) >= tau``; Psi is the mean over a cluster's
    participants of how ``anchor_epochs`` of training move the anchor.

    Args:
        anchor_epochs: epochs from the anchor, the first model.
        combine: what the server makes of a cluster's models, and of everybody's global ones.
    """
    check_not_private(work, "clients of StoCFL train two models, and the anchor first, and epsilon counts one training")
    loss = training_loss(model)

    def begin(key: Key, hyper: StoCFLHyper, data: ClientData) -> Clusters:
        key_model, key_train = jax.random.split(key)
        theta, n_clients = model.init(key_model), data.n_clients
        moved = train_beforehand(key_train, hyper, theta, data, model, work._replace(epochs=anchor_epochs))
        psi = tree.trainable(tree.subtract(moved.params, tree.broadcast(theta, n_clients)))
        centers = tree.broadcast(tree.side_by_side(theta=theta, omega=theta), n_clients)
        return Clusters(centers, jnp.arange(n_clients, dtype=jnp.int32), Known(psi, jnp.zeros(n_clients, bool)))

    def before(hyper: StoCFLHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        psi, seen = clusters.kept
        label = merged(psi, clusters.label, cohort, hyper.tau)
        new = regrouped(clusters._replace(label=largest_part(clusters.label, label, seen)), label)
        known = Known(psi, seen.at[cohort.ids].max(cohort.active))
        both = tree.side_by_side(theta=begun(new), omega=tree.apart(new.centers)["omega"])
        return new._replace(centers=both, kept=known)

    def local(hyper: StoCFLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        theta, omega = (ModelTable(tree.apart(start.params)[name], start.row) for name in ("theta", "omega"))
        near = train(hyper, theta, cohort, proximal(loss, hyper.lam), work, omega)
        common = train(hyper, omega, cohort, loss, work)
        return Trained(tree.side_by_side(theta=near.params, omega=common.params), near.loss, near.ok & common.ok)

    def deploy(key: Key, hyper: StoCFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(begun(state.server), state.server.label)

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
    """(clients,) canonical clusters, those merged that are present and alike.

    Args:
        psi: (clients, ...) moves of the anchor.
        label: (clients,) clusters so far.
        cohort: who is present.
        tau: least cosine.
    """
    n, own = label.shape[0], label[cohort.ids]
    # Of all clusters those that are present alone are looked at, in as many places as there are participants.
    n_places, place = own.shape[0], rank(own, cohort.active)
    empty = jax.tree.map(lambda leaf: jnp.zeros((n_places, *leaf.shape[1:]), leaf.dtype), psi)
    mean_move = cluster_mean(tree.take(psi, cohort.ids), cohort.active.astype(jnp.float32), place, empty)
    # One that has not moved, for its training came to nothing, is like nobody: its cosine, 0, would join others.
    moved = [(leaf != 0).reshape(n_places, -1).any(1) for leaf in jax.tree.leaves(mean_move)]
    present = occupied(jnp.where(cohort.active, place, -1), n_places) & jnp.stack(moved).any(0)
    found = cut(linkage(1 - pairwise_cosine(mean_move, present), "single", present), 1 - tau, present)
    # A cluster that is absent stays apart: it keeps a number that no merged one has.
    apart = n + jnp.arange(n, dtype=found.dtype)
    place = jnp.minimum(place, n_places - 1)
    merges = cohort.active & present[place]
    group = apart.at[jnp.where(merges, own, n)].set(found[place], mode="drop")
    return canonical(group[label])


def begun(clusters: Clusters) -> Stacked:
    """(clusters, ...) their models; of those nobody of which has taken part the global one, as it is now."""
    (_, seen), n = clusters.kept, clusters.label.shape[0]
    is_trained = jnp.bincount(clusters.label, seen.astype(jnp.int32), length=n) > 0
    models = tree.apart(clusters.centers)
    return tree.where(is_trained, models["theta"], models["omega"])


def largest_part(old: Array, new: Array, seen: Array) -> Array:
    """(clients,) the cluster of ``old`` whose model a client's cluster of ``new`` takes over: most clients seen.

    Of equal ones that of the client of lowest id.
    """
    n = old.shape[0]
    n_seen = jnp.bincount(old, seen.astype(jnp.int32), length=n)[old]
    is_most = n_seen == segment_max(n_seen, new, n)[new]
    client = jnp.arange(n, dtype=jnp.int32)
    return old[segment_min(jnp.where(is_most, client, n - 1), new, n)[new]]
