"""What a method leaves open, and the parts that fill it."""

import re
from typing import Any, Literal, NamedTuple

from fljax.argument_kinds import Allowed, check_allowed
from fljax.choices import check_kind, is_hashable, refusal, short_repr
from fljax.numbers import NO_HYPER, is_hyper
from fljax.rounds.combine import Combine
from fljax.rounds.uplink.chain import LINK

Slot = Literal["loss", "augment", "uplink", "downlink", "combine", "server", "schedule", "algorithm"]
"""What a brick changes: the clients' loss, their training examples, their updates on the way to the server, the
server's model on the way to the clients, the combination of received models, the server's step towards it, the
hyperparameters from round to round, or the whole algorithm."""


class Brick(NamedTuple):
    """A part that fits every method with its slot: "fedavg+krum"."""

    name: str
    slot: Slot
    value: Any  # by slot: a `Term`; an `Augment`; a `Link`; a `Combine` or its short form; a function of a `Combine`; a
    # `Schedule`; a function of an `Algorithm`
    summary: str
    Hyper: type[Any] | None = None
    paper: str = ""
    link: str = ""
    before: tuple[str, ...] = ()  # names of bricks that must come after it

    def __repr__(self) -> str:
        return self.name

    def __add__(self, other: Any) -> Any:  # a tuple's would join the fields of two bricks
        """Raises ValueError: a brick is added to a method."""
        raise ValueError(f"{self.name} + {short_repr(other)}: name the method first, as fljax.fedavg + {self.name}")


VALUES: dict[Slot, Allowed] = {
    "loss": Allowed((), is_function=True, form="(loss, hyper) -> loss"),
    "augment": Allowed((), is_function=True, form="(key, x, hyper) -> x"),
    "uplink": LINK,
    "downlink": LINK,
    "combine": Allowed((Combine,), is_function=True, form="(hyper, shared, received, weight) -> shared"),
    "server": Allowed((), is_function=True, form="(combine) -> combine"),
    "schedule": Allowed((), is_function=True, form="(hyper, round) -> hyper"),
    "algorithm": Allowed((), is_function=True, form="(algorithm) -> algorithm"),
}
"""Slot -> what the value of a brick is."""


def check_brick(brick: Brick) -> None:
    """Raises ValueError if ``brick`` is none, or has a slot, a value or a class of hyperparameters that is none."""
    check_kind("brick", brick, Brick, "give one, as fljax.rounds.Brick(name, slot, value, summary)")
    for field in ("name", "slot", "summary", "paper", "link"):
        check_kind(f"{field} of a brick", getattr(brick, field), str, "give a text")
    if not re.fullmatch(r"[\w.-]+", brick.name):  # "+", "/" and ":" part the words of a composition
        raise ValueError(f"name={brick.name!r} of a brick; give letters, digits, '_', '-' and '.' alone")
    check_kind(f"{brick.name}: before", brick.before, tuple, "give a tuple of names of bricks")
    if brick.slot not in VALUES:
        raise ValueError(f"{brick.name}: {refusal('slot', brick.slot, tuple(VALUES), None)}")
    if brick.Hyper is not None and not (isinstance(brick.Hyper, type) and is_hyper(brick.Hyper)):
        raise ValueError(f"{brick.name}: Hyper={brick.Hyper!r} {NO_HYPER}")
    check_allowed(f"{brick.name}: value", brick.value, VALUES[brick.slot])
    if not is_hashable(brick.value):
        kind = type(brick.value).__name__
        raise ValueError(
            f"{brick.name}: value is of type {kind}, which is mutable; give a function, or freeze its class"
        )
