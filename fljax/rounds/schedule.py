"""Hyperparameters that change from round to round: what fills the slot "schedule"."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.choices import check_kind, short_repr
from fljax.numbers import as_dict
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.message import Message, Trip
from fljax.rounds.uplink.private import PrivacyHyper
from fljax.rounds.wrapping import with_halves
from fljax.types import Algorithm, Cohort, Key, Metrics, State, Upload

Schedule = Callable[[Any, Array], Any]
"""``(hyper, round) -> hyper``: the hyperparameters of a round () int32, counted from 0, from those of the run. The
numbers are unknown before the run, so their ranges are not checked."""

_ACCOUNTED = ("noise_multiplier", "example_noise", "count_noise", "bands", "delta", "target_epsilon")
"""Hyperparameters for which epsilon is computed once for all rounds."""


def in_round(schedules: Sequence[tuple[str, Schedule]], hyper: Any, round: Array) -> Any:
    """The hyperparameters of a round: ``hyper`` through one schedule after another.

    Args:
        schedules: the name of each, for messages, and the function.
        hyper: the hyperparameters of the run.
        round: () int32, counted from 0.

    Raises:
        ValueError: when a round is traced: a schedule returns something else than such hyperparameters, sets a number
            where None leaves a term out, or the reverse, or changes what epsilon is computed from.
    """
    for name, schedule in schedules:
        hyper = _checked(name, hyper, schedule(hyper, round))
    return hyper


def _checked(name: str, before: Any, after: Any) -> Any:
    """``after`` with float32 numbers; ValueError if it cannot take the place of ``before``."""
    check_kind(f"what the schedule {name} returned", after, type(before), "return hyper.replace(name=value)")
    old_numbers, new_numbers = as_dict(before), as_dict(after)
    if isinstance(before, PrivacyHyper):
        # A schedule that leaves a number alone gives back the same object.
        changed = [field for field in _ACCOUNTED if new_numbers.get(field) is not old_numbers.get(field)]
        if changed:
            raise ValueError(
                f"schedule {name}: it changes {changed[0]}, but epsilon is computed for one value; leave it as it is"
            )
    for field in fields(before):
        old, new = old_numbers[field.name], new_numbers[field.name]
        if (old is None) != (new is None):
            raise ValueError(
                f"schedule {name}: {field.name}={short_repr(new)} in place of {short_repr(old)}; None leaves a term "
                "out of all rounds, so give the run a number to begin with"
            )
        if new is not None and jnp.shape(new) != ():
            raise ValueError(
                f"schedule {name}: {field.name} has shape {jnp.shape(new)}; return one number, of shape ()"
            )
    return jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), after)


def scheduled(algorithm: Algorithm, schedules: Sequence[tuple[str, Schedule]]) -> Algorithm:
    """``algorithm`` whose rounds have the hyperparameters of `in_round`; its first state and tests have the run's."""
    exchange, inner = algorithm.round_exchange, algorithm.round
    if exchange is None:

        def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
            return inner(key, in_round(schedules, hyper, cohort.round), state, cohort)

        return algorithm._replace(round=round)

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        return exchange.send(key, in_round(schedules, hyper, cohort.round), state, cohort)

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        return exchange.receive(key, in_round(schedules, hyper, cohort.round), state, cohort, upload)

    return with_halves(algorithm, send=send, receive=receive)


def scheduled_link(transform: Transform, schedules: Sequence[tuple[str, Schedule]]) -> Transform:
    """``transform`` with the hyperparameters of each round."""

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        return transform.apply(in_round(schedules, hyper, trip.round), memory, message, trip)

    return transform._replace(apply=apply)
