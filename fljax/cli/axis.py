"""A varied number of `fljax sweep`: its words as values, or as the distribution that they are drawn from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fljax.cli.ranges import check_number
from fljax.cli.settings import typed, written
from fljax.run.sweep.points import Draw, log_spaced, log_uniform, spaced, uniform

MOST_RUNS = 1_000_000
"""Points times seeds: more are a slip of the hand, and their table alone would fill a memory."""

Axis = Sequence[float | None] | Draw
"""The values of a field, or the distribution that they are drawn from."""


def axis(name: str, words: Sequence[str], draws: int | None = None, help: str = "") -> Axis:
    """The values of a field, or the distribution that they are drawn from.

    ``lin:LOW:HIGH:N`` and ``log:LOW:HIGH:N`` are ranges, ``lin:LOW:HIGH`` and ``log:LOW:HIGH`` distributions.

    Raises:
        ValueError: no values, words that are no numbers or ranges, a distribution without ``--draws``, a value that
            stands twice or lies outside the range that ``help`` states.
    """
    if not words:
        raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
    given = f"--{written(name)} {' '.join(words)}"
    if is_range(words):
        found = _range(given, words, draws, help)
    else:
        found = [typed(name, [word], float | None) for word in words]
        for value in found:
            if value is not None:
                check_number(f"--{written(name)} {value}", value, help)
    if not callable(found):
        check_different(given, found)
    return found


def _range(given: str, words: Sequence[str], draws: int | None, help: str) -> Axis:
    kind, *parts = words[0].split(":")
    try:
        low, high = map(float, parts[:2])
        count = [int(part) for part in parts[2:]]
    except ValueError:
        raise ValueError(f"{given}: give {kind}:LOW:HIGH:N, N whole, or {kind}:LOW:HIGH to draw") from None
    if len(words) > 1 or len(count) > 1 or (not count and draws is None):
        raise ValueError(f"{given}: give {kind}:LOW:HIGH:N, or {kind}:LOW:HIGH and --draws N to draw from it")
    if count and count[0] > MOST_RUNS:
        raise ValueError(f"{given}: choose at most {MOST_RUNS} values")
    for end in (low, high):
        check_number(given, end, help)
    if not count and np.float32(low) == np.float32(high):
        raise ValueError(f"{given}: every draw is the same; give low < high")
    try:
        if count:
            return (spaced if kind == "lin" else log_spaced)(low, high, count[0])
        return (uniform if kind == "lin" else log_uniform)(low, high)
    except ValueError as error:
        raise ValueError(f"{given}: {error}") from None


def is_range(words: Sequence[str]) -> bool:
    """Whether the words stand for a range or a distribution."""
    return bool(words) and words[0].split(":")[0] in ("lin", "log") and ":" in words[0]


def check_different(given: str, values: Sequence[Any]) -> None:
    """Raises ValueError where a value stands twice: its runs would pass for those of more seeds."""
    seen = set()
    for value in values:
        with np.errstate(over="ignore"):
            key = np.float32(value).item() if isinstance(value, float) else value
        if key in seen:
            raise ValueError(f"{given}: {value} stands there twice; give each value once")
        seen.add(key)
