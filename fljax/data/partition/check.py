"""Refusals of a partition's arguments, in one line each: the name, what was given and what is allowed."""

from math import inf
from numbers import Integral, Real

import numpy as np

from fljax.choices import check_kind
from fljax.data.users import UserExamples
from fljax.types import Examples


def check_whole(name: str, value: int, low: int, high: float = inf, limit: str = "") -> None:
    """Refuses what is no whole number in ``[low, high]``; ``limit`` says where ``high`` comes from."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        span = f"of at least {low}" if high == inf else f"from {low} to {high}{limit}"
        raise _refusal(name, value, f"a whole number {span}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuses what is no number in ``[low, high]``, NaN included."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
        raise _refusal(name, value, f"a number from {low:g} to {high:g}")


def check_examples(train: Examples, test: Examples) -> None:
    """Refuses arrays in the place of pools, and examples that have owners."""
    for name, pool in (("train", train), ("test", test)):
        if isinstance(pool, UserExamples):
            raise ValueError(
                f"{name} has users, who are clients of the natural partition alone: choose --partition natural, or "
                "give fljax.Examples(x, y) without them"
            )
        check_kind(name, pool, Examples, "give fljax.Examples(x, y)")


def check_clients(n_clients: int, n_examples: int) -> None:
    """Refuses fewer than one client and more clients than examples."""
    check_whole("n_clients", n_clients, 1, n_examples, ", the number of examples")


def check_groups(n_groups: int, n_clients: int) -> None:
    """Refuses no group and more groups than clients."""
    check_whole("n_groups", n_groups, 1, n_clients, ", the number of clients")


def split_of(val_fraction: float, test_fraction: float | None = None) -> tuple[float, float, float]:
    """(train, validation, test) fractions; refuses those that leave nothing to train or to test on.

    ``test_fraction`` None: the setting has test rows of its own, and the third fraction is 0.
    """
    check_range("val_fraction", val_fraction, 0, 1)
    given, test = f"val_fraction={val_fraction}", 0.0
    if test_fraction is not None:
        check_range("test_fraction", test_fraction, 1e-6, 1)
        given, test = f"{given}, test_fraction={test_fraction}", test_fraction
    if val_fraction + test >= 1:
        raise ValueError(f"{given}: nothing to train on; give fractions that sum to less than 1")
    return 1 - val_fraction - test, val_fraction, test


def generator(seed: int) -> np.random.Generator:
    """The random numbers of a seed; refuses what is none."""
    check_whole("seed", seed, 0)
    return np.random.default_rng(seed)


def _refusal(name: str, value: object, allowed: str) -> ValueError:
    shown = repr(value) if isinstance(value, str) else value
    return ValueError(f"{name}={shown}: give {allowed}")
