"""Static choices: what the annotations of a factory's arguments allow, and the choices as plain data.

Importing this does not start JAX.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from numbers import Integral
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from fljax.other_names import name_here

T = TypeVar("T")


class Least(NamedTuple):
    """Annotation of a whole number: the least that is allowed."""

    value: int


class Most(NamedTuple):
    """Annotation of a whole number: the largest that is allowed, if that is not `MOST`."""

    value: int


MOST = 2**31 - 1
"""The largest whole number of a program, whose integers are int32."""
Positive = Annotated[int, Least(1)]
"""A whole number of at least 1."""
Natural = Annotated[int, Least(0)]
"""A whole number of at least 0."""
Seed = Annotated[int, Least(0), Most(2**63 - 1)]
"""A seed of NumPy's generators."""

UNTOLD = "<untold>"
"""Stands in a description for what plain values cannot describe."""
_LIBRARIES = ("builtins", "fljax", "flax", "jax", "numpy", "optax")
"""Libraries whose functions a name identifies, because a run records their versions."""


def check_choices(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Checks arguments against annotations that are `Literal`, `Positive`, `Natural`, or one of them or None.

    Args:
        function: the function whose annotations are read.
        arguments: argument -> value.

    Raises:
        ValueError: an argument is not allowed; the message names it, its value and what is allowed.
    """
    allowed = _allowed(function)
    for name, value in arguments.items():
        if name in allowed:
            options, least, most = allowed[name]
            if value not in options and not (least is not None and _is_whole(value) and least <= value <= most):
                raise ValueError(refusal(name, value, options, least, most))


def listed(name: str, value: Any, remedy: str) -> list[Any]:
    """``value`` as a list; ValueError if it is not several things in an order, as a text or a dict are not."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is of type {type(value).__name__}, not a list; {remedy}")
    return list(value)


def check_kind(name: str, value: Any, kind: type, remedy: str) -> None:
    """Raises ValueError if ``value`` is not of ``kind``; the message ends with the ``remedy``."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise ValueError(f"{name} is {short_repr(value)}, not {article} {kind.__name__}; {remedy}")


def is_hashable(value: Any) -> bool:
    """Whether ``value`` can be a key, as static choices and bricks are: equal ones make one method."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def short_repr(value: Any) -> str:
    """A value in a message: its repr without memory addresses if that is short, else its type."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) < 60 else f"of type {type(value).__name__}"


@cache
def _allowed(function: Callable[..., Any]) -> dict[str, tuple[tuple[Any, ...], int | None, int]]:
    """Argument -> (the values that are allowed, the least whole number that is allowed as well, or None, and the
    largest)."""
    allowed = {}
    for name, annotation in get_type_hints(inspect.unwrap(function), include_extras=True).items():
        parts = [annotation] if get_origin(annotation) in (Literal, Annotated) else list(get_args(annotation))
        options = tuple(option for part in parts if get_origin(part) is Literal for option in get_args(part))
        marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
        least = next((mark.value for mark in marks if isinstance(mark, Least)), None)
        most = next((mark.value for mark in marks if isinstance(mark, Most)), MOST)
        others = [part for part in parts if get_origin(part) not in (Literal, Annotated) and part is not type(None)]
        if (options or least is not None) and not others:
            allowed[name] = (*([None] if type(None) in parts else []), *options), least, most
    return allowed


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def refusal(name: str, value: Any, options: tuple[Any, ...], least: int | None, most: int = MOST) -> str:
    """The message for a value that is neither one of ``options`` nor, unless ``least`` is None, a whole number from
    ``least`` to ``most``."""
    shown = f"{name}={value!r}"
    if len(shown) > 100 or "\n" in shown:
        shown = f"{name} of type {type(value).__name__}"
    or_none = ", or None" if None in options else ""
    if least is not None:
        fault = "is not a whole number"
        if _is_whole(value) and value > most:
            return f"{shown} is too large; choose {name} <= {most}{or_none}"
        if _is_whole(value):
            fault = {0: "is negative", 1: "is not positive"}.get(least, f"is below {least}")
        return f"{shown} {fault}; choose {name} >= {least}{or_none}"
    return f"{shown} is unknown; choose one of {', '.join(map(repr, options))}"


def near_to(name: str, known_names: Iterable[str], at_least: float = 0) -> str | None:
    """The known name most similar to ``name``, ignoring case; None if no similarity is ``at_least`` so high."""
    folded = {known_name.casefold(): known_name for known_name in reversed([*known_names])}
    matches = difflib.get_close_matches(name[:100].casefold(), folded, n=1, cutoff=at_least)
    return folded[matches[0]] if matches else None


def unknown(kind: str, name: str, known_names: Iterable[str]) -> str:
    """``no <kind> '<name>'; the nearest is '<known name>'``; if none is near, all names of a list that is not long. A
    name that is another library's is answered with the one that the thing has here."""
    known_names = list(known_names)
    text, near = f"no {kind} {name[:100]!r}", near_to(name, known_names, 0.5)
    if (here := name_here(kind, name)) is not None:
        return f"{text}; here it is {here}"
    if near is not None:
        return f"{text}; the nearest is {near!r}"
    return f"{text}; choose one of {', '.join(known_names)}" if 0 < len(known_names) <= 20 else text


