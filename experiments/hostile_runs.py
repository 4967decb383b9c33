"""All attacks, defences and seeds of a method as one program: which attack and which defence it is are numbers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import fljax
from fljax import tree
from fljax.attacks import Attack, poison
from fljax.attacks.attack import under
from fljax.attacks.updates import crafted
from fljax.data.federation import n_classes
from fljax.devices.programs import options_of
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.combine import Combine, as_combine
from fljax.rounds.slots import Brick
from fljax.rounds.uplink.chain import NOTHING, Memory, Transform, with_uplink
from fljax.rounds.uplink.message import Message, Trip
from fljax.run.one_round import as_traced
from fljax.types import Algorithm, Federation, Metrics, Params


@hyper
class ChosenHyper:
    """Which of several attacks and defences a run has."""

    attack: Scalar = number(0, "place of the attack among those of the program", least=0)
    defence: Scalar = number(0, "place of the defence among those of the program", least=0)


def any_defence(bricks: Sequence[Brick]) -> Combine:
    """What the brick of place ``hyper.defence`` makes of received models; none of them remembers anything."""
    combines = [as_combine(brick.value) for brick in bricks]

    def apply(hyper: Any, memory: Any, shared: Params, received: Any, weight: Array) -> tuple[Params, Any]:
        branches = [partial(_combined, combine, hyper) for combine in combines]
        return lax.switch(jnp.int32(hyper.defence), branches, shared, received, weight), memory

    return Combine(apply, name="any")


def _combined(combine: Combine, hyper: Any, shared: Params, received: Any, weight: Array) -> Params:
    return combine.apply(hyper, (), shared, received, weight)[0]


def any_attack(attacks: Sequence[Attack], ids: tuple[int, ...], start: int) -> Transform:
    """The transform in which the clients ``ids`` send what the attack of place ``hyper.attack`` makes of updates."""
    transforms = [NOTHING if transform.craft is None else crafted(transform.craft, ids, start) for transform in attacks]

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        branches = [partial(_values, transform, hyper, trip) for transform in transforms]
        return memory, message._replace(values=lax.switch(jnp.int32(hyper.attack), branches, message))

    return Transform(apply, name="attack")


def _values(transform: Transform, hyper: Any, trip: Trip, message: Message) -> Array:
    return transform.apply(hyper, Memory(), message, trip)[1].values


def _as_they_are(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[Any, Any]:
    return x, y


class Attackers(NamedTuple):
    """Who attacks and from which round on, in place of what the attacks themselves say."""

    ids: tuple[int, ...]
    start: int


def poisoned(federation: Federation, ids: tuple[int, ...], attack: Attack, trigger: Attack) -> Federation:
    """``federation`` with what the attackers train on under ``attack`` at the pool's end, and tests of ``trigger``.

    Federations of the same sizes have the same shapes under all attacks; the attackers are not tested.
    """
    assert trigger.target is not None
    under_attack = poison.poisoned(
        federation, ids, attack.poison or _as_they_are, n_classes(federation), attack.seed
    ).federation
    triggered = poison.with_trigger(federation.test, ids, trigger.target, trigger.width)
    width = federation.test.index.shape[1] - triggered.index.shape[1]
    triggered = triggered._replace(index=jnp.pad(triggered.index, ((0, 0), (0, width))))
    size = federation.test.size.at[jnp.asarray(ids)].set(0)
    return under_attack._replace(test=federation.test._replace(size=size), triggered=triggered)


def under_each(
    algorithm: Algorithm,
    numbers: Sequence[Any],
    attacks: Sequence[Attack],
    federations: Sequence[Federation],
    n_rounds: int,
    attackers: Attackers,
) -> Mapping[str, np.ndarray]:
    """Metrics after the last round of ``algorithm`` with each of the ``numbers`` on every federation.

    Args:
        algorithm: not attacked.
        numbers: of the method, with those of `ChosenHyper`.
        attacks: that ``numbers`` choose from; the first one with a trigger is what is tested.
        federations: of one shape; the s-th has the run key s.
        n_rounds: of every run.
        attackers: who attacks, and from which round on.

    Returns:
        Each metric, (numbers, seeds, ...).
    """
    trigger = next(one for one in attacks if one.width)
    first_poisoned = federations[0].train.pool.y.shape[0]
    # Data never changes hands here: no sizes are told, for each attacker keeps as many examples as it has.
    any_poison = Attack("any", poison=_as_they_are, ids=attackers.ids, start=attackers.start)
    attacked = under(algorithm, any_poison, attackers.ids, first_poisoned, ())
    attacked = with_uplink(attacked, any_attack(attacks, attackers.ids, attackers.start))
    data = tree.stack(
        [tree.stack([poisoned(one, attackers.ids, attack, trigger) for one in federations]) for attack in attacks]
    )
    keys = jnp.stack([jax.random.key(seed) for seed in range(len(federations))])

    def all_runs(hypers: Any, data: Any, keys: Array) -> Metrics:
        def last(hyper: Any, federation: Federation, key: Array) -> Metrics:
            _, metrics = fljax.simulate(attacked, hyper, federation, key, n_rounds, evaluate_every=n_rounds)
            return {name: value[-1] for name, value in metrics.items()}

        def of_seeds(hyper: Any) -> Metrics:
            poisoned_data = tree.take(data, jnp.int32(hyper.attack))
            return lax.map(lambda pair: last(hyper, *pair), (poisoned_data, keys))

        return lax.map(of_seeds, hypers)

    arguments = tree.stack([as_traced(one) for one in numbers]), data, keys
    # Most of the time is compilation: these programs run for seconds.
    return jax.device_get(jax.jit(all_runs).lower(*arguments).compile(options_of("medium"))(*arguments))
