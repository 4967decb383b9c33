"""``--uplink clip:1 top-k:0.1``, ``--augment flip ./mine.py:mybrick:4``: short words of bricks and their numbers."""

from collections.abc import Mapping, Sequence

from fljax.catalogue.entries import entry, names
from fljax.catalogue.file_words import parts_of, short_name
from fljax.catalogue.job import RUN
from fljax.catalogue.own import entry_point
from fljax.catalogue.words import nearest, shown
from fljax.jobs.settings import Layer, last

SHORT = {"clip": "clip_update", "noise": "gaussian_noise"}
"""Short names of bricks."""
BEGIN = {"augment": "", "uplink": "", "downlink": "down_"}
"""Slot -> prefix of the names of its bricks."""


def spelled_out(layers: Sequence[Layer]) -> list[Layer]:
    """The layers with the bricks of the slots in `BEGIN` put into every method, and with the bricks' numbers set.

    Raises:
        ValueError: in one line: a brick does not exist, or does not have so many numbers.
    """
    plain_layers = [[setting for setting in layer if setting[0] not in BEGIN] for layer in layers]
    bricks, numbers = [], []
    for slot in BEGIN:
        (*_, first_layer) = [0, *(i for i, layer in enumerate(layers) if last([layer], slot) is not None)]
        # Earlier settings are replaced.
        later_names = {name for layer in plain_layers[first_layer:] for name, _ in layer}
        for word in RUN[slot].read(slot, last(layers, slot) or ["[]"]):
            brick, brick_numbers = _brick(slot, word)
            bricks.append(brick)
            numbers += [(name, words) for name, words in brick_numbers if name not in later_names]
    methods = last(plain_layers, "algorithm")
    if bricks and methods is not None:
        # Settings of a method apply to the method with its bricks, which gives its section another name.
        sections = {short_name(method): short_name(_with(method, bricks)) for method in methods}
        plain_layers = [[(_renamed(name, sections), words) for name, words in layer] for layer in plain_layers]
        plain_layers[-1] = [*plain_layers[-1], ("algorithm", [_with(method, bricks) for method in methods]), *numbers]
    return plain_layers


def _renamed(name: str, sections: Mapping[str, str]) -> str:
    """``ifca.lr``, or ``outer.ifca.lr``, with the section's new name."""
    *prefixes, section, number = ["", *name.split(".")]
    return ".".join([*prefixes[1:], sections.get(section, section), number]) if section else name


def _with(method: str, bricks: Sequence[str]) -> str:
    """The method's word with the bricks appended that it does not have yet; a stored word has them already.

    Raises:
        ValueError: it has some of them in another order than given.
    """
    word = "+".join([method, *(brick for brick in bricks if brick not in parts_of(method)[1:])])
    for slot in BEGIN:
        expected = [brick for brick in bricks if entry("brick", brick).group == slot]
        applied = [brick for brick in parts_of(word)[1:] if brick in expected]
        if applied != expected:
            raise ValueError(
                f"{shown(slot, expected)}: {method} would apply {', then '.join(applied)}; "
                "write all of them in one place, in their order"
            )
    return word


def _named(slot: str, short: str) -> str:
    """The name of a brick whose short name in a slot of the library is ``top-k``, ``clip``; else one of a package."""
    slot_bricks = [name for name in names("brick") if entry("brick", name).group == slot]
    bricks = {name.removeprefix(BEGIN[slot]): name for name in slot_bricks}
    bricks |= {short_name: name for short_name, name in SHORT.items() if name in slot_bricks}
    if (underscored := short.replace("-", "_")) not in bricks and entry_point("brick", short) is not None:
        return short
    return bricks[nearest(underscored, [*bricks], f"brick for --{slot}:")]


def _brick(slot: str, word: str) -> tuple[str, Layer]:
    """The word of a brick written as ``top-k:0.1`` or ``./mine.py:mybrick:0.1``, and its numbers.

    Raises:
        ValueError: there is no such brick, or it is of another slot.
    """
    begin = word.rfind(".py:") + len(".py:") if ".py:" in word else 0
    short, *values = word[begin:].split(":")
    name = f"{word[:begin]}{short}" if begin else _named(slot, short)
    details = entry("brick", name)
    if details.group != slot:
        raise ValueError(f"{shown(slot, [word])}: {short} is a brick of the slot {details.group!r}, not {slot!r}")
    section = list(details.section)
    if len(values) > len(section):
        number_names = ", ".join(section) or "none"
        raise ValueError(
            f"{shown(slot, [word])}: {len(values)} numbers are given, but the numbers of {name} are: {number_names}"
        )
    return name, [(number, [value]) for number, value in zip(section, values, strict=False)]
