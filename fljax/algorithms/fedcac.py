"""FedCAC: all clients share their non-critical parameters, and similar clients share their critical ones.

Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration, ICCV 2023, https://arxiv.org/abs/2309.11103.
Code of the authors: https://github.com/kxzxvbk/Fling.
A client's critical parameters are, in each kernel and bias, those with the largest sensitivity in a round. Clients with
similar sets of critical parameters average them; all other parameters are averaged over all clients, as in FedAvg.
Fewer and fewer clients count as similar, until after beta rounds each client keeps its critical parameters to itself.

Differences from the paper: a parameter with sensitivity 0 is never critical. Participation may be partial: an absent
client has the newest global mean, with the critical parameters of the round in which it last participated. In PFLlib's
code, the critical parameters after the first round are those of the first model.
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
from fljax.rounds.uplink.largest import largest
from fljax.server.aggregate import mix, weighted_mean
from fljax.server.gram import gram
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, Stacked, State, Work


@hyper
class FedCACHyper(LocalHyper):
    tau: Scalar = number(0.5, "share of critical parameters; 0 is FedAvg; the code has 0.4 and 0.5", least=0, most=1)
    beta: Scalar = number(100.0, "rounds after which no clients are similar; the code has 100 and 170", above=0)


class FedCACClient(NamedTuple):
    """The client's own part of its initial model."""

    critical: Stacked  # (clients, ...) bool M_i, by trainable parameter; all False before it participates
    own: Stacked  # (clients, ...) mean over the similar clients, used where M_i is true


@method(FedCACHyper, "Wu et al., ICCV 2023", "https://arxiv.org/abs/2309.11103", kind="personalised")
def fedcac(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """FedCAC: ``w_i = LocalTrain(start_i)``; ``start_i <- M_i * mean_{j in C_i} w_j + (1 - M_i) * mean_j w_j``.

    ``M_i`` marks the share tau with the largest ``|w * (w - start)|``. ``C_i`` contains i and every j with
    ``O_ij >= O_mean + t / beta (O_max - O_mean)`` in round t, from 1; ``O_ij = 1 - |M_i - M_j|_1 / (2 |M_i|_1)``. A
    client is tested with start_i.

    Args:
        weighting: of the mean over all clients, "size" or "uniform"; the mean over similar clients is uniform.
    """

    def init(key: Key, hyper: FedCACHyper, data: ClientData) -> State:
        theta = model.init(key)
        own = tree.broadcast(tree.trainable(theta), data.n_clients)
        return State(theta, FedCACClient(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), own), own))

    def starts(theta: Params, clients: FedCACClient) -> Stacked:
        """start_i of each client, (clients, ...)."""
        common, statistics = tree.split_statistics(tree.broadcast(theta, tree.n_rows(clients.own)))
        return tree.join_statistics(jax.tree.map(jnp.where, clients.critical, clients.own, common), statistics)

    def round(key: Key, hyper: FedCACHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        initial = starts(state.server, state.clients)
        trained = train(hyper, initial, cohort, training_loss(model), work)
        w, start = (tree.trainable(params) for params in (trained.params, initial))
        critical = jax.tree.map(lambda new, old: most_sensitive(new, old, hyper.tau), w, start)
        counts = cohort.active & trained.ok
        own = mix(mixing_weights(overlap(critical), counts, (cohort.round + 1).astype(jnp.float32) / hyper.beta), w)
        theta = weighted_mean(trained.params, client_weight(weighting, cohort, trained.ok), state.server)
        # A diverged client keeps its old values.
        clients = tree.where(trained.ok, FedCACClient(critical, own), state.clients)
        n = tree.size(theta)
        # One bit per parameter in addition: whether it is critical.
        return State(theta, clients), reported(trained, n + tree.row_size(w) / 32, n)

    def deploy(key: Key, hyper: FedCACHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(starts(state.server, state.clients))

    join = join_from(model, work, lambda state: state.server)
    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def most_sensitive(new: Array, old: Array, tau: Array | float) -> Array:
    """(clients, ...) bool: in a leaf, the share tau of each client's parameters w with the largest ``|w * change|``."""
    sensitivity = tree.as_matrix(new * (new - old)).astype(jnp.float32)
    k = jnp.int32(tau * sensitivity.shape[1])
    is_critical = largest(sensitivity, jnp.maximum(k, 1))[0] & (sensitivity != 0) & (k > 0)
    return is_critical.reshape(new.shape)


def overlap(critical: Stacked) -> Array:
    """(clients, clients) ``O_ij = 1 - |M_i - M_j|_1 / (2 |M_i|_1)`` for row i and column j.

    If M_i and M_j have equally many entries, it is the share of i's critical parameters that are critical for j too.
    """
    n_common = gram(critical)
    count = jnp.diagonal(n_common)
    n_different = count[:, None] + count[None] - 2 * n_common
    return 1 - n_different / jnp.maximum(2 * count[:, None], 1)


def mixing_weights(overlaps: Array, counts: Array, progress: Array) -> Array:
    """(clients, clients) weights of each row on itself and the similar clients; each row sums to 1.

    Args:
        overlaps: (clients, clients) O.
        counts: (clients,) bool: clients that count.
        progress: t / beta. At 0, clients whose overlap is at least the mean overlap are similar; at 1, only those with
            the largest overlap of all; above 1, none.
    """
    is_self = jnp.eye(counts.shape[0], dtype=bool)
    pairs = counts[:, None] & counts[None] & ~is_self
    mean = jnp.where(pairs, overlaps, 0).sum() / jnp.maximum(pairs.sum(), 1).astype(jnp.float32)
    maximum = jnp.where(pairs, overlaps, -jnp.inf).max()
    weight = (is_self | (pairs & (overlaps >= mean + progress * (maximum - mean)))).astype(jnp.float32)
    return weight / weight.sum(1, keepdims=True)
