"""FedSoft: clients belong to every cluster in part, and are held near all the centers at once.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022,
https://arxiv.org/abs/2112.06053. Official code: https://github.com/ycruan/FedSoft.
A client's importance to a cluster is the share of its examples that this center fits best; it trains its own model,
pulled to the centers by importance; a center is the mean of its clients' models.

Differences from the paper: importances are renormalised after their floor of 1e-4. A cluster draws its clients from the
round's participants; by default it takes them all, weighted by importance and size. Initial centers are redrawn as in
IFCA. A client that first takes part between two measurements belongs to all clusters equally until the next. One that
never took part starts from the centers' mean by its importances.
"""

from functools import cache
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import traffic
from fljax.algorithms.ifca import balanced_draw
from fljax.client import local_optimizer, predictor, proximal, train_clients, training_loss
from fljax.client.example_loss import example_loss
from fljax.data.federation import present
from fljax.rounds.joining import rounds_alone
from fljax.server.aggregate import mix
from fljax.server.assign import example_shares, soft_weights
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work


class FedSoftHyper(NamedTuple):
    """Numbers of FedSoft.

    lr: clients' learning rate, > 0.
    lam: lambda, weight of the distance to the centers, >= 0. The penalty is lambda/2 sum_s u_is |w - c_s|^2; the
        official code has 0.01 on CIFAR-10.
    min_share: least share of the clients that each initial center must win, in [0, 1/K]; 0 takes the first draw.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    lam: Array | float = 0.01
    min_share: Array | float = 0.1
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class FedSoftClients(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) its own w_i
    share: Array  # (clients, clusters) its importances u_is


@cache
def fedsoft(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    measure_every: int = 2,
    n_selected: int | None = None,
    start: Literal["own", "center"] = "own",
) -> Algorithm:
    """FedSoft: ``w_i = argmin F_i(w) + lambda/2 sum_s u_is |w - c_s|^2``; ``c_s <- mean of its clients' w_i``.

    Args:
        model: the network.
        work: local effort; the official code has Adam.
        n_clusters: K, at least 1.
        measure_every: tau, rounds between two measurements of the importances.
        n_selected: m, clients that each cluster draws by importance and size, and averages equally; only these train.
            None: all participants, weighted by importance and size.
        start: clients train from their "own" last model, or from the "center" of their centers.
    """
    _check(n_clusters, measure_every, n_selected, start)

    def init(key: Key, hyper: FedSoftHyper, data: ClientData) -> State:
        centers, n_clients = balanced_draw(key, model, n_clusters, hyper.min_share, data), data.size.shape[0]
        own = tree.broadcast(tree.take(centers, jnp.int32(0)), n_clients)
        return State(centers, FedSoftClients(own, jnp.full((n_clients, n_clusters), 1 / n_clusters)))

    def round(key: Key, hyper: FedSoftHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        centers, (own, share) = state
        # Every tau rounds: u_is = share of client i's examples with the least loss under c_s.
        due = cohort.round % measure_every == 0
        share = lax.cond(due, lambda: measured(centers, cohort.data), lambda: share)
        member = selected(key, share, cohort)
        takes_part = member.any(axis=0)
        # sum_s u_is |w - c_s|^2 = |w - sum_s u_is c_s|^2 + constant, as the importances sum to 1.
        anchor = mix(share, centers)
        loss, optimizer = proximal(training_loss(model), hyper.lam), local_optimizer(hyper, work, cohort.round)
        data = cohort.data._replace(size=jnp.where(takes_part, cohort.data.size, 0))
        begun = own if start == "own" else anchor
        trained = train_clients(cohort.key, begun, data, loss, optimizer, work, anchor)
        own = tree.where(takes_part, trained.params, own)
        # c_s = mean of its clients' models.
        weight = center_weight(member & (cohort.active & trained.ok)[None], share, cohort.data.size)
        centers = tree.where(weight.sum(axis=1) > 0, mix(weight, own), centers)
        metrics = {"loss": trained.loss, "ok": trained.ok, **memberships(share)}
        return State(centers, FedSoftClients(own, share)), metrics | sent(centers, due, takes_part)

    def measured(centers: Stacked, data: ClientData) -> Array:
        return example_shares(example_loss(model, centers, data), present(data))

    def selected(key: Key, share: Array, cohort: Cohort) -> Array:
        """(clusters, cohort) bool: who trains for which center."""
        chance = soft_weights(share, jnp.where(cohort.active, cohort.data.size, 0))
        if n_selected is None:
            return jnp.ones(chance.shape, bool)
        # The m largest of log-probability plus Gumbel noise are m draws without replacement.
        noise = jax.vmap(lambda i: jax.random.gumbel(jax.random.fold_in(key, i), (n_clusters,)))(cohort.ids)
        score = jnp.where(chance > 0, jnp.log(jnp.where(chance > 0, chance, 1.0)) + noise.T, -jnp.inf)
        place = jnp.argsort(jnp.argsort(-score, axis=1), axis=1)
        return (place < n_selected) & (chance > 0)

    def center_weight(member: Array, share: Array, size: Array) -> Array:
        if n_selected is not None:
            count = member.astype(jnp.float32)
            return count / jnp.maximum(count.sum(axis=1, keepdims=True), 1.0)
        return soft_weights(share, jnp.where(member.any(axis=0), size, 0))

    def sent(centers: Stacked, due: Array, takes_part: Array) -> Metrics:
        """The model up and all centers down; importances up when measured, for which all centers are needed too."""
        n_parameters = tree.size(tree.take(centers, jnp.int32(0)))
        trains = jnp.float32(1) if n_selected is None else takes_part.astype(jnp.float32)
        measures = due.astype(jnp.float32)
        return traffic(
            trains * n_parameters + measures * n_clusters, jnp.maximum(trains, measures) * n_clusters * n_parameters
        )

    def deploy(key: Key, hyper: FedSoftHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients.model)

    def join(key: Key, hyper: FedSoftHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        share = measured(state.server, data)
        begun = State(state.server, FedSoftClients(mix(share, state.server), share))
        everyone = fedsoft(model, work, n_clusters, measure_every=measure_every, start=start)  # nobody is drawn
        return deploy(key, hyper, rounds_alone(everyone.round, key, hyper, begun, data, n_rounds), data)

    return Algorithm(init, round, deploy, predictor(model), join)


def memberships(share: Array) -> Metrics:
    """Each participant's foremost cluster, and how many clusters are someone's: of shares (cohort, clusters)."""
    label = jnp.argmax(share, axis=1).astype(jnp.int32)
    return {"label": label, "n_clusters": (jnp.bincount(label, length=share.shape[1]) > 0).sum()}


def _check(n_clusters: int, measure_every: int, n_selected: int | None, start: str) -> None:
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")
    if measure_every < 1:
        raise ValueError(f"measure_every={measure_every} is not positive; choose measure_every >= 1")
    if n_selected is not None and n_selected < 1:
        raise ValueError(f"n_selected={n_selected} is not positive; choose n_selected >= 1, or None for everyone")
    if start not in ("own", "center"):
        raise ValueError(f"start={start!r} is unknown; choose 'own' or 'center'")
