"""A method inside another's state: chains on the way and past versions keep what they remember beside it."""

from collections.abc import Callable
from typing import Any

from jax import Array

from fljax.types import Algorithm, ClientData, Exchange, Key, ModelTable, State


def inside(
    algorithm: Algorithm,
    init: Callable[[Key, Any, ClientData], State],
    exchange: Exchange,
    own: Callable[[State], State],
) -> Algorithm:
    """``algorithm`` that begins by ``init`` and has rounds by ``exchange``, deployed and joined as it is.

    Args:
        algorithm: the method.
        init: makes the larger state.
        exchange: halves of a round on the larger state.
        own: the method's state, of the larger one.
    """

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return algorithm.deploy(key, hyper, own(state), data)

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        assert algorithm.join is not None
        return algorithm.join(key, hyper, own(state), data, n_rounds)

    halves = exchange._replace(chain=None)
    return algorithm._replace(
        init=init, round=halves.round, deploy=deploy, join=algorithm.join and join, exchange=halves
    )


def within_server(state: State) -> State:
    """The method's state where the larger one's server keeps the method's as ``own``, and clients are the method's."""
    return State(state.server.own, state.clients)
