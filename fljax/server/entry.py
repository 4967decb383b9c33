"""Checks of arguments before a jitted function is called; inside it, every number is traced."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from fljax.choices import MOST, check_choices
from fljax.ranges import Number, check_number

F = TypeVar("F", bound=Callable[..., Any])


def at_least(least: float, meaning: str) -> Number:
    """The range of numbers >= ``least``."""
    return Number(meaning=meaning, least=least)


def count_from(least: int, meaning: str) -> Number:
    """The range of integers >= ``least``."""
    return at_least(least, meaning)._replace(whole=True)


SHARE = at_least(0, "the share trimmed on each side")._replace(most=0.5)
"""Range of a fraction to trim."""
WEIGHT = at_least(0, "the clients' weights")
"""Range of one client's weight, or of each client's."""
POSITIVE = Number(meaning="a positive number", above=0, infinite=True)


def compiled(function: F, *, static_argnames: str | tuple[str, ...] = ()) -> F:
    """`jax.jit`; for type checkers and editors the result has the signature of ``function``."""
    return jax.jit(function, static_argnames=static_argnames)  # pyrefly: ignore[bad-return]


def checked(**ranges: Number) -> Callable[[F], F]:
    """Decorator of a jitted function: refuses numbers out of their range, static choices that its annotations do not
    allow, arrays of text, and whole numbers beyond int32; accepts ``layers`` as a list.

    Traced numbers pass, unless they must be static. A list cannot be static, so it is converted to a tuple.

    Args:
        **stated: argument -> its range, which holds for one number or for every number of an array.
    """

    def wrap(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}({', '.join(signature.parameters)}): {error}") from None
            check_choices(function, bound.arguments)
            for name, number in ranges.items():
                value = bound.arguments.get(name)
                is_mask = str(getattr(value, "dtype", "")) == "bool"  # its values are 0 and 1
                if value is not None and not is_mask:
                    check_number(name, value, number, stacked=True)
            for name, value in bound.arguments.items():
                if isinstance(value, int) and abs(value) > MOST:
                    raise ValueError(f"{name}={value} is beyond int32; choose |{name}| <= {MOST}")
                if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
                    raise ValueError(
                        f"{name} has dtype {value.dtype}; give numbers, of names np.unique(..., return_inverse=True)[1]"
                    )
            if isinstance(bound.arguments.get("layers"), list):
                bound.arguments["layers"] = tuple(bound.arguments["layers"])
            return function(*bound.args, **bound.kwargs)

        return call  # pyrefly: ignore[bad-return]

    return wrap
