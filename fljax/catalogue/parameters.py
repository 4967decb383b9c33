"""Settings as typed parameters, read from signatures, docstrings and the fields of a Hyper class."""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from fljax.catalogue.words import Kind, kind_of, metavar, read, shown, words_of
from fljax.ranges import Number, check_number

REQUIRED = ("", "required")
"""Stands for the default of a parameter that has none."""


class Parameter(NamedTuple):
    """One setting of the command line and of TOML."""

    kind: Kind
    default: Any
    help: str
    number: Number | None = None  # of a float: its range

    def read(self, name: str, words: Sequence[str]) -> Any:
        """The value of ``words``.

        Raises:
            ValueError: in one line: the words are of another type, or the value is out of range.
        """
        value = read(name, words, self.kind)
        if self.number is not None:
            check_number(name.rpartition(".")[2], value, self.number)
        elif not all(map(math.isfinite, _floats(value))):
            raise ValueError(f"{shown(name, words)}: give a finite number")
        return value

    @property
    def metavar(self) -> str:
        """The type as help shows it."""
        return metavar(self.kind)


Section = dict[str, Parameter]
"""Name -> parameter."""
Schema = dict[str, Section]
"""Section name -> its parameters; the section "" holds the run's own."""


def parameters(source: Callable[..., Any], leave_out: Collection[str] = ()) -> Section:
    """The parameters of a function, or the fields of a NamedTuple, whose types can be written as words.

    The help is the entry ``name: text`` of the docstring, else its first sentence that begins with the name.
    """
    function = inspect.unwrap(source)
    hints, doc = get_type_hints(function, include_extras=True), inspect.getdoc(function) or ""
    section = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = () if name in leave_out else kind_of(hints.get(name))
        if kind:
            help = description(doc, name)
            default = REQUIRED if parameter.default is inspect.Parameter.empty else _default_as_data(parameter.default)
            section[name] = Parameter(kind, default, help, _range(hints[name], help))
    return section


def numbers(Hyper: type | None) -> Section:
    """The hyperparameters of a method or of a brick."""
    from fljax.numbers import numbers_of  # imports JAX, which the class has imported already

    definitions = {} if Hyper is None else numbers_of(Hyper)
    kinds: dict[bool, Kind] = {False: (("float",),), True: (("float",), ("none",))}
    return {
        name: Parameter(kinds[definition.optional], definition.default, definition.help, definition)
        for name, definition in definitions.items()
    }


def defaults(section: Section) -> str:
    """``n_clients  beta=0.5``: a parameter without a default is its name alone."""
    return "  ".join(
        name if parameter.default == REQUIRED else f"{name}={' '.join(words_of(parameter.default))}"
        for name, parameter in section.items()
    )


def description(doc: str, name: str) -> str:
    """The description of a parameter in a docstring, in one line; "" if there is none."""
    entry = re.search(rf"^( *){name}: (.+(?:\n\1 +.+)*)", doc, re.MULTILINE)
    sentence = re.search(rf"(?:^|\.\s+)``{name}`` (?:is )?(.+?)\.(?:\s|$)", doc, re.DOTALL | re.MULTILINE)
    text = entry[2] if entry else sentence[1] if sentence else ""
    return re.sub(r"\s+", " ", text).replace("``", "").rstrip(".")


def _range(annotation: Any, help: str) -> Number | None:
    """The range of a float, if its annotation has one."""
    for part in (annotation, *get_args(annotation)):
        ranges = [mark for mark in getattr(part, "__metadata__", ()) if isinstance(mark, Number)]
        if get_origin(part) is Annotated and ranges:
            return ranges[0]._replace(meaning=help, optional=part is not annotation)
    return None


def _default_as_data(default: Any) -> Any:
    """A default as plain data: a dtype as its name."""
    is_plain = default is None or isinstance(default, int | float | str | bool | tuple)
    return default if is_plain else getattr(default, "__name__", str(default))


def _floats(value: Any) -> Iterator[float]:
    for part in value if isinstance(value, tuple) else [value]:
        if isinstance(part, tuple):
            yield from _floats(part)
        elif isinstance(part, float):
            yield part
