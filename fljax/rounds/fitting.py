"""Whether a brick fits a method: it has the slot, and nothing of the two is there twice."""

from collections.abc import Collection
from typing import Any

from fljax.numbers import numbers_of
from fljax.rounds.slots import Brick
from fljax.types import Work

_ONCE = ("loss", "augment", "schedule", "algorithm")
"""Slots in which a brick that is written twice is a mistake, and would not be noticed otherwise."""


def check_fits(method: Any, brick: Brick) -> None:
    """Raises ValueError if ``method``, a `Method`, cannot take ``brick`` besides those that it has."""
    name = f"{method.name}+{brick.name}"
    if brick.slot not in method.slots:
        slots = ", ".join(method.slots) or "none"
        message = f"{name}: {method.title} has no slot {brick.slot!r} for {brick.name}; its slots: {slots}"
        is_own = not method.factory.__module__.startswith("fljax.")
        if is_own and brick.slot not in ("loss", "augment") and "combine" not in method.static:
            message += "; the function of a method gets it by an argument combine=mean, which it passes on"
        raise ValueError(message)
    if misplaced := [one.name for one in method.bricks if one.name in brick.before]:
        raise ValueError(f"{name}: write {brick.name} before {misplaced[0]}")
    numbers = {} if brick.Hyper is None else numbers_of(brick.Hyper)
    if shared := sorted(numbers.keys() & numbers_of(method.Hyper).keys()):
        owners = [one.name for one in method.bricks if one.Hyper is not None and shared[0] in numbers_of(one.Hyper)]
        owner = [*owners, method.factory.__name__][0]
        raise ValueError(f"{name}: {owner} and {brick.name} both have a hyperparameter {shared[0]!r}; use one of them")
    if brick.slot in _ONCE and brick.name in [one.name for one in method.bricks]:
        raise ValueError(f"{name}: {brick.name} is there already; leave one out, or give one another name")
    check_distinct(name, method.static, numbers)
    combining = [one for one in method.bricks if one.slot in ("combine", "server")]
    if brick.slot == "combine" and combining:
        rule_names = [one.name for one in combining if one.slot == "combine"]
        remedy = "leave one out" if rule_names else f"write {brick.name} first, or leave one out"
        raise ValueError(f"{name}: {brick.name} would replace {(rule_names or [combining[-1].name])[-1]}; {remedy}")


def check_distinct(method: str, choices: Collection[str], numbers: Collection[str]) -> None:
    """Raises ValueError if a setting of a method would be two: all of them are in one section of the command line."""
    all_names = {"a static choice": choices, "a hyperparameter": numbers, "a field of Work": Work._fields}
    for name in (*choices, *numbers):
        if len(kinds := [kind for kind, names in all_names.items() if name in names]) > 1:
            raise ValueError(f"{method}: {name!r} is both {' and '.join(kinds)}; give one another name")