def there_are(what: str, known_names: Iterable[str], name: str | None = None) -> str:
    """``<what> are <all names>``; of a long list the name nearest to ``name``, or without ``name`` the first names."""
    known_names = list(known_names)
    if len(known_names) <= 20:
        # A name of a file's column may have a space at its ends, which would not be seen, or a line break.
        shown = (one if one == one.strip() and one.isprintable() else repr(one) for one in known_names)
        return f"{what} are {', '.join(shown)}"
    if name is None:
        return f"{what} are {', '.join(known_names[:20])} and {len(known_names) - 20} more"
    return f"the nearest of {len(known_names)} is {near_to(name, known_names)!r}"


class Named(dict[str, T], Generic[T]):
    """A table of things by name; the error for an unknown name suggests the nearest one."""

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, name: str) -> T:
        raise KeyError(unknown(self.kind, name, self))


def plain(value: Any) -> Any:
    """A static choice as data that TOML and JSON can hold: a function as its name, an array as its nested values.

    A partial function is its function's name with its arguments. Memory addresses are left out, because they differ
    between processes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, partial):
        parts = [*map(repr, map(plain, value.args)), *(f"{k}={plain(v)!r}" for k, v in sorted(value.keywords.items()))]
        return f"{plain(value.func)}({', '.join(parts)})"
    if isinstance(value, tuple | list) and not hasattr(value, "name"):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # of NumPy or JAX
        return plain(value.tolist())
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return name or re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def is_told(value: Any) -> bool:
    """Whether `plain` describes a choice completely: a user's function may change under the same name."""
    if isinstance(value, str):
        return not re.search(rf"<lambda>|<locals>|{UNTOLD}", value)
    if isinstance(value, partial):
        return all(map(is_told, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, tuple | list) and not hasattr(value, "name"):
        return all(map(is_told, value))
    if isinstance(value, MethodType) and not isinstance(value.__self__, type):
        return False  # its name does not identify the object
    if callable(value) and hasattr(value, "__qualname__"):
        home = getattr(value, "__globals__", {}).get("__name__", value.__module__) or ""  # a wrapper may borrow a name
        closure = getattr(value, "__closure__", None)
        return home.partition(".")[0] in _LIBRARIES and not closure and is_told(value.__qualname__)
    if not _is_library(_module_name(value)):  # the fields do not describe the code of a user's class
        return False
    text = plain(value)
    return not isinstance(text, str) or text == value or (" at 0x" not in repr(value) and is_told(text))


def is_of_libraries(value: Any) -> bool:
    """Whether a value, with everything in its fields and in its functions' closures, is code of libraries only.

    A user's code may change under the same name from one process to the next.
    """
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no other one gets the same address
    to_check = [value]
    while to_check:
        part = to_check.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if not _is_library(_module_name(part)):
            return False
        to_check += _parts_of(part)
    return True


def _module_name(value: Any) -> str:
    """The module of a function or a class; for any other value, its class's module."""
    if isinstance(value, FunctionType):
        return value.__globals__.get("__name__", value.__module__) or ""  # a wrapper may borrow a name
    return (value if isinstance(value, type) else type(value)).__module__ or ""


def _is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _LIBRARIES or root in ("chex", "jaxlib", "scipy") or root in sys.stdlib_module_names


def _parts_of(value: Any) -> list[Any]:
    """The values that a value consists of."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, tuple | list | set | frozenset):
        return [*value]
    if isinstance(value, type | ModuleType):
        return []
    return [*getattr(value, "__dict__", {}).values()]  # for a jitted function, it holds the wrapped function
