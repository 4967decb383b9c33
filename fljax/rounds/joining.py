"""New clients: which of the server's models they choose, and how they train while the server stays fixed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.measure import client_loss
from fljax.keys import descend
from fljax.models.own_network import own_copies
from fljax.rounds.accounting import occupied
from fljax.rounds.cohort import everyone
from fljax.rounds.local import local_of
from fljax.server.assign import lowest_loss
from fljax.types import ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, Stacked, State, Trained, Work

Round = Callable[[Key, Any, State, Cohort], tuple[State, Metrics]]
"""The `Algorithm.round` of a method, or the clients' part of it."""


def held_with_least_loss(model: Model, models: ModelTable, data: ClientData) -> ModelTable:
    """For each client, the model with the least mean loss on its training data, among models that have a client.

    Args:
        model: the network.
        models: (rows, ...) the server's models, and the row of each of its own clients; a row without a client is not
            available, unless no row has a client.
        data: training rows of the clients that choose.

    Returns:
        The same models, with the row of each client of ``data``.
    """
    n_rows = tree.n_rows(models.params)
    is_held = occupied(models.row, n_rows)
    is_held |= ~is_held.any()

    def loss(row: Array) -> Array:
        return client_loss(model, tree.everyone(tree.row(models.params, row), data.n_clients), data)

    def loss_if_held(row: Array) -> Array:
        return lax.cond(is_held[row], loss, lambda _: jnp.full(data.n_clients, jnp.inf, jnp.float32), row)

    return ModelTable(models.params, lowest_loss(lax.map(loss_if_held, jnp.arange(n_rows)).T))


@checked_kinds
def join_cluster(
    model: Model, deploy: Callable[[Key, Any, State, ClientData], ModelTable]
) -> Callable[..., ModelTable]:
    """The `Algorithm.join` of a method whose server knows the cluster of each of its clients.

    A new client holds the cluster model with the least training loss, unchanged; ``deploy`` returns the models and
    which of them the server's own clients hold.
    """

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        return held_with_least_loss(model, deploy(key, hyper, state, data), data)

    return join


@checked_kinds
def new_client_rounds(round: Round, key: Key, hyper: Any, begun: State, data: ClientData, n_rounds: Array) -> State:
    """New clients' state after rounds in which all of them participate and the server stays fixed.

    Args:
        round: a round of the method; its new server state is dropped, so it is not computed.
        key: client i's keys derive from it, the round and i.
        hyper: the method's hyperparameters.
        begun: the server's state, and one row per client of ``data``.
        data: the clients' training rows.
        n_rounds: () int32, 0 or more; may be traced. Rounds count from 0 for decaying learning rates.
    """

    def one(number: Array, clients: Any) -> Any:
        key_server, key_clients = descend(key, number, np.arange(2))
        cohort = everyone(key_clients, number, data)
        return round(key_server, hyper, State(begun.server, clients), cohort)[0].clients

    return State(begun.server, lax.fori_loop(0, n_rounds, one, begun.clients))


def train_new_clients(
    key: Key, initial: Stacked, data: ClientData, n_rounds: Array, train: Callable[[Stacked, Cohort], Trained]
) -> Stacked:
    """New clients' models after rounds of ``train(models, cohort)`` from ``initial``; else as `new_client_rounds`."""

    def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return State((), train(state.clients, cohort).params), {}

    return new_client_rounds(round, key, (), State((), initial), data, n_rounds).clients


def join_from(model: Model, work: Work, begin: Callable[[State], Params]) -> Callable[..., ModelTable]:
    """The `Algorithm.join` of a method whose new clients start from a model ``begin(state)`` and train alone.

    They train on ``model.loss``, for ``n_rounds`` rounds.
    """

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        initial = own_copies(model, begin(state), data.n_clients)
        return tree.own(train_new_clients(key, initial, data, n_rounds, partial(local_of(work, model), hyper)))

    return join
