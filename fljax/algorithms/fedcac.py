"""FedCAC: clients share all parameters but those that matter to them, which they share with clients like them.

Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration, ICCV 2023, https://arxiv.org/abs/2309.11103.
Code of the authors: https://github.com/kxzxvbk/Fling.
A client's critical parameters are, in each kernel and bias, those whose change in a round counts most. Clients whose
critical parameters lie in the same places average them; the others are averaged over all, as in FedAvg. Fewer and fewer
clients count as alike, until after beta rounds each keeps its critical parameters to itself.

Differences from the paper: a parameter of no sensitivity is never critical. Not everybody has to take part: who was
absent has the newest mean of all beside the critical parameters of the round that it last took part in. In PFLlib's
code the critical parameters after the first round are those of the first model.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import predictor, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, client_weight, method, reported, train
from fljax.rounds.joining import join_from
from fljax.rounds.sharing import own_rows
from fljax.rounds.uplink.largest import largest
from fljax.server.aggregate import mix, weighted_mean
from fljax.server.gram import gram
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, Stacked, State, Work


@hyper
class FedCACHyper(LocalHyper):
    tau: Scalar = number(0.5, "share of critical parameters; 0 is FedAvg; the code has 0.4 and 0.5", least=0, most=1)
    beta: Scalar = number(100.0, "rounds after which nobody is alike; the code has 100 and 170", above=0)


class FedCACClient(NamedTuple):
    """What is a client's own of the model that it begins with."""

    critical: Stacked  # (clients, ...) bool M_i, by trainable parameter; nothing before it has taken part
    own: Stacked  # (clients, ...) mean over the clients alike, which counts where M_i is


@method(FedCACHyper, "Wu et al., ICCV 2023", "https://arxiv.org/abs/2309.11103", kind="personalised")
def fedcac(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """FedCAC: ``w_i = LocalTrain(start_i)``; ``start_i <- M_i * mean_{j in C_i} w_j + (1 - M_i) * mean_j w_j``.

    ``M_i`` marks the share tau of largest ``|w * (w - start)|``; ``C_i`` are i and who has ``O_ij >= O_mean + t / beta
    (O_max - O_mean)`` in round t, from 1; ``O_ij = 1 - |M_i - M_j|_1 / (2 |M_i|_1)``. A client is tested with start_i.

    Args:
        weighting: of the mean over all clients, "size" or "uniform"; that of clients alike is uniform.
    """

    def init(key: Key, hyper: FedCACHyper, data: ClientData) -> State:
        theta = model.init(key)
        own = own_rows(tree.trainable(theta), data.n_clients)
        return State(theta, FedCACClient(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), own), own))

    def starts(theta: Params, clients: FedCACClient) -> Stacked:
        """start_i of each client, (clients, ...)."""
        common, statistics = tree.split_statistics(tree.broadcast(theta, tree.n_rows(clients.own)))
        return tree.join_statistics(jax.tree.map(jnp.where, clients.critical, clients.own, common), statistics)

    def round(key: Key, hyper: FedCACHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        begun = starts(state.server, state.clients)
        trained = train(hyper, begun, cohort, training_loss(model), work)
        w, start = (tree.trainable(params) for params in (trained.params, begun))
        critical = jax.tree.map(lambda new, old: most_sensitive(new, old, hyper.tau), w, start)
        here = cohort.active & trained.ok
        own = mix(alike(overlap(critical), here, (cohort.round + 1).astype(jnp.float32) / hyper.beta), w)
        theta = weighted_mean(trained.params, client_weight(weighting, cohort, trained.ok), state.server)
        # Who diverged keeps what it had.
        clients = tree.where(trained.ok, FedCACClient(critical, own), state.clients)
        n = tree.size(theta)
        # A bit for each parameter beside it: whether it is critical.
        return State(theta, clients), reported(trained, n + tree.size(tree.first(w)) / 32, n)

    def deploy(key: Key, hyper: FedCACHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(starts(state.server, state.clients))

    join = join_from(model, work, lambda state: state.server)
    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def most_sensitive(new: Array, old: Array, tau: Array | float) -> Array:
    """(clients, ...) bool: the share tau of each client's parameters w in a leaf whose ``|w * change|`` is largest."""
    sensitivity = tree.as_matrix(new * (new - old)).astype(jnp.float32)
    k = jnp.int32(tau * sensitivity.shape[1])
    found = largest(sensitivity, jnp.maximum(k, 1))[0] & (sensitivity != 0) & (k > 0)
    return found.reshape(new.shape)


def overlap(critical: Stacked) -> Array:
    """(clients, clients) O: which share of row i's critical parameters is critical for column j too, half their
    differences in number taken off."""
    both = gram(critical)
    count = jnp.diagonal(both)
    differ = count[:, None] + count[None] - 2 * both
    return 1 - differ / jnp.maximum(2 * count[:, None], 1)


def alike(overlaps: Array, here: Array, progress: Array) -> Array:
    """(clients, clients) weights of sum 1 of each row on itself and the clients that are alike.

    Args:
        overlaps: (clients, clients) O.
        here: (clients,) bool, who counts.
        progress: t / beta; at 0 who overlaps as much as two clients do on average is alike, from 1 on no more than the
            most alike of all.
    """
    oneself = jnp.eye(here.shape[0], dtype=bool)
    others = here[:, None] & here[None] & ~oneself
    mean = jnp.where(others, overlaps, 0).sum() / jnp.maximum(others.sum(), 1).astype(jnp.float32)
    most = jnp.where(others, overlaps, -jnp.inf).max()
    weight = (oneself | (others & (overlaps >= mean + progress * (most - mean)))).astype(jnp.float32)
    return weight / weight.sum(1, keepdims=True)
