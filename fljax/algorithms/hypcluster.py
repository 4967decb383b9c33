"""HypCluster: clients pick the cluster model with the least loss, and each cluster takes a step of FedAvg.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning, 2020,
https://arxiv.org/abs/2002.10619. Code: https://github.com/google/fedjax.
As IFCA, with members weighted by their sizes and a server optimiser of each cluster's own.

Differences from the paper: initial models are redrawn as in IFCA until each wins a share ``min_share`` of the clients
(0 takes the first draw, as fedjax does), not made by k-means on locally trained models; an empty cluster keeps its
model and its optimiser's state.
"""

from functools import cache, partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import client_weight, traffic
from fljax.algorithms.ifca import balanced_draw
from fljax.client import cross_loss, local_optimizer, predictor, train_clients, training_loss
from fljax.server.aggregate import cluster_mean
from fljax.server.assign import lowest_loss
from fljax.server.optimizer import check_server_optimizer, numbers_of, server_step
from fljax.server.optimizer import server_optimizer as optimizer_named
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work


class HypClusterHyper(NamedTuple):
    """Numbers of HypCluster.

    lr: clients' learning rate, > 0.
    server_lr: learning rate of the clusters' servers, > 0; 1 with "sgd" sets the members' mean.
    min_share: least share of the clients that each initial model must win, in [0, 1/K]; 0 takes the first draw.
    beta1: memory of a server's first moment, in [0, 1); not of "sgd".
    beta2: memory of a server's second moment, in [0, 1); "adam" and "yogi".
    tau: adaptivity, > 0; "adam" and "yogi".
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    server_lr: Array | float = 1.0
    min_share: Array | float = 0.1
    beta1: Array | float = 0.9
    beta2: Array | float = 0.99
    tau: Array | float = 1e-3
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class HypClusterServer(NamedTuple):
    """What the server keeps."""

    theta: Stacked  # (clusters, ...)
    moments: optax.OptState  # of each cluster's optimiser, (clusters, ...)


@cache
def hypcluster(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "sgd",
) -> Algorithm:
    """HypCluster: ``a_i = argmin_j F_i(theta_j)``; ``theta_j <- ServerOpt(theta_j, mean_j of LocalTrain(theta_j))``.

    Args:
        model: the network.
        work: local effort.
        n_clusters: K, at least 1.
        server_optimizer: of every cluster, see `fljax.algorithms.fedopt`.
    """
    check_server_optimizer(server_optimizer)
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")

    def optimizer_of(hyper: HypClusterHyper) -> optax.GradientTransformation:
        return optimizer_named(server_optimizer, numbers_of(hyper))

    def init(key: Key, hyper: HypClusterHyper, data: ClientData) -> State:
        theta = balanced_draw(key, model, n_clusters, hyper.min_share, data)
        moments = jax.vmap(optimizer_of(hyper).init)(tree.split_statistics(theta)[0])
        return State(HypClusterServer(theta, moments), ())

    def round(key: Key, hyper: HypClusterHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, moments = state.server
        label = lowest_loss(cross_loss(model, theta, cohort.data))  # a_i = argmin_j F_i(theta_j)
        optimizer = local_optimizer(hyper, work, cohort.round)
        start = ModelTable(theta, label)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        weight = client_weight("size", cohort, trained.ok)
        mean = cluster_mean(trained.params, weight, label, empty=theta)
        stepped = jax.vmap(partial(server_step, optimizer_of(hyper)))(moments, theta, mean)
        occupied = jax.ops.segment_sum(weight, label, n_clusters) > 0
        server = HypClusterServer(*tree.where(occupied, stepped, (theta, moments)))
        n_parameters, n_members = tree.size(tree.take(theta, jnp.int32(0))), jnp.bincount(label, length=n_clusters)
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": label, "n_clusters": (n_members > 0).sum()}
        return State(server, ()), metrics | traffic(n_parameters + 1, n_clusters * n_parameters)

    def deploy(key: Key, hyper: HypClusterHyper, state: State, data: ClientData) -> ModelTable:
        theta = state.server.theta
        return ModelTable(theta, lowest_loss(cross_loss(model, theta, data)))

    return Algorithm(init, round, deploy, predictor(model))
