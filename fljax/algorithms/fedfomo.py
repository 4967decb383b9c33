"""FedFomo: each client moves towards other clients' models that have a lower loss on its validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
https://arxiv.org/abs/2012.08565.
The server sends a client the models that have helped it most so far. The client weights each of them, and its own last
trained model, by how much it lowers the validation loss relative to the initial model of its last training, divided by
the distance to that initial model; it starts from the weighted mixture and trains.

Differences from the paper: a client receives models of the round's participants, from before the round; PFLlib also
sends those of absent clients. Validation data is the federation's validation split; if there is none, every fifth of
each client's training examples, which are then not trained on; PFLlib takes the last fifth of the shuffled examples.
``explore`` does not decay. All clients start from the same model; a new client starts from the mean of all models and
trains alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.measure import client_loss
from fljax.client.objectives import training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.placement import whole
from fljax.rounds import check_not_private, method, reported, train
from fljax.rounds.peers import of_peers
from fljax.server.aggregate import mix
from fljax.server.distance import cross_squared_l2
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work

HELD_OUT = 5
"""One of this many training examples is held out if there is no validation data."""


@hyper
class FedFomoHyper(LocalHyper):
    explore: Scalar = number(0.3, "probability that a client receives random models", least=0, most=1)


class FedFomoClient(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) w_i, as last trained
    begun: Stacked  # (clients, ...) b_i, the initial model of that training


@method(FedFomoHyper, "Zhang et al., ICLR 2021", "https://arxiv.org/abs/2012.08565", kind="personalised")
def fedfomo(model: Model, work: Work, *, n_received: Positive = 5) -> Algorithm:
    """FedFomo: ``b_i <- b_i + sum_j p_ij (w_j - b_i)``; ``w_i <- LocalTrain(b_i)``; ``P_ij <- P_ij + v_ij``.

    ``v_ij = (L_i(b_i) - L_i(w_j)) / |b_i - w_j|`` on validation data; p_ij are the positive v_ij divided by their sum.
    The j are i itself and the ``n_received`` other participants with the largest ``P_ij``; P starts as the identity.

    Args:
        n_received: M, number of other clients' models that a client receives per round.
    """
    check_not_private(work, "clients of FedFomo mix models by losses on their own examples, without noise")

    def round(key: Key, hyper: FedFomoHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        data, val = (cohort.data, cohort.val) if cohort.val is not None else held_out(cohort.data)
        affinity, (w, begun), ids = state.server, state.clients, cohort.ids
        candidates = most_helpful(key, hyper, affinity, ids, cohort.active, min(n_received + 1, cohort.n_clients))
        value = jnp.where(cohort.active[None], helpfulness(model, w, val, candidates, begun), 0.0)
        start = tree.where((value > 0).any(1), mix(mixing(value), w), begun)
        trained = train(hyper, start, cohort._replace(data=data), training_loss(model), work)
        affinity = affinity.at[ids[:, None], ids[None]].add(jnp.where(cohort.active[:, None], value, 0.0))
        n_parameters = tree.row_size(w)
        # A client has its own model already.
        is_other = cohort.active[candidates] & (candidates != jnp.arange(cohort.n_clients)[:, None])
        n_models = is_other.sum(1).astype(jnp.float32)
        n_values = n_models + 1  # v_ij of the models received, and of its own
        metrics = reported(trained, n_parameters + n_values, n_models * n_parameters)
        return State(affinity, FedFomoClient(trained.params, start)), metrics

    return of_peers(
        model,
        work,
        round,
        lambda n_clients: jnp.eye(n_clients, dtype=jnp.float32),
        keeps=lambda first: FedFomoClient(first, first),
        models=lambda clients: clients.model,
    )


def held_out(data: ClientData) -> tuple[ClientData, ClientData]:
    """The clients' examples without every fifth, and every fifth: spread, since examples may be sorted by class."""
    every_fifth, n_val = slice(HELD_OUT - 1, None, HELD_OUT), data.size // HELD_OUT
    n_places = data.index.shape[1]
    val = data.index[:, every_fifth] if n_places >= HELD_OUT else data.index[:, :1]  # of size 0
    rest = data._replace(index=jnp.delete(data.index, every_fifth, axis=1), size=data.size - n_val)
    return rest, data._replace(index=val, size=n_val)


def most_helpful(key: Key, hyper: FedFomoHyper, affinity: Array, ids: Array, active: Array, n_models: int) -> Array:
    """(cohort, n_models) cohort positions of each client's candidates: its own, and by largest affinity or at random.

    Draws depend on ids, and ties go to the lowest id, so the cohort's order does not matter.
    """
    is_random, score = jax.vmap(lambda i: drawn(jax.random.fold_in(key, i), hyper, affinity[i]))(ids)
    score = jnp.where(is_random[:, None], score, affinity[ids])[:, ids]
    score = jnp.where(jnp.eye(ids.shape[0], dtype=bool), jnp.inf, jnp.where(active[None], score, -jnp.inf))
    by_id = jnp.argsort(ids)
    return by_id[lax.top_k(score[:, by_id], n_models)[1]]


def drawn(key: Key, hyper: FedFomoHyper, affinity: Array) -> tuple[Array, Array]:
    """Whether a client receives random models, and a random number for each client."""
    key_row, key_place = jax.random.split(key)
    is_random = jax.random.uniform(key_row, (), jnp.float32) < hyper.explore
    return is_random, jax.random.uniform(key_place, affinity.shape, jnp.float32)


def helpfulness(model: Model, w: Stacked, val: ClientData, candidates: Array, begun: Stacked) -> Array:
    """(cohort, cohort) v_ij for client i's candidates j; 0 for other j, and where it is not finite.

    Args:
        model: the network.
        w: (cohort, ...) each client's last trained model.
        val: each client's validation examples.
        candidates: (cohort, n_models) cohort positions of each client's candidates.
        begun: (cohort, ...) b_i, with which the models are compared.
    """
    n = candidates.shape[0]
    initial_loss = client_loss(model, begun, val)
    candidate_losses = lax.map(lambda sent: client_loss(model, ModelTable(w, sent), val), whole(candidates.T)).T
    distance = jnp.take_along_axis(jnp.sqrt(cross_squared_l2(begun, w)), candidates, axis=1)
    value = jnp.where(distance > 0, (initial_loss[:, None] - candidate_losses) / jnp.maximum(distance, 1e-12), 0.0)
    value = jnp.where(jnp.isfinite(value), value, 0.0).astype(jnp.float32)
    return jnp.zeros((n, n), jnp.float32).at[jnp.arange(n)[:, None], candidates].set(value)


def mixing(value: Array) -> Array:
    """(cohort, cohort) p_ij; rows sum to 1. A client without a positive v_ij keeps its own model."""
    positive, identity = jnp.maximum(value, 0.0), jnp.eye(value.shape[0], dtype=value.dtype)
    total = positive.sum(1)[:, None]
    return jnp.where(total > 0, positive / jnp.maximum(total, 1e-30), identity)
