"""FeSEM: stochastic expectation maximisation over K centers, k-means on models interleaved with local training.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better personalization,
World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026.
Official code: https://github.com/mingxuts/multi-center-fed-learning.
Each client is held near the center that is nearest to its model; each center is the mean of its clients' models.

Differences from the paper: a round runs local update, E step, M step. Since the initial k-means ends where E and M
change nothing, this equals the paper's E, M, local update, and a tested model is never one round old. For absent
clients, W keeps what they sent last. The models of the initial k-means count as a second upload of the first round's
participants. A new client joins the center with the least training loss. Two differences of the official code are
options: ``cluster_on="last_kernel"``, and ``hyper.mu = 0``, without the distance. Others are not: it starts with one
model for all centers and random clusters; recomputes clusters every so many rounds (never, in its settings) by one step
of k-means on separate centroids; lets a client that changes cluster start from the old center, the mean of a few
participants; leaves out a cluster's only client; and reports the accuracy of the best center on all clients.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.client.measure import client_loss
from fljax.client.objectives import proximal_per_client, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.placement import whole
from fljax.rounds import Clusters, Combining, Rule, Sent, clustered, mean, method, trained_on, with_first_upload
from fljax.rounds.accounting import occupied
from fljax.rounds.clustered import After
from fljax.rounds.local import train_beforehand
from fljax.rounds.uplink.private import check_not_private
from fljax.server.aggregate import cluster_mean
from fljax.server.assign import lowest_loss
from fljax.server.distance import cross_squared_l2
from fljax.server.kmeans import kmeans
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, ModelTable, Stacked, Work

Proximal = Literal["objective", "uniform"]
Empty = Literal["keep", "reseed"]


@hyper
class FeSEMHyper(LocalHyper):
    mu: Scalar = number(
        0.1,
        "weight of the distance to the center, 2 lambda in the paper's objective; the official code has 0.1",
        least=0,
    )


class Uploads(NamedTuple):
    """What the server stores about the clients besides their clusters."""

    models: Stacked  # (clients, ...) W, the models last uploaded
    mean_size: Array  # () examples per client over the whole federation
    risk: Any  # `Risk` if the objective is reported, else ()


class Risk(NamedTuple):
    """The first term of the paper's objective (5), client by client."""

    alpha: Array  # (clients,) n_i / sum n
    loss: Array  # (clients,) L_i(W_i)


class Geometry(NamedTuple):
    """How models are compared, and how their units are ordered before they are averaged."""

    points: Callable[[Stacked], Array]  # models -> (clients, d): the points of the first k-means
    squared: Callable[[Stacked, Stacked], Array]  # models, centers -> (clients, clusters) squared distances
    aligned: Callable[[Stacked, Array, Stacked], Stacked]  # models, (clients,) labels, centers -> models


@method(FeSEMHyper, "Long et al., WWW Journal 2023", "https://arxiv.org/abs/2005.01026", kind="clustered")
def fesem(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    cluster_on: Literal["model", "last_kernel"] = "model",
    proximal_weight: Proximal = "objective",
    empty: Empty = "keep",
    objective: bool = False,
    combine: Combining = mean,
) -> Algorithm:
    """FeSEM: ``W_i <- argmin L_i(W) + mu_i/2 |W - Theta_{a_i}|^2``; then k-means' E and M step on the W_i.

    Args:
        n_clusters: K, the number of centers; the paper's best is 4.
        cluster_on: "model" compares whole models, "last_kernel" the output layer's kernels.
        proximal_weight: mu_i of client i's distance. "objective": mu * mean(n) / n_i, which is the paper's objective
            divided by alpha_i; "uniform": mu for all clients.
        empty: a cluster without clients keeps its center ("keep") or moves to a client ("reseed"): the first such
            cluster to the client farthest from its own center, the second to the second farthest, and so on.
        objective: adds the metric ``objective``, the paper's objective (5) after the local update; it costs one pass
            per round over the participants' data. See `objective_of`.
    """

    def compared(stacked: Stacked) -> Array:
        if cluster_on == "model":
            return tree.flatten(stacked)
        last_layer = stacked[model.layers[-1]]
        if not isinstance(last_layer, Mapping) or "kernel" not in last_layer:
            raise ValueError(f"cluster_on='last_kernel': the last layer {model.layers[-1]!r} has none; choose 'model'")
        return tree.flatten({"kernel": last_layer["kernel"]})

    def squared(models: Stacked, centers: Stacked) -> Array:
        return cross_squared_l2(compared(models), compared(centers))

    geometry = Geometry(compared, squared, lambda models, label, centers: models)
    rule = expectation_maximisation(model, work, n_clusters, geometry, reseed=empty == "reseed", objective=objective)
    return held_near_centers(model, work, rule, proximal_weight, combine)


