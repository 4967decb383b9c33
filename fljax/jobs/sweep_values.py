"""The values of a hyperparameter in `fljax sweep`: a list, a range, or a distribution."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from fljax.catalogue.job import PARTS, SWEEP
from fljax.catalogue.parameters import Parameter
from fljax.catalogue.words import shown, takes_several, written
from fljax.jobs.settings import NOT_KEPT, OUTER, read_value
from fljax.ranges import check_number
from fljax.sealed import naming

MOST_RUNS = 1_000_000
"""Limit of points (or methods of a comparison) times seeds: more are a mistake, and their table alone would fill the
memory."""
BRICKS = {
    "augment": ("crop", "crop_padding"),
    "uplink": ("clip_update", "clip"),
    "downlink": ("down_top_k", "down_top_share"),
}
"""Slot -> a brick of it and one of its hyperparameters, as an example."""
NOT_OUTER = (
    *("algorithm", "dataset", "data", "data_folder", *PARTS, "score", *BRICKS),
    *("rounds", "seed", "seeds", "draws", "halving", "metric", "judge"),
)
"""Settings that cannot vary within a sweep, because another value needs its own table."""
OF_THE_WHOLE = (*NOT_KEPT, "runs_at_once")
"""Settings of how a sweep is carried out, not of what runs in it."""


class Axis(NamedTuple):
    """A hyperparameter that is varied."""

    words: list[str]
    values: Any  # a list of values, or a `fljax.run.sweep.points.Draw`


def value_or_axis(name: str, parameter: Parameter, words: list[str]) -> Any:
    """A setting's value; for a hyperparameter with several values or a range, its axis.

    Raises:
        ValueError: a static setting has several values, a hyperparameter has none, or a value is not allowed or given
            twice.
    """
    section, _, short = name.rpartition(".")
    has_several = len(words) > 1 or is_range(words)
    if parameter.number is not None and section not in ("", *PARTS) and (has_several or not words):
        setting = shown(short, words)
        if not words:
            raise ValueError(f"{setting}: an empty grid; give at least one value")
        is_a_range = is_range(words)
        values = _range(setting, short, words, parameter) if is_a_range else [parameter.read(short, [w]) for w in words]
        if not callable(values):
            check_different(setting, values)
            if None in values and len(values) > 1:
                reason = "None needs another program than numbers; use the outer loop"
                raise ValueError(f"{setting}: {reason}: {shown(f'{OUTER}.{short}', words)}")
        return Axis(words, values)
    if has_several and not takes_several(parameter.kind) and name not in SWEEP:
        if name in (*NOT_OUTER, *OF_THE_WHOLE):
            raise ValueError(f"{shown(name, words)}: {name} cannot vary within a sweep; run one sweep for each value")
        reason = f"{short} is static, so each value needs its own program; use the outer loop"
        outer_name = f"{OUTER}.{name if section in PARTS else short}"
        example = ["VALUE", "VALUE"] if is_range(words) else words
        raise ValueError(f"{shown(name, words)}: {reason}: {shown(outer_name, example)}")
    is_axis = parameter.number is not None and section not in ("", *PARTS)
    return parameter.read(name, words) if is_axis else read_value(name, parameter, words)


def check_outer(full: str, name: str, method: str) -> None:
    """Raises ValueError if the outer loop does not take the setting ``full``, written as ``name``, in a sweep of
    ``method``."""
    option = f"--{written(name)}"
    if full in OF_THE_WHOLE:
        raise ValueError(f"{option}: {full} is a setting of the whole sweep; give it as --{written(full)}")
    if full in BRICKS:
        brick, number = BRICKS[full]
        raise ValueError(
            f"{option}: bricks are part of the method; name one there and vary its setting, as in --algorithm "
            f"{method.partition('+')[0]}+{brick} --{written(number)} VALUE VALUE; see fljax list bricks"
        )
    if full in NOT_OUTER:
        raise ValueError(f"{option}: {full} cannot vary within a sweep; run one sweep for each value")


def _range(setting: str, name: str, words: list[str], parameter: Parameter) -> Any:
    from fljax.run.sweep.points import log_spaced, log_uniform, spaced, uniform

    kind, *parts = words[0].split(":")
    try:
        (low, high), count = map(float, parts[:2]), [int(part) for part in parts[2:]]
    except ValueError:
        raise ValueError(f"{setting}: give {kind}:LOW:HIGH:N, N whole, or {kind}:LOW:HIGH to draw") from None
    if len(words) > 1 or len(count) > 1:
        raise ValueError(f"{setting}: {how_to_draw(kind)}")
    if count and count[0] > MOST_RUNS:
        raise ValueError(f"{setting}: choose at most {MOST_RUNS} values")
    for end in (low, high):
        check_number(name, end, parameter.number)  # pyrefly: ignore[bad-argument-type] - an axis is a number's
    if not count and low == high:
        raise ValueError(f"{setting}: every draw is the same; give low < high")
    makers = {"lin": (uniform, spaced), "log": (log_uniform, log_spaced)}[kind]
    with naming(setting):
        return makers[len(count)](low, high, *count)


def how_to_draw(kind: str) -> str:
    """The remedy for a range that has neither a count nor --draws."""
    return f"give {kind}:LOW:HIGH:N, or {kind}:LOW:HIGH and --draws N to draw from it"


def is_range(words: Sequence[str]) -> bool:
    """Whether the words stand for a range or a distribution."""
    return bool(words) and words[0].split(":")[0] in ("lin", "log") and ":" in words[0]


def check_different(setting: str, values: Sequence[Any]) -> None:
    """Raises ValueError if a value occurs twice, in float32: its runs would look like further seeds."""
    seen = set()
    for value in values:
        key = struct.pack("f", value) if isinstance(value, float) else value
        if key in seen:
            raise ValueError(f"{setting}: {value} is given twice; give each value once")
        seen.add(key)
