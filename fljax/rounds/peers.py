"""The frame of methods with one model per client and equal initial models; a new client starts from their mean."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fljax import tree
from fljax.client.objectives import predictor
from fljax.rounds.joining import Round, join_from
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Key, Model, ModelTable, Params, Stacked, State, Work


def of_peers(
    model: Model,
    work: Work,
    round: Round,
    server: Callable[[int], Any] = lambda n_clients: (),
    *,
    keeps: Callable[[Stacked], Any] = lambda first: first,
    models: Callable[[Any], Stacked] = lambda clients: clients,
) -> Algorithm:
    """A method whose ``State.clients`` are the clients' models (clients, ...), which are also the tested models.

    Args:
        model: the network.
        work: local work of new clients, which train alone.
        round: the method's round.
        server: ``(n_clients) -> State.server`` before the first round.
        keeps: ``(initial models) -> State.clients``, for clients that keep more than models.
        models: ``(State.clients) -> models``, the inverse.
    """

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        return State(server(data.n_clients), keeps(tree.broadcast(model.init(key), data.n_clients)))

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return tree.own(models(state.clients))

    def mean_of_all(state: State) -> Params:
        held_models = models(state.clients)
        return weighted_mean(held_models, jnp.ones(tree.n_rows(held_models), jnp.float32))

    return Algorithm(init, round, deploy, predictor(model), join_from(model, work, mean_of_all), model.loss)
