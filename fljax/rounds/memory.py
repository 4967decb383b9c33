"""What a sampling remembers: something per client, from what the server has seen of earlier rounds.

A `Sampling` with a `SamplingMemory` draws from it, and it is updated after each round. It is kept beside the server's
state (`Remembering`): in checkpoints, in each run of a sweep, and whole on every device. The method does not see it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.placement import whole
from fljax.rounds.check_like import check_like
from fljax.types import Algorithm, ClientData, Key, Metrics, ModelTable, State


class Seen(NamedTuple):
    """What the server has seen of the participants of a round, in the order of their ids.

    Of those that are not active, it has seen nothing but that they did not come: their other numbers have no meaning.
    """

    round: Array  # () int32, from 0
    ids: Array  # (cohort,) int32, distinct
    active: Array  # (cohort,) bool: who has come, in time, and counted
    size: Array  # (cohort,) int32 number of training examples
    seconds: Array  # (cohort,) float32 simulated seconds of a round of each one; 0 without a clock
    loss: Array | None = None  # (cohort,) float32 mean training loss in the round; None if `SamplingMemory.sends` is 0
    mean_of: Callable[[Callable[[Array], Array]], Array] | None = None
    """``(f) -> (cohort,)`` mean of ``f(losses)``, f such as ``jnp.square``, over all training examples of each one, at
    the beginning of the round, with the model that it would be tested with; it costs a pass over them. None if
    `SamplingMemory.sends` is 0."""

    def put(self, rows: Any, values: Any) -> Any:
        """``rows`` (clients, ...), with the ``values`` (cohort, ...) in the rows of those that are active."""
        return tree.put(rows, self.ids, values, self.active)


class SamplingMemory(NamedTuple):
    """What a sampling keeps between rounds; static, hashable.

    ``init(n_clients) -> memory`` makes it, a pytree of arrays, before the first round; ``update(memory, seen) ->
    memory`` changes it after each, by what the server has `Seen`, in the same shapes.
    """

    init: Callable[[int], Any]
    update: Callable[[Any, Seen], Any]
    sends: int = 0
    """Numbers that a participant sends for it beside its update, counted as traffic; 0: ``update`` sees no losses."""


class Remembering(NamedTuple):
    """The server's half of a run's `State`, if its sampling remembers something."""

    own: Any  # the method's
    memory: Any  # the sampling's


def remembering(algorithm: Algorithm, memory: SamplingMemory | None) -> Algorithm:
    """``algorithm`` whose states hold the sampling's ``memory`` beside the server's; itself if there is none.

    Only a run's rounds (`fljax.run.one_round.run_round`) read and write the memory: the method's round gets and returns
    its own state.
    """
    if memory is None or isinstance(algorithm.init, _Init):
        return algorithm
    return algorithm._replace(init=_Init(algorithm.init, memory.init), deploy=_Deploy(algorithm.deploy))


@dataclass(frozen=True)  # equal ones are the same static argument, so that nothing compiles twice
class _Init:
    own: Callable[[Key, Any, ClientData], State]
    memory: Callable[[int], Any]

    def __call__(self, key: Key, hyper: Any, data: ClientData) -> Any:
        state = self.own(key, hyper, data)
        if not isinstance(state, State):
            return state  # which is refused by `fljax.checks.state.begun`
        return State(Remembering(state.server, self.memory(data.n_clients)), state.clients)


@dataclass(frozen=True)
class _Deploy:
    own: Callable[[Key, Any, State, ClientData], ModelTable]

    def __call__(self, key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return self.own(key, hyper, without_memory(state), data)


def memory_of(state: State) -> Any:
    """The sampling's memory in a run's state; None if there is none."""
    return state.server.memory if isinstance(state.server, Remembering) else None


def without_memory(state: State) -> State:
    """The method's own state, from that of a run."""
    return State(state.server.own, state.clients) if isinstance(state.server, Remembering) else state


def with_memory(state: State, memory: Any) -> State:
    """The state of a run, from the method's own."""
    return State(Remembering(state.server, memory), state.clients)


def updated(kept: SamplingMemory, memory: Any, seen: Seen) -> Any:
    """The memory after a round.

    Raises:
        ValueError: ``update`` returns another structure or other shapes.
    """
    of_losses = seen.mean_of if kept.sends else None
    arrays = seen._replace(loss=seen.loss if kept.sends else None, mean_of=None)
    seen = whole(arrays)._replace(mean_of=of_losses and (lambda f: whole(of_losses(f))))  # the devices hold parts of it
    new = kept.update(memory, seen)
    check_like("the sampling's update returned a memory", new, memory)
    return whole(tree.as_before(new, memory))


def seconds_of(seconds: tuple[float, ...] | None, ids: Array) -> Array:
    """(cohort,) of the clients ``ids``, from those of all; 0 without a clock."""
    return jnp.asarray(seconds, jnp.float32)[ids] if seconds else jnp.zeros(ids.shape, jnp.float32)


def counted(metrics: Metrics, kept: SamplingMemory) -> Metrics:
    """The metrics of a round with what participants send for the memory."""
    return metrics | {"uplink": metrics["uplink"] + kept.sends}
