"""The frame of methods whose clients hold a model each, all begun alike; a newcomer starts from their mean."""

from collections.abc import Callable
from typing import Any

from fljax import tree
from fljax.client.objectives import predictor
from fljax.rounds.joining import Round, join_mean
from fljax.rounds.sharing import own_rows
from fljax.types import Algorithm, ClientData, Key, Model, ModelTable, State, Work


def of_peers(model: Model, work: Work, round: Round, server: Callable[[int], Any] = lambda n_clients: ()) -> Algorithm:
    """A method whose ``State.clients`` are the clients' models (clients, ...), which they are tested with.

    Args:
        model: the network.
        work: of newcomers, who train alone.
        round: the method's.
        server: ``(n_clients) -> State.server`` before the first round.
    """

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        n_clients = data.size.shape[0]
        return State(server(n_clients), own_rows(model.init(key), n_clients))

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients)

    return Algorithm(init, round, deploy, predictor(model), join_mean(model, work), model.loss)
