"""Attacks as values: what is attacked, by which clients and from which round; they wrap any method."""

from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.attacks import poison, updates
from fljax.attacks.attackers import Placed, attackers
from fljax.attacks.poison import Poison
from fljax.attacks.updates import Craft
from fljax.choices import check_kind
from fljax.client.map import AtHome
from fljax.data.federation import n_classes
from fljax.data.labels import check_classes
from fljax.rounds.uplink.chain import NOTHING, with_uplink
from fljax.types import Algorithm, Cohort, Description, Federation, Key, State, Upload


class Attack(NamedTuple):
    """What attackers do; static."""

    name: str
    craft: Craft | None = None  # of updates
    poison: Poison | None = None  # of training data
    target: int | None = None  # the class of examples with a trigger
    width: int = 0  # of the trigger, in pixels
    share: float = 0.0
    ids: tuple[int, ...] | None = None
    placed: Placed = "spread"
    start: int = 0  # the first round of the attack
    seed: int = 0
    about: Description = ()


class Attacked(NamedTuple):
    """A method and a federation under attack, for `fljax.simulate`, `fljax.train` and so on."""

    algorithm: Algorithm
    federation: Federation
    ids: tuple[int, ...]  # the attackers


@checked_kinds
def attacked(algorithm: Algorithm, federation: Federation, attack: Attack) -> Attacked:
    """``algorithm`` on ``federation`` with some clients attacking.

    The attackers lose their test examples, so that every average over clients is over the honest clients. If the attack
    has a trigger, the federation gets test examples with it, and a run the metric ``attack_success``: the share of them
    that the honest clients' models predict as the attackers' class.

    Args:
        algorithm: the method; for attacks on updates, its round must be in two halves (`Algorithm.exchange`).
        federation: the clients and their data.
        attack: of `ATTACKS`.

    Raises:
        ValueError: ``attack`` is not an `Attack`, attackers do not exist, no client is honest, an attack on labels
            meets labels that are not classes, the method's updates cannot be attacked, test data change over the rounds
            although the attack has a trigger, or no honest client is tested in some rounds.
    """
    check_kind("attack", attack, Attack, "call one of fljax.attacks, such as fljax.attacks.label_flip(share=0.2)")
    ids = attackers(federation, attack.share, attack.ids, attack.placed)
    if not ids:
        return Attacked(algorithm, federation, ids)
    _check_stages(federation, attack, ids)
    if attack.target is not None or attack.name == "label_flip":
        check_classes(federation.train.pool.y, f"the attack {attack.name}")
    first, classes = 0, n_classes(federation)
    if attack.target is not None and attack.width:
        bright = poison.brightness(np.asarray(federation.train.pool.x))
        federation = federation._replace(
            triggered=poison.with_trigger(federation.test, ids, attack.target, attack.width, bright)
        )
    if attack.poison is not None:
        federation, first = poison.poisoned(federation, ids, attack.poison, classes, attack.seed)
        if not attack.start:
            federation = federation._replace(train=poison.pointed_at(federation.train, ids, first))
    size = np.asarray(federation.test.size).copy()
    size[list(ids)] = 0
    federation = federation._replace(test=federation.test._replace(size=jnp.asarray(size)))
    federation = _in_every_stage(federation, ids, attack.poison is not None and not attack.start)
    # If clients never exchange data, sizes are not static: one program serves federations with other sizes.
    is_changing = federation.stages is not None
    sizes = tuple(np.asarray(federation.train.size)[list(ids)].tolist()) if is_changing else ()
    return Attacked(under(algorithm, attack, ids, first, sizes), federation, ids)


