"""FeSEM: stochastic expectation maximisation over K centers, k-means on models interleaved with local training.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better personalization,
World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026.
Official code: https://github.com/mingxuts/multi-center-fed-learning.
Each client is held near the center that its model is nearest to; each center is the mean of its clients' models.

Differences from the paper: a round runs local update, E step, M step in this order; since the initial k-means ends
where E and M change nothing, that is the paper's E, M, local update, and a tested model is never a round old. With
partial participation only the participants' rows of W are refreshed. Deviations of the official code are options:
``cluster_on="last_kernel"`` compares output kernels only; ``hyper.mu = 0`` leaves the distance out of the local loss.
A client that never took part has no model near any center: it joins the one of least training loss.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import traffic
from fljax.client import local_optimizer, predictor, proximal, train_clients, training_loss
from fljax.rounds.joining import join_cluster
from fljax.server.aggregate import cluster_mean
from fljax.server.assign import lowest_loss
from fljax.server.distance import cross_squared_l2
from fljax.server.kmeans import kmeans
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Work,
)


class FeSEMHyper(NamedTuple):
    """Numbers of FeSEM.

    lr: clients' learning rate, > 0. The paper has 0.003 on FEMNIST and 0.03 on CelebA.
    mu: weight of the distance to the center, >= 0; 2 lambda in the paper's objective. The official code has 0.1.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    mu: Array | float = 0.1
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class FeSEMServer(NamedTuple):
    """The server's tables."""

    centers: Stacked  # (clusters, ...) Theta
    models: Stacked  # (clients, ...) W, the models last uploaded
    label: Array  # (clients,) a
    mean_size: Array  # () examples per client over the whole federation


class Geometry(NamedTuple):
    """How models are compared and averaged."""

    points: Callable[[Stacked], Array]  # models -> (clients, d): what the first k-means sees
    squared: Callable[[Stacked, Stacked], Array]  # models, centers -> (clients, clusters) squared distances
    mean: Callable[[Stacked, Array, Array, Stacked], Stacked]  # as `cluster_mean`


@cache
def fesem(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    cluster_on: str = "model",
    pull: str = "objective",
    empty: str = "keep",
) -> Algorithm:
    """FeSEM with K = ``n_clusters`` centers.

    Args:
        model: the network.
        work: local effort.
        n_clusters: K; the paper's best is 4.
        cluster_on: "model" compares whole models, "last_kernel" the output layer's kernels.
        pull: "objective" weights client i's distance by mu * mean(n) / n_i, which is the paper's objective divided by
            alpha_i; "plain" by mu for everyone.
        empty: a cluster without clients keeps its center ("keep") or moves to the client farthest from its own
            center ("reseed").
    """
    check_choices(n_clusters, cluster_on, pull, empty)

    def compared(stacked: Stacked) -> Array:
        return tree.flatten(stacked if cluster_on == "model" else {"kernel": stacked[model.layers[-1]]["kernel"]})

    def squared(models: Stacked, centers: Stacked) -> Array:
        return cross_squared_l2(compared(models), compared(centers))

    return expectation_maximisation(model, work, n_clusters, pull, empty, Geometry(compared, squared, cluster_mean))


def expectation_maximisation(
    model: Model, work: Work, n_clusters: int, pull: str, empty: str, geometry: Geometry
) -> Algorithm:
    """FeSEM under any geometry of models; the other arguments are those of `fesem`."""
    points, squared, mean = geometry

    def init(key: Key, hyper: FeSEMHyper, data: ClientData) -> State:
        key_model, key_train, key_kmeans = jax.random.split(key, 3)
        ids = jnp.arange(data.size.shape[0])
        start = tree.everyone(model.init(key_model), ids.shape[0])
        keys = jax.vmap(lambda i: jax.random.fold_in(key_train, i))(ids)
        optimizer = local_optimizer(hyper, work, jnp.int32(0))
        models = train_clients(keys, start, data, training_loss(model), optimizer, work).params
        label = kmeans(key_kmeans, points(models), n_clusters, n_init=20).label
        centers = tree.broadcast(tree.take(models, jnp.int32(0)), n_clusters)
        centers = mean(models, jnp.ones(ids.shape[0]), label, centers)
        return State(FeSEMServer(centers, models, label, data.size.astype(jnp.float32).mean()), ())

    def round(key: Key, hyper: FeSEMHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        centers, models, label, mean_size = state.server
        # Local update: minimise L_i(w) + mu_i/2 |w - Theta_{a_i}|^2 from Theta_{a_i}.
        start = ModelTable(centers, label[cohort.ids])
        loss, mu = _pulled(model), _pull_weight(pull, hyper.mu, mean_size, cohort)
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, loss, optimizer, work, start, mu)
        uploaded = tree.where(cohort.active & trained.ok, trained.params, tree.take(models, cohort.ids))
        models = tree.put(models, cohort.ids, uploaded)
        # E step: a_i = argmin_k |W_i - Theta_k|^2.
        distances = squared(models, centers)
        label = lowest_loss(distances)
        # M step: Theta_k = mean of W_i over a_i = k.
        centers = m_step(centers, models, label)
        n_parameters = tree.size(tree.take(centers, jnp.int32(0)))
        n_members = jnp.bincount(label, length=n_clusters)
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": label[cohort.ids]}
        metrics |= {"n_clusters": (n_members > 0).sum(), "distance": distances.min(axis=1).sum()}
        metrics |= traffic(n_parameters, n_parameters)
        return State(FeSEMServer(centers, models, label, mean_size), ()), metrics

    def m_step(centers: Stacked, models: Stacked, label: Array) -> Stacked:
        if empty == "reseed":
            own = jnp.take_along_axis(squared(models, centers), label[:, None], axis=1)
            centers = tree.broadcast(tree.take(models, jnp.argmax(own)), n_clusters)
        return mean(models, jnp.ones(label.shape[0]), label, centers)

    def deploy(key: Key, hyper: FeSEMHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.centers, state.server.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, deploy))


def _pulled(model: Model) -> Any:
    def loss(params: Params, batch: Batch, key: Key, anchor: Params, mu: Array) -> tuple[Array, Params]:
        return proximal(training_loss(model), mu)(params, batch, key, anchor)

    return loss


def _pull_weight(pull: str, mu: Array | float, mean_size: Array, cohort: Cohort) -> Array:
    """mu_i ``(cohort,)``: mu * mean(n) / n_i, or mu."""
    size = jnp.maximum(cohort.data.size, 1).astype(jnp.float32)
    return mu * (mean_size / size if pull == "objective" else jnp.ones_like(size))


def check_choices(n_clusters: int, cluster_on: str, pull: str, empty: str) -> None:
    """Raises ValueError for a choice that `fesem` does not have."""
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")
    for name, given, allowed in (
        ("cluster_on", cluster_on, ("model", "last_kernel")),
        ("pull", pull, ("objective", "plain")),
        ("empty", empty, ("keep", "reseed")),
    ):
        if given not in allowed:
            raise ValueError(f"{name}={given!r} is unknown; choose one of {', '.join(map(repr, allowed))}")
