"""ClusterFL: one model per client, held near the mean of its cluster; k-means on the models finds the clusters.

Ouyang, Xie, Zhou, Huang, Xing: ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition,
MobiSys 2021, https://doi.org/10.1145/3458864.3467681. Official code: https://github.com/xmouyang/ClusterFL.
Minimises ``sum_i L_i(w_i) + alpha tr(W W') - beta tr(F' W W' F)`` over the models W and the indicator F of clusters
(``F_ic = 1/sqrt(n_c)``), in turn; with alpha = beta the penalty is alpha times the cost of k-means.

Differences from the paper: clients use the gradient of the penalty with the means of the last round, instead of the
code's ADMM with multipliers, and F comes from k-means on the models instead of principal components of the divergence
of softened outputs. There is no penalty before the first clustering; the code has alpha |w|^2 from the first round, and
uses a new F with the previous Omega for one round. The code's local loss adds the inner product with Omega and the
multipliers, which the Lagrangian subtracts, and has only the client's own part of |F' W|^2. Before a client first
participates, it is clustered by the initial model; so let all clients participate before a clustering that is kept. A
new client starts from the cluster mean with the least training loss, and is held near it. A client's update is relative
to the server's copy of its model, so its next update contains what a lossy brick left out, and `error_feedback` is
rejected.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.objectives import Loss, predictor, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, client_weight, mean, method, reported, train
from fljax.rounds.accounting import occupied
from fljax.rounds.combine import as_combine, members_of, memory_of
from fljax.rounds.joining import held_with_least_loss, train_new_clients
from fljax.server.kmeans import kmeans
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Trained,
    Upload,
    Work,
)


@hyper
class ClusterFLHyper(LocalHyper):
    """Hyperparameters of ClusterFL. Official code: alpha 1e-3, beta 5e-4, every 3. alpha = beta = 0: standalone."""

    alpha: Scalar = number(1e-3, "weight of the models' squared norms", least=0, not_below="beta")
    beta: Scalar = number(5e-4, "weight of the clusters' means", least=0)
    warmup: Scalar = number(1.0, "rounds before the first clustering, rounded", least=1, infinite=True)
    every: Scalar = number(
        3.0,
        "rounds between two clusterings, rounded; inf keeps the first (let all clients participate before it)",
        least=1,
        infinite=True,
    )


class ClusterFLServer(NamedTuple):
    """The server's tables."""

    models: Stacked  # (clients, ...) W, each client's model as received
    means: Stacked  # (clusters, ...) of the members' models
    label: Array  # (clients,)
    memory: Any  # (clusters, ...) the state of `combine`


@method(ClusterFLHyper, "Ouyang et al., MobiSys 2021", "https://doi.org/10.1145/3458864.3467681", kind="clustered")
def clusterfl(
    model: Model, work: Work, n_clusters: Positive = 2, *, n_init: Positive = 20, combine: Combining = mean
) -> Algorithm:
    """ClusterFL: ``w_i <- w_i - eta (g(w_i) + 2 alpha w_i - 2 beta mean_{a_i})``; ``a`` by k-means on W when due.

    Args:
        n_init: restarts of k-means.
    """
    combining = as_combine(combine)

    def init(key: Key, hyper: ClusterFLHyper, data: ClientData) -> State:
        start = model.init(key)
        models, means = tree.broadcast(start, data.n_clients), tree.broadcast(start, n_clusters)
        memory = memory_of(combining, hyper, means)
        # A client continues from its own model, unchanged by what uplink bricks do to its message.
        return State(ClusterFLServer(models, means, jnp.zeros(data.n_clients, jnp.int32), memory), models)

    def send(key: Key, hyper: ClusterFLHyper, state: State, cohort: Cohort) -> Upload:
        models, means, label, _ = state.server
        is_clustered = cohort.round.astype(jnp.float32) >= jnp.round(hyper.warmup)
        trained = trained_near_means(hyper, is_clustered, state.clients, ModelTable(means, label[cohort.ids]), cohort)
        weight = client_weight("uniform", cohort, trained.ok)
        return Upload(ModelTable(models, cohort.ids), trained.params, weight, trained)

    def trained_near_means(
        hyper: ClusterFLHyper, is_clustered: Array, models: Any, mean: ModelTable, cohort: Cohort
    ) -> Trained:
        # w_i <- w_i - eta (g(w_i) + 2 alpha w_i - 2 beta mean_{a_i}), from the client's own model.
        alpha, beta = (jnp.where(is_clustered, weight, 0.0) for weight in (hyper.alpha, hyper.beta))
        return train(hyper, models, cohort, with_cluster_penalty(training_loss(model), alpha, beta), work, mean)

    def receive(key: Key, hyper: ClusterFLHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (models, means, label, memory), trained = state.server, upload.rest
        models = tree.put(models, cohort.ids, upload.params, upload.weight > 0)
        # F: k-means on W, once per `every` rounds; the means are updated in every round.
        since = cohort.round.astype(jnp.float32) + 1 - jnp.round(hyper.warmup)
        due = (since >= 0) & (jnp.mod(since, jnp.round(hyper.every)) == 0)
        label = lax.cond(due, lambda: kmeans(key, models, n_clusters, n_init=n_init).label, lambda: label)
        means, memory = members_of(
            combining, hyper, memory, means, models, jnp.ones(label.shape[0], jnp.float32), label
        )
        n_occupied = occupied(label, n_clusters).sum(dtype=jnp.int32)
        metrics = reported(trained, tree.row_size(means))
        metrics |= {"label": label[cohort.ids], "n_clusters": n_occupied}
        return State(ClusterFLServer(models, means, label, memory), trained.params), metrics

    def deploy(key: Key, hyper: ClusterFLHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients)

    def join(key: Key, hyper: ClusterFLHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        joined = held_with_least_loss(model, ModelTable(state.server.means, state.server.label), data)

        def alone(models: Stacked, cohort: Cohort) -> Trained:
            return trained_near_means(hyper, jnp.bool_(True), models, joined, cohort)

        return tree.own(train_new_clients(key, tree.stacked(joined), data, n_rounds, alone))

    exchange = Exchange(send, receive, lambda server: tree.first(server.means), catches_up=True)
    return Algorithm(init, exchange.round, deploy, predictor(model), join, model.loss, exchange=exchange)


def with_cluster_penalty(loss: Loss, alpha: Scalar, beta: Scalar) -> Loss:
    """``loss(w) + (alpha - beta) |w|^2 + beta |w - mean|^2``; its gradient adds ``2 alpha w - 2 beta mean``.

    The mean is the first of the client's own rows. Summed over all clients, each cluster's mean being the mean of its
    members' models, the penalty is ``alpha tr(W W') - beta tr(F' W W' F)``.
    """

    def penalised(params: Params, batch: Batch, key: Key, mean: Params, *own: Any) -> tuple[Array, Params]:
        value, updated = loss(params, batch, key, *own)
        norm, distance = tree.squared_norm(params), tree.squared_norm(tree.subtract(params, mean))
        return value + (alpha - beta) * norm + beta * distance, updated

    return penalised
