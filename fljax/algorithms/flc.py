"""FLC: FedAvg, whose clients are parted once into two groups by their weight updates, layer by layer (our reading).

Kim et al., ICUFN 2021, known here through those who compare with it: the method in this file is our reading.
After a few rounds of FedAvg the server clusters the clients' last updates by 2-means, every layer scaled to length 1 so
that each counts the same; from then on each group averages its own members.

Differences from the paper: not known beyond its abstract (an analysis of weights by layer, two groups, formed once).
With partial participation the updates last uploaded are clustered; a client that never took part before the groups
form joins the largest, one that is new after the run the group of least training loss.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.rounds.joining import join_cluster
from fljax.server.aggregate import cluster_mean
from fljax.server.kmeans import kmeans
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work


class FLCHyper(NamedTuple):
    """Numbers of FLC.

    lr: clients' learning rate, > 0.
    warmup: rounds of FedAvg, in the last of which the groups form, >= 1; inf: FedAvg.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    warmup: Array | float = 5.0
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class FLCServer(NamedTuple):
    """What the server keeps."""

    theta: Stacked  # (clusters, ...), equal rows before the groups form
    update: Stacked  # (clients, ...) the updates last uploaded, layers of length 1; 0: none yet
    label: Array  # (clients,) int32 group of each


@cache
def flc(model: Model, work: Work, n_clusters: int = 2, *, weighting: str = "size") -> Algorithm:
    """FLC: FedAvg; ``a = kmeans(updates of round warmup)``; then ``theta_k <- mean of w_i over a_i = k`` by omega_i.

    Args:
        model: the network.
        work: local effort.
        n_clusters: groups that form; the paper has 2.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).
    """
    check_weighting(weighting)
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")

    def init(key: Key, hyper: FLCHyper, data: ClientData) -> State:
        theta, n_clients = tree.broadcast(model.init(key), n_clusters), data.size.shape[0]
        none = jax.tree.map(lambda leaf: jnp.zeros((n_clients, *leaf.shape[1:])), tree.split_statistics(theta)[0])
        return State(FLCServer(theta, none, jnp.zeros(n_clients, jnp.int32)), ())

    def round(key: Key, hyper: FLCHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, update, label = state.server
        start = ModelTable(theta, label[cohort.ids])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        weight = client_weight(weighting, cohort, trained.ok)
        moved = scaled_layers(tree.subtract(trained.params, tree.take(theta, start.label)))
        moved = tree.where(cohort.active & trained.ok, moved, tree.take(update, cohort.ids))
        update = tree.put(update, cohort.ids, moved)
        round = cohort.round.astype(jnp.float32)
        forms = (round < hyper.warmup) & (round + 1 >= hyper.warmup)
        label = lax.cond(forms, lambda: groups(key, update, n_clusters), lambda: label)
        theta = cluster_mean(trained.params, weight, label[cohort.ids], empty=theta)
        together = jnp.broadcast_to(round + 1 < hyper.warmup, n_clusters)
        theta = tree.where(together, tree.broadcast(tree.take(theta, jnp.int32(0)), n_clusters), theta)
        n_parameters = tree.size(tree.take(theta, jnp.int32(0)))
        n_members = jnp.bincount(label, length=n_clusters)
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": label[cohort.ids]}
        metrics |= {"n_clusters": (n_members > 0).sum(), **traffic(n_parameters, n_parameters)}
        return State(FLCServer(theta, update, label), ()), metrics

    def deploy(key: Key, hyper: FLCHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.theta, state.server.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, deploy))


def scaled_layers(update: Stacked) -> Stacked:
    """Every layer of every client's update divided by its length; a layer that did not move stays 0."""

    def unit(layer: Stacked) -> Stacked:
        squared = jax.vmap(tree.squared_norm)(layer)
        length = jnp.where(squared > 0, jnp.sqrt(squared), 1.0)
        return jax.tree.map(lambda leaf: leaf / tree.along(length, leaf), layer)

    return {name: unit(layer) for name, layer in tree.split_statistics(update)[0].items()}


def groups(key: Key, update: Stacked, n_clusters: int) -> Array:
    """(clients,) canonical labels of k-means; who has no update yet joins the largest group."""
    seen = jax.vmap(tree.squared_norm)(update) > 0
    label = kmeans(key, update, n_clusters, n_init=20, where=seen).label
    largest = jnp.argmax(jnp.bincount(jnp.where(seen, label, n_clusters), length=n_clusters)).astype(jnp.int32)
    return jnp.where(seen, label, largest)
