"""What a method leaves open, and the parts that fill it."""

from typing import Any, Literal, NamedTuple

Slot = Literal["loss", "augment", "uplink", "downlink", "combine", "server"]
"""What a brick changes: the clients' loss, their training examples, their updates on the way to the server, the
server's model on the way to the clients, the combination of received models, or the server's step towards it."""


class Brick(NamedTuple):
    """A part that fits every method with its slot: "fedavg+krum"."""

    name: str
    slot: Slot
    value: Any  # by slot: a `Term`; an `Augment`; a `Link`; a `Combine` or its short form; a function of a `Combine`
    summary: str
    Hyper: type[Any] | None = None
    paper: str = ""
    link: str = ""
    before: tuple[str, ...] = ()  # names of bricks that must come after it

    def __repr__(self) -> str:
        return self.name
