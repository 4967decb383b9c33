"""Methods whose round is in two halves: with replaced halves, and inside a larger state."""

from collections.abc import Callable
from typing import Any

from jax import Array

from fljax.types import Algorithm, ClientData, Exchange, Key, ModelTable, State


def halves_of(algorithm: Algorithm) -> Exchange:
    """The two halves of ``algorithm``'s round, which all skeletons have."""
    exchange = algorithm.round_exchange
    assert exchange is not None
    return exchange


def with_halves(algorithm: Algorithm, **fields: Any) -> Algorithm:
    """``algorithm`` with ``fields`` as fields of its `Exchange`, from which the round is rebuilt."""
    halves = halves_of(algorithm)._replace(**fields, chain=None)
    return algorithm._replace(round=halves.round, exchange=halves)


def inside(
    algorithm: Algorithm,
    init: Callable[[Key, Any, ClientData], State],
    inner_state: Callable[[State], State],
    **fields: Any,
) -> Algorithm:
    """``algorithm`` with a larger state from ``init``; its deploy and join stay the same.

    Args:
        algorithm: the method.
        init: makes the larger state, whose server keeps the method's state as ``inner_state``.
        inner_state: returns the method's state from the larger one.
        **fields: fields of its `Exchange`, on the larger state.
    """
    part = halves_of(algorithm).part

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return algorithm.deploy(key, hyper, inner_state(state), data)

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        assert algorithm.join is not None
        return algorithm.join(key, hyper, inner_state(state), data, n_rounds)

    larger = algorithm._replace(init=init, deploy=deploy, join=algorithm.join and join)
    return with_halves(larger, part=lambda server: part(server.own), **fields)


def within_server(state: State) -> State:
    """The method's state from a larger one, which keeps nothing more about the clients."""
    return State(state.server.own, state.clients)
