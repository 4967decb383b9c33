"""What can be set: typed parameters, read off the library's own signatures and docstrings."""

import functools
import inspect
import operator
import re
import types
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Parameter(NamedTuple):
    """One thing that the command line and TOML can set."""

    kind: Any  # a type that tyro parses
    default: Any
    help: str


Section = dict[str, Parameter]
"""Name -> parameter."""

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

_PLAIN = (int, float, str, bool, types.NoneType)


def parameters(source: Callable[..., Any], leave_out: Collection[str] = ()) -> Section:
    """The parameters of a function, or the fields of a NamedTuple, that have a type which can be written down.

    ``Array | float`` counts as float. The help is the entry ``name: text`` of the docstring, or else its first sentence
    that begins with the name.
    """
    function = inspect.unwrap(source)
    hints, doc = get_type_hints(function), _doc(function)
    kinds = {
        name: settable(hints.get(name)) for name in inspect.signature(function).parameters if name not in leave_out
    }
    defaults = {name: inspect.signature(function).parameters[name].default for name in kinds}
    return {
        name: Parameter(kind, _written(defaults[name]), description(doc, name))
        for name, kind in kinds.items()
        if kind is not None
    }


def settable(annotation: Any) -> Any:
    """The part of a type that can be written on a command line; None where there is no such part."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN or origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        parts = [part for part in map(settable, args) if part is not None]
        return functools.reduce(operator.or_, parts) if set(parts) - {types.NoneType} else None
    if origin is tuple and all(part is Ellipsis or settable(part) is not None for part in args):
        return annotation
    return None


def description(doc: str, name: str) -> str:
    """What a docstring says of a parameter, in one line; "" where it says nothing."""
    entry = re.search(rf"^( *){name}: (.+(?:\n\1 +.+)*)", doc, re.MULTILINE)
    sentence = re.search(rf"(?:^|\.\s+)``{name}`` (?:is )?(.+?)\.(?:\s|$)", doc, re.DOTALL | re.MULTILINE)
    text = entry[2] if entry else sentence[1] if sentence else ""
    return re.sub(r"\s+", " ", text).replace("``", "").rstrip(".")


def kind_name(kind: Any) -> str:
    """A type as a user reads it: ``float | None``, ``'low' | 'high'``."""
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    return inspect.formatannotation(kind)


def _doc(source: Callable[..., Any]) -> str:
    """The docstring; of a NamedTuple that takes its fields from another, that one's after its own."""
    parts = [part for part in inspect.getmro(source) if hasattr(part, "_fields")] if inspect.isclass(source) else []
    return "\n".join(inspect.getdoc(part) or "" for part in parts or [source])


def _written(default: Any) -> Any:
    """A default as it would be written down: a dtype by its name."""
    return default if isinstance(default, (*_PLAIN, tuple)) or default is REQUIRED else default.__name__