def held_near_centers(model: Model, work: Work, rule: Rule, proximal_weight: Proximal, combine: Combining) -> Algorithm:
    """The rounds of FeSEM under a rule that keeps `Uploads`; the other arguments are those of `fesem`."""

    def rows(hyper: FeSEMHyper, clusters: Clusters, cohort: Cohort) -> tuple[ModelTable, Array]:
        size = jnp.maximum(cohort.data.size, 1).astype(jnp.float32)
        mu = hyper.mu * (clusters.kept.mean_size / size if proximal_weight == "objective" else jnp.ones_like(size))
        return ModelTable(clusters.centers, clusters.label[cohort.ids]), mu

    local = trained_on(proximal_per_client(training_loss(model)), work)
    sends = with_first_upload(lambda center, cohort: tree.size(center))
    return clustered(model, local, rule, combine=combine, weighting="uniform", rows=rows, sends=sends)


def expectation_maximisation(
    model: Model, work: Work, n_clusters: int, geometry: Geometry, *, reseed: bool, objective: bool
) -> Rule:
    """FeSEM's rule for any geometry of models: k-means on local models, then one E step per round."""
    check_not_private(work, "clients of FeSEM also train before the first round, and epsilon counts rounds only")
    points, squared, aligned = geometry

    def begin(key: Key, hyper: FeSEMHyper, data: ClientData) -> Clusters:
        key_model, key_train, key_kmeans = jax.random.split(key, 3)
        models = train_beforehand(key_train, hyper, model.init(key_model), data, model, work).params
        label = kmeans(key_kmeans, points(models), n_clusters, n_init=20).label
        first = tree.broadcast(tree.first(models), n_clusters)
        centers = cluster_mean(aligned(models, label, first), jnp.ones(data.size.shape, jnp.float32), label, first)
        size = data.size.astype(jnp.float32)
        risk = Risk(size / size.sum(), client_loss(model, models, data)) if objective else ()
        return Clusters(centers, label, Uploads(models, size.mean(), risk))

    def after(key: Key, hyper: FeSEMHyper, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        uploads = refreshed(clusters.kept, sent, cohort)
        metrics = {"objective": objective_of(hyper, clusters, uploads)} if objective else {}
        # E step: a_i = argmin_k |W_i - Theta_k|^2.
        distances = squared(uploads.models, clusters.centers)
        label = lowest_loss(distances)
        centers = clusters.centers
        if reseed:
            own_distance = jnp.take_along_axis(distances, label[:, None], axis=1)[:, 0]
            centers = reseeded(centers, uploads.models, label, own_distance)
        # M step: Theta_k = mean of W_i over a_i = k.
        members = Sent(aligned(uploads.models, label, centers), jnp.ones(label.shape[0], jnp.float32), label)
        new_clusters = clusters._replace(centers=centers, label=label, kept=uploads)
        return new_clusters, members, metrics | {"distance": distances.min(axis=1).sum()}

    def refreshed(uploads: Uploads, sent: Sent, cohort: Cohort) -> Uploads:
        has_sent = whole(sent.weight > 0)  # otherwise devices would exchange a mask as large as the models
        uploaded = tree.where(has_sent, sent.params, tree.take(uploads.models, cohort.ids))
        uploads = uploads._replace(models=tree.put(uploads.models, cohort.ids, uploaded))
        if not objective:
            return uploads
        # An absent client's model has not changed, so neither has its loss.
        loss = jnp.where(has_sent, client_loss(model, uploaded, cohort.data), uploads.risk.loss[cohort.ids])
        return uploads._replace(risk=uploads.risk._replace(loss=uploads.risk.loss.at[cohort.ids].set(loss)))

    return Rule(begin, after=after)


def reseeded(centers: Stacked, models: Stacked, label: Array, distance: Array) -> Stacked:
    """``centers`` whose empty clusters moved to clients: the j-th one to the client with the j-th largest distance.

    Args:
        centers: (clusters, ...).
        models: (clients, ...).
        label: (clients,) int cluster of each.
        distance: (clients,) to the client's own center.
    """
    empty = ~occupied(label, tree.n_rows(centers))
    place = jnp.clip(jnp.cumsum(empty) - 1, 0, label.shape[0] - 1)
    return tree.where(empty, tree.take(models, jnp.argsort(-distance)[place]), centers)


def objective_of(hyper: FeSEMHyper, clusters: Clusters, uploads: Uploads) -> Array:
    """The paper's objective (5), (): ``sum_i alpha_i L_i(W_i) + lambda/m sum_i |W_i - Theta_{a_i}|^2``.

    ``lambda = mu/2``; distances are those of whole models, as in the clients' loss; m is the number of all clients. An
    absent client's loss is that of the model that it uploaded last.
    """
    difference = tree.subtract(uploads.models, tree.take(clusters.centers, clusters.label))
    distance = tree.squared_norms(difference)
    return jnp.vdot(uploads.risk.alpha, uploads.risk.loss) + hyper.mu / 2 * distance.mean()
