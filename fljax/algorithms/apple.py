"""APPLE: each client mixes all clients' core models by weights that it learns, and trains its own core in the mixture.

Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022,
https://arxiv.org/abs/2110.08394. Official code: https://github.com/ljaiverson/pFL-APPLE.
The server keeps a core model of every client. A client downloads all of them, updates its own core and its directed
relationship vector p_i with the gradient of the mixture's loss, and uploads its core. A proximal term that holds p_i
near the clients' shares of the data fades over the rounds.

Differences from the paper: the number of downloaded cores is not limited. All cores start equal, as in PFLlib. The
authors' code initialises each core separately, uses momentum 0.9, has mu where mu / 2 is here, and tests a client with
the other cores as they were when it trained. A new client trains alone, from the mean of the cores by p0. PFLlib
multiplies the learning rate by the number of clients, starts p_i at equal weights, averages its gradient over the
parameters of each array, and uploads the mixture instead of the core.
"""

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss, predictor, training_loss
from fljax.client.parts import train_parts
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, method, reported
from fljax.rounds.joining import join_from
from fljax.server.aggregate import mix, weighted_mean
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


@hyper
class APPLEHyper(LocalHyper):
    p_lr: Scalar = number(
        0.001, "eta_2: learning rate of the mixture weights p_i, with lr_decay; 0 keeps them", least=0
    )
    mu: Scalar = number(0.1, "mu: weight of the proximal term that holds p_i near the shares of the data", least=0)
    decay_rounds: Scalar = number(20.0, "L: rounds over which the proximal term falls to 0, as half a cosine", above=0)


@method(APPLEHyper, "Luo and Wu, IJCAI 2022", "https://arxiv.org/abs/2110.08394", kind="personalised", trains=False)
def apple(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """APPLE: with ``m_i = sum_j p_ij c_j``: ``c_i <- c_i - eta p_ii g_i(m_i)``; ``p_ij <- p_ij - eta_2 (<c_j, g_i(m_i)>
    + lambda(t) mu (p_ij - p0_j))``.

    ``lambda(t) = (1 + cos(pi t / L)) / 2`` before round L, and 0 from round L on. The other clients' c_j are as the
    server sent them. Clients are tested with their mixtures.

    Args:
        work: local work. A step of a core is p_ii times as long as a step without a mixture.
        weighting: of p0, the initial p_i: "size" (n_j / n) or "uniform".
    """

    def init(key: Key, hyper: APPLEHyper, data: ClientData) -> State:
        n_clients = data.n_clients
        counts = data.size.astype(jnp.float32) if weighting == "size" else jnp.ones(n_clients, jnp.float32)
        p0 = counts / jnp.maximum(counts.sum(), 1.0)
        return State({"core": tree.broadcast(model.init(key), n_clients), "p0": p0}, tree.broadcast(p0, n_clients))

    def round(key: Key, hyper: APPLEHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        cores, p0 = state.server["core"], state.server["p0"]
        start = tree.own({"core": tree.take(cores, cohort.ids), "p": state.clients})
        weight = hyper.mu * proximal_decay(hyper, cohort.round)
        loss, p_lr = mixed(model, cores, p0, weight), hyper.decayed(hyper.p_lr, cohort.round)
        trained = train_parts(hyper, start, cohort, loss, work, "core", cohort.ids, p=optax.sgd(p_lr))
        cores = tree.put(cores, cohort.ids, trained.params["core"], cohort.active & trained.ok)
        n_parameters = tree.row_size(cores)
        metrics = reported(trained, n_parameters, (p0.shape[0] - 1) * n_parameters)
        return State({"core": cores, "p0": p0}, trained.params["p"]), metrics

    def deploy(key: Key, hyper: APPLEHyper, state: State, data: ClientData) -> ModelTable:
        cores, statistics = tree.split_statistics(state.server["core"])
        return tree.own(tree.join_statistics(mix(state.clients, cores), statistics))

    join = join_from(model, work, lambda state: weighted_mean(state.server["core"], state.server["p0"]))
    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def proximal_decay(hyper: APPLEHyper, round: Array) -> Array:
    """lambda(t): from 1 in round 0 to 0 in round L."""
    return (1 + jnp.cos(jnp.pi * jnp.minimum(round.astype(jnp.float32) / hyper.decay_rounds, 1.0))) / 2


def mixed(model: Model, cores: Stacked, p0: Array, weight: Array) -> Loss:
    """The loss of a client's parts, its core and its mixture weights; the client's own row is its id.

    Args:
        model: the network.
        cores: (clients, ...) of all clients, as the server sent them.
        p0: (clients,) anchor of the proximal term.
        weight: its weight: ``weight / 2 |p - p0|^2``.
    """
    other_cores = tree.trainable(cores)

    def loss(held: Params, statistics: Params, batch: Batch, key: Key, i: Array) -> tuple[Array, Params]:
        p = held["p"]
        mixed_params = tree.join_statistics(mixture(p, i, held["core"], other_cores), statistics)
        value, updated = training_loss(model)(mixed_params, batch, key)
        return value + weight / 2 * jnp.square(p - p0).sum(), updated

    return loss


def mixture(p: Array, i: Array, core: Params, cores: Stacked) -> Params:
    """``p_i core + sum_{j != i} p_j cores_j`` of client i, for p (clients,)."""
    is_own = jnp.arange(p.shape[0]) == i
    own_weight, other_weights = jnp.where(is_own, p, 0.0).sum(), jnp.where(is_own, 0.0, p)

    def of(core: Array, leaf: Array) -> Array:
        leaf = tree.at_least_float32(leaf)
        # As a matrix: with more axes, the gradient for p is five times slower on a CPU.
        from_others = tree.product(other_weights.astype(leaf.dtype), tree.as_matrix(leaf))
        return from_others.reshape(core.shape) + own_weight * core

    return tree.as_before(jax.tree.map(of, core, cores), core)
