"""Static choices: what the annotations of a factory's arguments allow, and the choices as plain data.

Importing this starts no JAX.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints


class Least(NamedTuple):
    """Annotation of a whole number: the least that is allowed."""

    value: int


Positive = Annotated[int, Least(1)]
"""A whole number of at least 1."""
Natural = Annotated[int, Least(0)]
"""A whole number of at least 0."""


def check_choices(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Checks arguments against annotations that are `Literal`, `Positive`, `Natural`, or one of them or None.

    Args:
        function: whose annotations are read.
        given: argument -> value.

    Raises:
        ValueError: naming the first argument that is not allowed, what it was and what it may be.
    """
    allowed = _allowed(function)
    for name, value in given.items():
        if name in allowed:
            options, least = allowed[name]
            if value not in options and not (least is not None and _is_whole(value) and value >= least):
                raise ValueError(refusal(name, value, options, least))


@cache
def _allowed(function: Callable[..., Any]) -> dict[str, tuple[tuple[Any, ...], int | None]]:
    """Argument -> (values that are allowed as such, the least of the whole numbers that are allowed too)."""
    found = {}
    for name, kind in get_type_hints(inspect.unwrap(function), include_extras=True).items():
        parts = [kind] if get_origin(kind) in (Literal, Annotated) else list(get_args(kind))
        options = tuple(option for part in parts if get_origin(part) is Literal for option in get_args(part))
        leasts = [mark.value for part in parts for mark in getattr(part, "__metadata__", ()) if isinstance(mark, Least)]
        if options or leasts:
            found[name] = (*([None] if type(None) in parts else []), *options), (leasts[0] if leasts else None)
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def refusal(name: str, value: Any, options: tuple[Any, ...], least: int | None) -> str:
    """What to say of a value that is none of ``options``, nor a whole number of at least ``least``; None: of none."""
    or_none = ", or None" if None in options else ""
    if least is not None:
        fault = "is not a whole number"
        if _is_whole(value):
            fault = {0: "is negative", 1: "is not positive"}.get(least, f"is below {least}")
        return f"{name}={value!r} {fault}; choose {name} >= {least}{or_none}"
    return f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, options))}"


def plain(value: Any) -> Any:
    """A static choice as data that TOML and JSON know: a function by its name, an array by its shape and values.

    `says_all` tells whether that is all of it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list) and not hasattr(value, "name"):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # of NumPy or JAX
        return plain(value.tolist())
    if isinstance(value, partial):
        named = [f"{name}={plain(given)}" for name, given in value.keywords.items()]
        return [plain(value.func), *map(plain, value.args), *named]
    return getattr(value, "name", None) or getattr(value, "__qualname__", None) or repr(value)


def says_all(text: str) -> bool:
    """Whether what `plain` gives, as text, can be told from what it gives of another choice.

    The name of a function that stands within another, as a lambda or closure does, is not all that there is to it, nor
    is an address.
    """
    return re.search(r"<lambda>|<locals>| at 0x", text) is None
