"""Methods whose round is in halves: with others in their place, and inside another's state, which keeps more."""

from collections.abc import Callable
from typing import Any

from jax import Array

from fljax.types import Algorithm, ClientData, Exchange, Key, ModelTable, State


def halves_of(algorithm: Algorithm) -> Exchange:
    """The two halves that the round of ``algorithm`` is made of, as that of the skeletons is."""
    exchange = algorithm.round_exchange
    assert exchange is not None
    return exchange


def with_halves(algorithm: Algorithm, **others: Any) -> Algorithm:
    """``algorithm`` with ``others`` in place of fields of its `Exchange`; what is joined to that is outside."""
    halves = halves_of(algorithm)._replace(**others, chain=None)
    return algorithm._replace(round=halves.round, exchange=halves)


def inside(
    algorithm: Algorithm,
    init: Callable[[Key, Any, ClientData], State],
    own: Callable[[State], State],
    **others: Any,
) -> Algorithm:
    """``algorithm`` that begins by ``init``, deployed and joined as it is.

    Args:
        algorithm: the method.
        init: makes the larger state, whose server keeps the method's as ``own``.
        own: the method's state, of the larger one.
        **others: of its `Exchange`, on the larger state.
    """
    part = halves_of(algorithm).part

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return algorithm.deploy(key, hyper, own(state), data)

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        assert algorithm.join is not None
        return algorithm.join(key, hyper, own(state), data, n_rounds)

    larger = algorithm._replace(init=init, deploy=deploy, join=algorithm.join and join)
    return with_halves(larger, part=lambda server: part(server.own), **others)


def within_server(state: State) -> State:
    """The method's state, of a larger one that keeps nothing more of the clients."""
    return State(state.server.own, state.clients)
