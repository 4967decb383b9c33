"""Checks of a partition's arguments; each error is one line: the name, the given value and what is allowed."""

from math import inf
from numbers import Integral, Real

import numpy as np

from fljax.argument_kinds import check_own_kind
from fljax.data.users import UserExamples
from fljax.types import Examples


def check_whole(name: str, value: int, low: int, high: float = inf, limit: str = "") -> None:
    """Raises ValueError unless ``value`` is a whole number in ``[low, high]``; ``limit`` explains ``high``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        span = f"of at least {low}" if high == inf else f"from {low} to {high}{limit}"
        raise _refusal(name, value, f"a whole number {span}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless ``value`` is a number in ``[low, high]``; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
        raise _refusal(name, value, f"a number from {low:g} to {high:g}")


def check_examples(train: Examples, test: Examples) -> None:
    """Raises ValueError unless both pools are `Examples`, not arrays or `UserExamples`, which have owners already."""
    for name, pool in (("train", train), ("test", test)):
        if isinstance(pool, UserExamples):
            raise ValueError(
                f"{name} has users, which only the natural partition uses as clients: choose --partition natural, or "
                "give fljax.Examples(x, y) without users"
            )
        check_own_kind(name, pool, Examples)


def check_clients(n_clients: int, n_examples: int) -> None:
    """Raises ValueError for less than one client or more clients than examples."""
    check_whole("n_clients", n_clients, 1, n_examples, ", the number of examples")


def check_groups(n_groups: int, n_clients: int) -> None:
    """Raises ValueError for less than one group or more groups than clients."""
    check_whole("n_groups", n_groups, 1, n_clients, ", the number of clients")


def split_of(val_fraction: float, test_fraction: float | None = None) -> tuple[float, float, float]:
    """The (train, validation, test) fractions.

    ``test_fraction`` None: the setting has its own test rows, and the third fraction is 0.

    Raises:
        ValueError: a fraction is out of its range, or nothing is left to train on.
    """
    check_range("val_fraction", val_fraction, 0, 1)
    arguments, test = f"val_fraction={val_fraction}", 0.0
    if test_fraction is not None:
        check_range("test_fraction", test_fraction, 1e-6, 1)
        arguments, test = f"{arguments}, test_fraction={test_fraction}", test_fraction
    if val_fraction + test >= 1:
        raise ValueError(f"{arguments}: nothing to train on; give fractions that sum to less than 1")
    return 1 - val_fraction - test, val_fraction, test


def generator(seed: int) -> np.random.Generator:
    """The random generator of a seed; raises ValueError unless that is a whole number of at least 0."""
    check_whole("seed", seed, 0)
    return np.random.default_rng(seed)


def _refusal(name: str, value: object, allowed: str) -> ValueError:
    shown = repr(value) if isinstance(value, str) else value
    return ValueError(f"{name}={shown}: give {allowed}")
