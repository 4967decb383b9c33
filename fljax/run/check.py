"""What a run is told, checked before anything is traced: a refusal names the field, what it was and what it may be."""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

from fljax.numbers import as_dict


def whole(name: str, value: Any) -> int:
    """``value`` as an int.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} is not a whole number; give one") from None


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError where ``value`` is not a whole number of at least ``least``, 0 or 1."""
    if whole(name, value) < least:
        raise ValueError(f"{name}={value} is {'not positive' if least else 'negative'}; choose {name} >= {least}")


def check_run(n_rounds: int, evaluate_every: int, dropout: float | None) -> None:
    """Raises ValueError where a run's number is out of its range."""
    check_count("n_rounds", n_rounds)
    check_count("evaluate_every", evaluate_every)
    if dropout is not None and not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} is not a probability below 1; choose 0 <= dropout < 1")


@contextlib.contextmanager
def fields_of(hyper: Any) -> Iterator[None]:
    """Inside it, a method that reads a field which ``hyper`` does not have is one clear error.

    Raises:
        ValueError: ``hyper`` is that of another method.
    """
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, type(hyper)):
            raise
        kind, fields = type(hyper).__name__, ", ".join(as_dict(hyper))
        text = (
            f"hyper={kind}({fields}) has no field {error.name!r}, which the method reads; give the method's own Hyper"
        )
        raise ValueError(text) from None
