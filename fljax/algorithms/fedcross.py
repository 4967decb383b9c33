"""FedCross: the server has several models, each trained by another client in a round, and mixes each with one other.

Hu, Zhou, Yue, Ling, Huang, Li, Liu, Lian, Chen: FedCross: Towards Accurate Federated Learning via Multi-Model
Cross-Aggregation, ICDE 2024, https://arxiv.org/abs/2210.08285.
The server shuffles its middleware models among the participants; each participant trains the model that it receives.
Then each model takes a small share of one collaborating model: the next in a cyclic order, or the least or most similar
one. Clients are tested with the mean of all models.

Differences from the paper: there may be more or fewer participants than models. Several participants of one model are
averaged; a model without participants stays as it is, and is mixed with its collaborator like the others. The paper's
accelerations of the first rounds (propeller models, a growing alpha) are not here, and neither is PFLlib's first stage
of FedAvg. PFLlib's similarity is a sum of cosines over growing parts of the models, in place of one cosine; the number
of its last participant stands for that of the round, so that "in_order" always pairs the same models; and it tests
clients with the model that they trained last.
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.client.objectives import predictor, training_loss
from fljax.keys import uniforms
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, client_weight, method, reported, train
from fljax.rounds.cohort import keys_for
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.distance import pairwise_cosine
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
    Upload,
    Work,
)

Collaborator = Literal["in_order", "lowest", "highest"]

DISPATCH = 0xC055
"""Folded into a client's key for its place in the shuffled order."""


@hyper
class FedCrossHyper(LocalHyper):
    alpha: Scalar = number(
        0.99, "weight of a model itself when it is mixed with another one; 1: models are never mixed", least=0, most=1
    )


@method(FedCrossHyper, "Hu et al., ICDE 2024", "https://arxiv.org/abs/2210.08285", kind="one model", sends=True)
def fedcross(
    model: Model,
    work: Work,
    *,
    n_models: Positive = 10,
    collaborator: Collaborator = "lowest",
    weighting: Weighting = "size",
) -> Algorithm:
    """FedCross: ``v_k = LocalTrain(w_k)`` by a client drawn for k; ``w_k <- alpha v_k + (1 - alpha) v_{c(k)}``.

    All clients are tested with the mean of the w_k.

    Args:
        n_models: K, the number of middleware models; in the paper that of a round's participants. 1 is FedAvg.
        collaborator: c(k). "in_order": the model ``1 + t mod (K - 1)`` places after k in round t; "lowest", "highest":
            the other model with the least or largest cosine similarity to ``v_k``.
        weighting: of the participants that train the same model, "size" or "uniform".
    """

    def init(key: Key, hyper: FedCrossHyper, data: ClientData) -> State:
        return State(tree.broadcast(model.init(key), n_models), ())

    def send(key: Key, hyper: FedCrossHyper, state: State, cohort: Cohort) -> Upload:
        start = ModelTable(state.server, dispatched(cohort, n_models))
        trained = train(hyper, start, cohort, training_loss(model), work)
        return Upload(start, trained.params, client_weight(weighting, cohort, trained.ok), trained)

    def receive(key: Key, hyper: FedCrossHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        v = cluster_mean(upload.params, upload.weight, upload.start.row, empty=state.server)
        others = tree.take(v, collaborators(v, collaborator, cohort.round))
        share = jnp.where((upload.weight > 0).any(), 1 - hyper.alpha, 0.0)  # a round of nobody changes nothing
        return State(tree.mixture(share, others, v), ()), reported(upload.rest, tree.row_size(v))

    def deploy(key: Key, hyper: FedCrossHyper, state: State, data: ClientData) -> ModelTable:
        return tree.everyone(weighted_mean(state.server, jnp.ones(n_models, jnp.float32)), data.n_clients)

    exchange = Exchange(send, receive, tree.first, "each")
    return Algorithm(init, exchange.round, deploy, predictor(model), loss=model.loss, exchange=exchange)


def dispatched(cohort: Cohort, n_models: int) -> Array:
    """(cohort,) int32 the model of each participant: those that are active take turns, in an order drawn by id."""
    place = uniforms(keys_for(cohort, DISPATCH))
    order = jnp.argsort(jnp.where(cohort.active, place, jnp.inf))
    return jnp.argsort(order).astype(jnp.int32) % n_models


def collaborators(models: Stacked, collaborator: Collaborator, round: Array) -> Array:
    """(models,) int32 the model with which each model is mixed; a single model is its own."""
    n = tree.n_rows(models)
    if collaborator == "in_order":
        return (jnp.arange(n, dtype=jnp.int32) + 1 + round % max(n - 1, 1)) % n
    similarity = pairwise_cosine(models) * (1 if collaborator == "highest" else -1)
    return jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, similarity).argmax(1).astype(jnp.int32)
