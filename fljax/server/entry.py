"""What is looked at before a jitted function is called: inside of it every number is traced."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fljax.choices import check_choices
from fljax.ranges import Number, check_number

F = TypeVar("F", bound=Callable[..., Any])


def at_least(least: float, meaning: str) -> Number:
    """The range of numbers from ``least`` on."""
    return Number(meaning=meaning, least=least)


def count_from(least: int, meaning: str) -> Number:
    """The range of whole numbers from ``least`` on."""
    return at_least(least, meaning)._replace(whole=True)


SHARE = at_least(0, "the share trimmed on each side")._replace(most=0.5)
"""A fraction to trim."""
WEIGHT = at_least(0, "the clients' weights")
"""Of one client or each."""
POSITIVE = Number(meaning="a positive number", above=0, infinite=True)


def checked(**stated: Number) -> Callable[[F], F]:
    """Decorator of a jitted function that refuses numbers out of their range, static choices that its annotations do
    not allow, and text in an array, and that takes a list of ``layers``.

    Traced numbers pass, but where they must be static. A list cannot be static, so it becomes a tuple.

    Args:
        **stated: argument -> its range, of one number or of each in an array.
    """

    def wrap(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            check_choices(function, given.arguments)
            for name, number in stated.items():
                value = given.arguments.get(name)
                is_mask = str(getattr(value, "dtype", "")) == "bool"  # whose numbers are 0 and 1
                if value is not None and not is_mask:
                    check_number(name, value, number, stacked=True)
            for name, value in given.arguments.items():
                if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
                    raise ValueError(
                        f"{name} has dtype {value.dtype}; give numbers, of names np.unique(..., return_inverse=True)[1]"
                    )
            if isinstance(given.arguments.get("layers"), list):
                given.arguments["layers"] = tuple(given.arguments["layers"])
            return function(*given.args, **given.kwargs)

        return call  # pyright: ignore[reportReturnType]

    return wrap
