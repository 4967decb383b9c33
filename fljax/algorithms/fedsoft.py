"""FedSoft: each client belongs in part to every cluster, and is held near all centers at once.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022,
https://arxiv.org/abs/2112.06053. Official code: https://github.com/ycruan/FedSoft.
A client's importance to a cluster is the share of its examples that this center fits best. The client trains its own
model with a proximal term to the centers, weighted by importance; a center is the mean of its clients' models.

Differences from the paper: importances are renormalised after their lower bound of 1e-4. A cluster draws its clients
from the round's participants; by default it takes all of them, weighted by importance and size. Initial centers are
redrawn as in IFCA. A client that first participates between two measurements belongs to all clusters equally until the
next one. A new client starts from the mean of the centers by its importances. Clients of the federation start from the
first center, and optimisers restart in each round; in the official code, clients start from one more random model, and
Adam's moments are kept.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.example_loss import example_loss
from fljax.client.objectives import predictor, proximal, training_loss
from fljax.data.federation import present
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import check_not_private, client_weight, method, traffic, train
from fljax.rounds.accounting import memberships
from fljax.rounds.first_models import DrawHyper, first_models, with_first_models
from fljax.rounds.joining import train_new_clients
from fljax.server.aggregate import mix
from fljax.server.assign import example_shares, soft_weights
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Stacked,
    State,
    Trained,
    Upload,
    Work,
)


@hyper
class FedSoftHyper(DrawHyper):
    """Hyperparameters of FedSoft; the penalty is ``lam/2 sum_s u_is |w - c_s|^2``, its code has 0.01 on CIFAR-10."""

    lam: Scalar = number(0.01, "lambda: weight of the distance to the centers", least=0)


class FedSoftClients(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) its own w_i
    share: Array  # (clients, clusters) its importances u_is


@method(FedSoftHyper, "Ruan, Joe-Wong, AAAI 2022", "https://arxiv.org/abs/2112.06053", kind="personalised", sends=True)
def fedsoft(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    measure_every: Positive = 2,
    n_selected: Positive | None = None,
    start: Literal["own", "center"] = "own",
    alone_epochs: Positive | None = None,
) -> Algorithm:
    """FedSoft: ``w_i = argmin F_i(w) + lambda/2 sum_s u_is |w - c_s|^2``; ``c_s <- mean of its clients' w_i``.

    Args:
        work: local work; the official code has Adam.
        measure_every: tau, rounds between two measurements of the importances.
        n_selected: m, number of clients that each cluster draws by importance and size and averages equally; only these
            train. None: all participants, weighted by importance and size. A participant that is not drawn reports the
            mean loss of the others.
        start: clients train from their "own" last model, or from the "center": the mean of the centers by importance.
        alone_epochs: epochs that each client trains one model alone; the initial centers are K of these, the next
            always that of the client with the largest loss under those before. None: random ones.
    """
    check_not_private(work, "clients of FedSoft send the shares of their examples by center, which get no noise")
    begin = first_models(model, work, n_clusters, alone_epochs)

    def init(key: Key, hyper: FedSoftHyper, data: ClientData) -> State:
        centers, n_clients = begin(key, hyper, data), data.n_clients
        models = tree.broadcast(tree.first(centers), n_clients)
        return State(centers, FedSoftClients(models, jnp.full((n_clients, n_clusters), 1 / n_clusters, jnp.float32)))

    def send(key: Key, hyper: FedSoftHyper, state: State, cohort: Cohort) -> Upload:
        centers, (models, share) = state
        # Every tau rounds: u_is = share of client i's examples with the least loss under c_s.
        due = cohort.round % measure_every == 0
        share = lax.cond(due, lambda: measured(centers, cohort.data), lambda: share)
        is_member = drawn_by_centers(key, share, cohort, n_selected)
        takes_part = is_member.any(axis=0)
        trained = trained_near_centers(hyper, centers, models, share, cohort, takes_part)
        counts = client_weight("size" if n_selected is None else "uniform", cohort, trained.ok & takes_part)
        # Updates are relative to a model that the server knows: with "own", it does not know the initial model.
        return Upload(tree.own(mix(share, centers)), trained.params, counts, (trained, share, is_member, due))

    def measured(centers: Stacked, data: ClientData) -> Array:
        return example_shares(example_loss(model, centers, data), present(data))

    def trained_near_centers(
        hyper: FedSoftHyper, centers: Stacked, models: Stacked, share: Array, cohort: Cohort, takes_part: Array
    ) -> Trained:
        # sum_s u_is |w - c_s|^2 = |w - sum_s u_is c_s|^2 + constant, as the importances sum to 1.
        anchor, data = mix(share, centers), cohort.data
        training_cohort = cohort._replace(data=data._replace(size=jnp.where(takes_part, data.size, 0)))
        loss = proximal(training_loss(model), hyper.lam)
        return train(hyper, models if start == "own" else anchor, training_cohort, loss, work, anchor)

    def receive(key: Key, hyper: FedSoftHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (centers, (own_models, _)), (trained, share, is_member, due) = state, upload.rest
        takes_part = is_member.any(axis=0)
        models = tree.where(takes_part, upload.params, own_models)
        own_models = tree.where(takes_part, trained.params, own_models)
        # c_s = mean of its clients' models: of all, by importance and size, or of the drawn ones.
        importance = share if n_selected is None else is_member.T.astype(share.dtype)
        weight = soft_weights(importance, upload.weight)
        centers = tree.where(weight.sum(axis=1) > 0, mix(weight, models), centers)
        metrics = {"loss": reported_losses(trained, takes_part, cohort), "ok": trained.ok, **memberships(share, cohort)}
        return State(centers, FedSoftClients(own_models, share)), metrics | sent(centers, due, takes_part, cohort)

    def sent(centers: Stacked, due: Array, takes_part: Array, cohort: Cohort) -> Metrics:
        """The model up and all centers down; importances up when measured, for which all centers are needed too."""
        n_parameters = tree.row_size(centers)
        trains = jnp.float32(1) if n_selected is None else takes_part.astype(jnp.float32)
        measures = due.astype(jnp.float32)
        usual = traffic(
            trains * n_parameters + measures * n_clusters, jnp.maximum(trains, measures) * n_clusters * n_parameters
        )
        return with_first_models(usual, cohort, n_parameters, n_clusters, alone_epochs is not None)

    def deploy(key: Key, hyper: FedSoftHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients.model)

    def join(key: Key, hyper: FedSoftHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        centers, share = state.server, measured(state.server, data)

        def alone(models: Stacked, cohort: Cohort) -> Trained:
            # The centers and the importances stay fixed.
            return trained_near_centers(hyper, centers, models, share, cohort, jnp.ones(cohort.ids.shape, bool))

        return tree.own(train_new_clients(key, mix(share, centers), data, n_rounds, alone))

    exchange = Exchange(send, receive, tree.first)
    return Algorithm(init, exchange.round, deploy, predictor(model), join, model.loss, exchange=exchange)


def drawn_by_centers(key: Key, share: Array, cohort: Cohort, n_selected: int | None) -> Array:
    """(clusters, cohort) bool: who trains for which center, drawn by importance and size; all if n_selected is None."""
    chance = soft_weights(share, jnp.where(cohort.active, cohort.data.size, 0))
    if n_selected is None:
        return jnp.ones(chance.shape, bool)
    # The m largest of log-probability plus Gumbel noise are m draws without replacement.
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(cohort.ids)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, share.shape[1:], jnp.float32))(keys).T
    score = jnp.where(chance > 0, jnp.log(jnp.where(chance > 0, chance, 1.0)) + noise, -jnp.inf)
    place = jnp.argsort(jnp.argsort(-score, axis=1), axis=1)
    return (place < n_selected) & (chance > 0)


def reported_losses(trained: Trained, takes_part: Array, cohort: Cohort) -> Array:
    """(cohort,) losses; a client that did not train gets the mean of the others, which keeps the round's mean."""
    is_drawn = takes_part & cohort.active
    counts = is_drawn & trained.ok
    mean = jnp.where(counts, trained.loss, 0.0).sum() / jnp.maximum(counts.sum(dtype=jnp.float32), 1.0)
    filler = jnp.where(counts.any() | ~is_drawn.any(), mean, jnp.nan)  # NaN if the training of all of them diverged
    return jnp.where(takes_part, trained.loss, filler)
