"""Checks of a run's arguments before anything is traced; errors name the field, its value and what is allowed."""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax import Array

from fljax.numbers import LocalHyper, as_dict, numbers_of
from fljax.ranges import real, said
from fljax.server.checks import is_key
from fljax.types import Algorithm, Federation

_LARGEST = 2**31 - 1
"""The largest number of rounds, seeds or clients: programs count in int32."""


def whole(name: str, value: Any) -> int:
    """``value`` as an int.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{said(name, value)} is not a whole number; give one") from None


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError if ``value`` is not a whole number that int32 holds, of at least ``least``, 0 or 1."""
    if (count := whole(name, value)) > _LARGEST:
        raise ValueError(f"{said(name, count)} is too large; choose {name} <= {_LARGEST}")
    if count < least:
        raise ValueError(f"{name}={value} is {'not positive' if least else 'negative'}; choose {name} >= {least}")


def as_array(name: str, value: Any) -> Any:
    """``value`` as an array of NumPy; one of JAX, which may be traced, is returned itself.

    Raises:
        ValueError: it is a list whose rows differ in length.
    """
    try:
        return value if isinstance(value, Array) else np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} has rows that differ in length; give an array") from None


def check_run(n_rounds: int, evaluate_every: int, dropout: float | None) -> None:
    """Raises ValueError if one of a run's numbers is out of range."""
    check_count("n_rounds", n_rounds)
    check_count("evaluate_every", evaluate_every)
    if dropout is not None and not 0 <= real("dropout", dropout) < 1:
        raise ValueError(f"dropout={dropout} is not a probability below 1; choose 0 <= dropout < 1")


def check_patience(patience: int | None, federation: Federation) -> None:
    """Raises ValueError if ``patience`` is not a number of rounds, or the clients change, after which tests get
    worse."""
    if patience is None:
        return
    check_count("patience", patience)
    if federation.stages is not None:
        raise ValueError(
            f"patience={patience}: the clients change over the rounds, and early stopping would end the run at the "
            "first change; leave patience or the drift out"
        )


def check_key(key: Any) -> None:
    """Raises ValueError if ``key`` is not a single random key, new-style or legacy."""
    if not is_key(key):
        raise ValueError(f"{said('key', key)} is not a random key; give jax.random.key(0)")


@contextlib.contextmanager
def fields_of(hyper: Any, algorithm: Algorithm) -> Iterator[None]:
    """Raises one clear error if a method in the block reads a field that ``hyper`` does not have.

    Raises:
        ValueError: ``hyper`` belongs to another method: it lacks a hyperparameter that ``algorithm`` reads, or has one
            that the method ignores.
    """
    read_names, kind = algorithm.about.numbers, type(hyper)
    # A user's Hyper, or one joined with it, may have fields for the user's own functions.
    is_library = all(base.__module__.partition(".")[0] == "fljax" for base in kind.__mro__ if base is not object)
    if read_names and is_library and (unread := [name for name in as_dict(hyper) if name not in read_names]):
        text = f"hyper={kind.__name__}(...) has {unread[0]!r}, which {algorithm.about.name} does not read; it reads"
        raise ValueError(f"{text} {', '.join(read_names)}")
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, type(hyper)):
            raise
        kind, fields = type(hyper).__name__, ", ".join(as_dict(hyper))
        remedy = "give the method's own Hyper"
        if error.name == LocalHyper.lr_of.__name__ or error.name in numbers_of(LocalHyper):
            remedy += ", and let it inherit from fljax.LocalHyper, which has the fields of the clients' optimiser"
        text = f"hyper={kind}({fields}) has no field {error.name!r}, which the method reads; {remedy}"
        raise ValueError(text) from None
