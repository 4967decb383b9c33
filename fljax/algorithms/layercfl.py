"""LayerCFL: clustered federated learning that compares clients by the updates of well-chosen layers.

Yuan, Qian, Yuan, Sun, Li, Li: LayerCFL: an efficient federated learning with layer-wised clustering, Cybersecurity
2023, https://doi.org/10.1186/s42400-023-00172-x; it builds on Sattler, Mueller, Samek: Clustered Federated Learning,
IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991, https://github.com/felisat/clustered-federated-learning.
A cluster whose mean update has become small while some member's has not is split in two where the cosine similarity of
its members' updates is least; what is compared are the layers that tell the clients apart.

Differences from the paper: the body of its algorithm is CFL's. ``eps_1`` is a tenth of the largest mean update norm
that the cluster or its ancestors have shown, this round included, and ``eps_2`` four times that. The default
``gamma_max`` is 0.5: with 0 every split is accepted, and clients of one distribution are split too. The default
``linkage="single"`` is the optimum of the paper's min-max problem; CFL's code has "complete". With partial
participation a split is decided by the participants; absent clients follow the larger half, and a cluster without
participants waits. Clients that never took part join the cluster of least training loss; CFL walks them down its tree
of splits by their updates, for which all earlier models would have to be kept. For the same reason a client is not
offered its cluster's ancestors: CFL's code keeps every one and takes the best on validation data. ``gamma_max`` alone
does not keep real clients of one distribution together: with 300 images each, one seed of five was split
(experiments/layercfl.py). ``spacing``, which is ours, bars that.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.layer_similarity import check_group, check_measure, chosen_layers, gaps, similarity
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.rounds.joining import join_cluster
from fljax.server.aggregate import cluster_mean
from fljax.server.bipartition import LINKAGES, best_bipartition, split
from fljax.server.inherit import inherit
from fljax.server.separation import gamma_limit
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work


class LayerCFLHyper(NamedTuple):
    """Numbers of LayerCFL and CFL.

    lr: clients' learning rate, > 0.
    lr_decay: factor on it per round, in (0, 1]; None: constant. CFL's code has 0.99.
    momentum: of the clients' SGD, in [0, 1); None: none. CFL's code has 0.9.
    eps_1: a cluster is stationary when its mean update is shorter; None: ``eps_share`` of the largest so far.
    eps_2: a member is not stationary when its update is longer; None: ``eps_ratio`` times eps_1. inf: never split.
    eps_share: 0.1 in the paper.
    eps_ratio: 1 to 10 in the paper, 4 in CFL's code.
    gamma_max: a split needs sqrt((1 - alpha_cross) / 2) above it, in [0, 1]; for cosine measures. None: no such test.
    spacing: a split needs its halves farther apart than this many times the median distance of a member to its nearest
        neighbour, where distance is 1 - cosine or L2; None: no such test. See AdaCFL.
    r_min: no split up to this round, counted from 0.
    min_size: a cluster of so many members or fewer is not split.
    """

    lr: Array | float = 0.05
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None
    eps_1: Array | float | None = None
    eps_2: Array | float | None = None
    eps_share: Array | float = 0.1
    eps_ratio: Array | float = 4.0
    gamma_max: Array | float | None = 0.5
    spacing: Array | float | None = None
    r_min: Array | float = 20
    min_size: Array | float = 2


class LayerCFLServer(NamedTuple):
    """The server's clusters. There are as many slots as clients; those past the last cluster are not used."""

    centers: Stacked  # (clusters, ...) Theta
    label: Array  # (clients,) a
    peak: Array  # (clusters,) largest norm of the mean update that the cluster or its ancestors have shown


class Norms(NamedTuple):
    """How far the clusters are from stationary."""

    mean: Array  # (clusters,) |sum_i n_i / n_k Delta_i|
    largest: Array  # (clusters,) max_i |Delta_i|
    n_members: Array  # (clusters,) members that count


