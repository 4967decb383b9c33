"""Numbers in their ranges: those that the library would meet only after a run has begun, or not at all."""

import re
from typing import Any

import numpy as np

from fljax.algorithms import method_named
from fljax.cli.settings import ONE_OF_A_KIND, Schema, Values, path, written
from fljax.data.holdout import check_new_clients
from fljax.rounds.sampling import cohort_size
from fljax.run.simulate import check_run
from fljax.types import Federation

MOST = 2**31 - 1
"""The largest whole number of a program, whose integers are int32."""
MOST_SEED = 2**32 - 1
"""The largest seed: a key is made of its last 32 bits, so a larger one would be another's run."""
MOST_FLOAT = float(np.finfo(np.float32).max)

_NUMBER = r"-?[\d.]*\d"
_RANGE = re.compile(
    rf"(?:^|, )(?P<text>(?P<sign>>=?) (?P<least>{_NUMBER})"
    rf"|in (?P<begin>[\[(])(?P<low>{_NUMBER}), (?P<high>{_NUMBER})(?P<end>[\])]))(?![\w/])"
)
"""A range as docstrings write it: ", > 0", ", >= 1", ", in [0, 1)"."""


def check_numbers(settings: Values, schema: Schema) -> None:
    """Raises ValueError for numbers out of range, those of each method by the range that its Hyper states."""
    check_whole(settings)
    own = settings[""]
    check_run(own["rounds"], own["evaluate_every"], own["dropout"])
    cohort_size(own["participation"], 1)
    if own["new_clients"] is not None:
        check_new_clients(own["new_clients"])
    if own["new_client_rounds"] < 0:
        raise ValueError(f"new_client_rounds={own['new_client_rounds']} is negative; choose new_client_rounds >= 0")
    for section, values in settings.items():
        for name in ("epochs", "batch_size", "at_once"):
            if (value := values.get(name)) is not None and value < 1:
                raise ValueError(f"{section}.{name}={value} is not positive; choose {name} >= 1")
        for name in () if section in ONE_OF_A_KIND else method_named(section).hyper._fields:
            if (value := values[name]) is not None:
                check_number(f"--{written(path(section, name))} {value}", value, schema[section][name].help)


def check_whole(settings: Values) -> None:
    """Raises ValueError for whole numbers that a program cannot hold, and for a seed below 0."""
    if (seed := settings[""].get("seed", 0)) < 0:
        raise ValueError(f"seed={seed} is negative; choose seed >= 0")
    for section, values in settings.items():
        for name, value in values.items():
            most = MOST_SEED if name == "seed" else MOST
            largest = max(
                (one for one in (value if isinstance(value, tuple) else [value]) if type(one) is int), default=0
            )
            if largest > most:
                raise ValueError(f"--{written(path(section, name))} {largest}: choose at most {most}")


def check_number(given: str, value: float, help: str = "") -> None:
    """Raises ValueError where a method's number is none of float32, or outside the range that ``help`` states.

    Args:
        given: the setting as the message shows it.
        value: the number.
        help: of its parameter; most say ", > 0" or ", in [0, 1)". Without a range every float32 will do, inf too.
    """
    if np.isnan(value):
        raise ValueError(f"{given}: nan is no number")
    if MOST_FLOAT < abs(value) < np.inf:
        raise ValueError(f"{given}: float32 ends at {MOST_FLOAT:.3g}; choose a smaller number")
    if (range := _RANGE.search(help)) and not _holds(range, value):
        raise ValueError(f"{given}: give a number {range['text']}")


def check_steps(settings: Values, federation: Federation) -> None:
    """Raises ValueError where a client would make more steps in a round than a program can count."""
    longest = int(np.max(federation.train.size))
    for section, values in settings.items():
        if section not in ONE_OF_A_KIND:
            n_batches = -(-longest // values["batch_size"])
            if values["epochs"] * n_batches > MOST:
                raise ValueError(
                    f"--{written(section)}.epochs {values['epochs']}: of {n_batches} batches each; "
                    f"choose at most {MOST // n_batches}"
                )


def _holds(range: re.Match[str], value: Any) -> bool:
    if range["sign"]:
        least = float(range["least"])
        return value > least or (range["sign"] == ">=" and value == least)
    low, high = float(range["low"]), float(range["high"])
    return low < value < high or (value == low and range["begin"] == "[") or (value == high and range["end"] == "]")
