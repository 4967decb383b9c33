"""Clients are tested with a running average of the server's models of all rounds; training does not see it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters.partial_eval import dce_jaxpr

from fljax import tree
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.averaging import ServerState
from fljax.rounds.wrapping import inside, within_server
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, ModelTable, Params, State, Upload


@hyper
class ModelAverageHyper:
    """Hyperparameters of the average over rounds."""

    ema_decay: Scalar = number(
        0.9,
        "factor on the weights of earlier rounds' models, per round; 0: the last model, 1: the plain mean",
        least=0,
        most=1,
    )


class Averaged(NamedTuple):
    """The server's half of a method's `State`, and the average of its models."""

    own: Any
    average: Params  # sum_{s <= r} d^(r-s) theta_s / sum_{s <= r} d^(r-s), of the models after each round
    total: Array  # () sum_{s <= r} d^(r-s)


def with_model_average(algorithm: Algorithm) -> Algorithm:
    """``algorithm`` whose clients are tested with an exponential moving average of the server's models.

    The model after the last round has weight 1, and each one before ``ema_decay`` times the weight of the next. The
    initial model has no weight, so that a short run is not held back by it. Rounds do not change; personal parts and
    fine-tuning before a test are those of the method. New clients get the average too.

    Raises:
        ValueError: the method has no single model, or its round is its own; at the start of a run: its clients are
            tested with other models.
    """
    exchange = algorithm.round_exchange
    if exchange is None or not exchange.starts_anywhere:
        raise ValueError(
            f"{algorithm.about.name or 'this method'}: its clients do not all start from one model, or its round is "
            "its own, so there is no server's model to average over rounds; leave ema out"
        )
    part = exchange.part

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        state = algorithm.init(key, hyper, data)
        first = State(Averaged(state.server, part(state.server), jnp.float32(0)), state.clients)
        _check_tested(
            algorithm.about.name, lambda average: deploy(key, hyper, _with_average(first, average), data), first
        )
        return first

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        return exchange.send(key, hyper, within_server(state), cohort)

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        new_state, metrics = exchange.receive(key, hyper, within_server(state), cohort, upload)
        total = 1 + hyper.ema_decay * state.server.total
        average = jax.tree.map(lambda old, new: old + (new - old) / total, state.server.average, part(new_state.server))
        average = tree.as_before(average, state.server.average)
        return State(Averaged(new_state.server, average, total), new_state.clients), metrics

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return algorithm.deploy(key, hyper, _with_averaged_model(state), data)

    larger = inside(algorithm, init, within_server, send=send, receive=receive)._replace(deploy=deploy)
    if algorithm.join is None:
        return larger
    join_own = algorithm.join

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        return join_own(key, hyper, _with_averaged_model(state), data, n_rounds)

    return larger._replace(join=join)


def _with_averaged_model(state: State) -> State:
    """The method's state, with the average as the server's model."""
    return State(_with_model(state.server.own, state.server.average), state.clients)


def _with_average(state: State, average: Params) -> State:
    return state._replace(server=state.server._replace(average=average))


def _check_tested(name: str, deployed: Callable[[Params], ModelTable], state: State) -> None:
    """Raises ValueError if the models that clients are tested with do not depend on the average."""
    traced = jax.make_jaxpr(deployed)(state.server.average).jaxpr
    if not any(dce_jaxpr(traced, [True] * len(traced.outvars))[1]):
        raise ValueError(
            f"{name or 'this method'}: clients are tested with models of their own, so an average of the server's "
            "would have no effect; leave ema out"
        )


def _with_model(server: Any, model: Params) -> Any:
    """The server's state of `averaging`, or a larger one around it, with another ``model`` in it."""
    if isinstance(server, ServerState):
        return server._replace(shared=model)
    if "own" in getattr(server, "_fields", ()):  # of `fljax.rounds.wrapping.inside`
        return server._replace(own=_with_model(server.own, model))
    return model