@cache
def layercfl(
    model: Model,
    work: Work,
    *,
    layers: str | tuple[str, ...] = "feature",
    measure: str = "cos_update_part",
    linkage: str = "single",
    weighting: str = "size",
    group: tuple[int, ...] | None = None,
) -> Algorithm:
    """LayerCFL.

    Args:
        model: the network.
        work: local effort.
        layers: what is compared: "feature" (a convolution, for feature skew), "label" (the first dense layer, for
            label skew), "dense", "all" (CFL), or the names of layers. `fljax.run.pilot.layer_gaps` measures which,
            `fljax.algorithms.layer_similarity.layers_by_pilot` takes the best.
        measure: one of `fljax.algorithms.layer_similarity.MEASURES` or, of the whole model, its ``OTHERS``.
        linkage: "single" (optimal) or "complete" (CFL's code).
        weighting: of a cluster's members, "size" or "uniform" (CFL's code).
        group: the clients' true groups, for study: adds the separation gap of every layer and measure to the metrics.

    Raises:
        ValueError: an option is unknown, or the model has no such layer. A round raises it where ``group`` is not one
            entry a client.
    """
    check_weighting(weighting)
    check_measure(measure)
    selected = chosen_layers(model, layers)
    if linkage not in LINKAGES:
        raise ValueError(f"linkage={linkage!r} is unknown; choose one of {LINKAGES}")

    def init(key: Key, hyper: LayerCFLHyper, data: ClientData) -> State:
        n_clients = data.size.shape[0]
        centers = tree.broadcast(model.init(key), n_clients)
        return State(LayerCFLServer(centers, jnp.zeros(n_clients, jnp.int32), jnp.zeros(n_clients)), ())

    def round(key: Key, hyper: LayerCFLHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        centers, label, peak = state.server
        check_group(group, label.shape[0])
        own = label[cohort.ids]
        # w_i = LocalTrain(Theta_{a_i}); Delta_i = w_i - Theta_{a_i}.
        optimizer = local_optimizer(hyper, work, cohort.round)
        start = ModelTable(centers, own)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        updates = tree.subtract(trained.params, tree.take(centers, own))
        counts, weight = cohort.active & trained.ok, client_weight(weighting, cohort, trained.ok)
        # Is the cluster stationary while a member is not?
        member = (own[None, :] == jnp.arange(label.shape[0], dtype=own.dtype)[:, None]) & counts[None, :]
        norms = update_norms(updates, weight, own, member, centers)
        peak = jnp.maximum(peak, norms.mean)
        ripe = is_ripe(hyper, norms, peak, cohort.round)
        # Bipartition by the similarity of the selected layers, where the halves are far enough apart.
        alpha = similarity(measure, trained.params, updates, selected, counts)
        side, cross = best_bipartition(alpha, own, linkage, counts)
        accept = ripe & is_apart(hyper, measure, alpha, cross, member)
        new = split(label, everyones_side(side, counts, label, cohort.ids), accept[label])
        # Theta_k' <- Theta_k + sum_i n_i / n_k' Delta_i: the mean of the members' models, as all began at Theta_k.
        centers = cluster_mean(trained.params, weight, new[cohort.ids], empty=inherit(centers, label, new))
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": new[cohort.ids], "n_clusters": new.max() + 1}
        metrics |= {"mean_norm": norms.mean[own], "largest_norm": norms.largest[own], "cross": cross}
        if group is not None:
            true_group = jnp.asarray(group, jnp.int32)[cohort.ids]
            metrics |= gaps(model, trained.params, updates, selected, true_group, counts)
        n_parameters = tree.size(tree.take(centers, jnp.int32(0)))
        metrics |= traffic(n_parameters, n_parameters)
        return State(LayerCFLServer(centers, new, inherit(peak, label, new)), ()), metrics

    def deploy(key: Key, hyper: LayerCFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.centers, state.server.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, deploy))


def update_norms(updates: Stacked, weight: Array, label: Array, member: Array, centers: Stacked) -> Norms:
    """Norms over the whole model of each cluster's mean update and of its longest one; 0 for an empty cluster."""
    zero = jax.tree.map(jnp.zeros_like, centers)
    mean = cluster_mean(updates, weight, label, empty=zero)
    length = jnp.sqrt(jax.vmap(tree.squared_norm)(updates))
    largest = jnp.where(member, length[None, :], 0.0).max(axis=1)
    return Norms(jnp.sqrt(jax.vmap(tree.squared_norm)(mean)), largest, member.sum(axis=1).astype(jnp.float32))


def is_ripe(hyper: Any, norms: Norms, peak: Array, round: Array) -> Array:
    """(clusters,) bool: ``mean < eps_1`` and ``largest > eps_2``, enough members, and late enough."""
    eps_1 = hyper.eps_share * peak if hyper.eps_1 is None else hyper.eps_1
    eps_2 = hyper.eps_ratio * eps_1 if hyper.eps_2 is None else hyper.eps_2
    stationary = (norms.mean < eps_1) & (norms.largest > eps_2)
    return stationary & (norms.n_members > hyper.min_size) & (round.astype(jnp.float32) > hyper.r_min)


def is_apart(hyper: Any, measure: str, alpha: Array, cross: Array, member: Array) -> Array:
    """(clusters,) bool: whether the halves of each cluster's bipartition are far enough apart to be split.

    ``cross`` is `best_bipartition`'s, (clients,); ``member`` (clusters, clients) says who counts in which cluster.
    """
    alpha_cross = jnp.where(member, cross[None, :], -jnp.inf).max(axis=1)
    apart = jnp.isfinite(alpha_cross)
    if measure.startswith("cos") and hyper.gamma_max is not None:
        apart &= gamma_limit(alpha_cross) > hyper.gamma_max
    if hyper.spacing is not None:
        pair = (member[:, :, None] & member[:, None, :]).any(axis=0) & ~jnp.eye(alpha.shape[0], dtype=bool)
        nearest = jnp.where(pair, alpha, -jnp.inf).max(axis=1)
        typical = jnp.nanmedian(jnp.where(member, nearest[None, :], jnp.nan), axis=1)
        itself = 1.0 if measure.startswith("cos") else 0.0
        apart &= itself - alpha_cross > hyper.spacing * (itself - typical)
    return apart


def everyones_side(side: Array, counts: Array, label: Array, ids: Array) -> Array:
    """(clients,) bool: the half of each client's cluster that it goes to.

    Args:
        side: (cohort,) the participants' halves.
        counts: (cohort,) bool, the participants that count.
        label: (clients,) clusters.
        ids: (cohort,) who takes part.

    Returns:
        False in the half of the cluster's first participant. Clients that are absent or do not count go to the larger
        half, the first participant's where both are equal.
    """
    decided, second = (jnp.zeros(label.shape, bool).at[ids].set(value) for value in (counts, side))
    member = (label[None, :] == jnp.arange(label.shape[0], dtype=label.dtype)[:, None]) & decided[None, :]
    second ^= second[jnp.argmax(member, axis=1)][label]
    larger = jnp.where(member, jnp.where(second, 1, -1)[None, :], 0).sum(axis=1) > 0
    return jnp.where(decided, second, larger[label])