def _check_stages(federation: Federation, attack: Attack, ids: tuple[int, ...]) -> None:
    """Raises ValueError if a federation that changes does not fit the attack."""
    stages = federation.stages
    if stages is None:
        return
    index, size = np.asarray(stages.test.index), np.asarray(stages.test.size)
    if attack.target is not None and attack.width and (index != index[0]).any():
        # Test examples with the trigger are made once, from the initial test examples.
        raise ValueError(
            f"{attack.name}: a trigger does not work with test data that change over the rounds, as attack_success "
            "would be computed on the initial data; choose another drift, such as leave or arrive, or another attack"
        )
    is_tested, is_honest = size > 0, np.delete(size, ids, axis=1) > 0
    if (only_attackers := is_tested.any(axis=1) & ~is_honest.any(axis=1)).any():
        begins = np.asarray(stages.begins)[only_attackers][0]
        raise ValueError(
            f"{attack.name}: of the clients present from round {begins} on, only attackers have test examples; choose "
            "fewer attackers or a drift with a smaller share"
        )


def _in_every_stage(federation: Federation, ids: tuple[int, ...], is_poisoned: bool) -> Federation:
    """A federation that changes over the rounds; its attackers keep their poisoned data and are never tested."""
    stages, attacker_ids = federation.stages, jnp.asarray(ids, jnp.int32)
    if stages is None:
        return federation
    train, test = stages.train, stages.test._replace(size=stages.test.size.at[:, attacker_ids].set(0))
    if is_poisoned:
        index, size = federation.train.index[attacker_ids], federation.train.size[attacker_ids]
        train = train._replace(
            index=train.index.at[:, attacker_ids].set(index), size=train.size.at[:, attacker_ids].set(size)
        )
    return federation._replace(stages=stages._replace(train=train, test=test))


@cache
def under(algorithm: Algorithm, attack: Attack, ids: tuple[int, ...], first: int, sizes: tuple[int, ...]) -> Algorithm:
    """``algorithm`` in which the clients ``ids`` attack; equal arguments return the same object.

    Their poisoned examples, if any, are in the pool from row ``first`` on, ``sizes`` per attacker; (): each has as many
    as its own examples.
    """
    if attack.poison is not None and attack.start:
        algorithm = _poisoned_later(algorithm, ids, attack.start, first, sizes)
    transform = NOTHING if attack.craft is None else updates.crafted(attack.craft, ids, attack.start)
    if transform is not NOTHING or (algorithm.round_exchange is None and attack.poison is None):
        algorithm = with_uplink(algorithm, transform)._replace(about=algorithm.about)
    description = (*attack.about, ("attackers", ids))
    choices = tuple((f"attack.{name}", value) for name, value in description)
    about = algorithm.about
    return algorithm._replace(about=about._replace(choices=(*about.choices, *choices)))


def _poisoned_later(
    algorithm: Algorithm, ids: tuple[int, ...], start: int, first: int, sizes: tuple[int, ...]
) -> Algorithm:
    exchange = algorithm.round_exchange
    if exchange is not None and exchange.chain is not None:
        # The chain stays one transform: `buffered` counts before it.
        inner, transform = exchange.chain
        poisoned = _poisoned_later(inner, ids, start, first, sizes)
        return with_uplink(poisoned, transform)._replace(about=algorithm.about)

    def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> Any:
        return algorithm.round(key, hyper, state, with_poison(cohort))

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        assert exchange is not None
        return exchange.send(key, hyper, state, with_poison(cohort))

    def with_poison(cohort: Cohort) -> Cohort:
        data = cohort.data
        if isinstance(data.pool, AtHome):
            raise ValueError(f"start={start}: the examples are split among devices; use start=0")
        capacity = data.index.shape[1]
        is_match = cohort.ids[:, None] == jnp.asarray(ids, jnp.int32)[None, :]
        attacker = jnp.argmax(is_match, axis=1).astype(jnp.int32)
        first_row = first + capacity * attacker
        rows = first_row[:, None] + jnp.arange(capacity, dtype=jnp.int32)[None, :]
        is_attacking: Array = is_match.any(axis=1) & (cohort.round >= start)
        index = jnp.where(is_attacking[:, None], rows, data.index)
        size = jnp.where(is_attacking, jnp.asarray(sizes, jnp.int32)[attacker], data.size) if sizes else data.size
        return cohort._replace(data=data._replace(index=index, size=size))

    if exchange is None:
        return algorithm._replace(round=round)
    halves = exchange._replace(send=send)
    return algorithm._replace(round=halves.round, exchange=halves)
