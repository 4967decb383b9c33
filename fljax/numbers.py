"""Numbers as data: a method's numbers are a frozen dataclass whose fields say meaning, range and default once.

The dataclass is a pytree, so `jit`, `vmap` and `scan` see its numbers. A field that is None leaves its term out of the
program. Whatever reads a number (Python, TOML, the command line, help texts, generated tests) reads these fields.
"""

import dataclasses
import types
from functools import cache, reduce
from typing import Any, NamedTuple, TypeVar, dataclass_transform, get_args

import jax
import numpy as np
from jax import Array

Scalar = Array | float
"""A number that a program takes as an argument: a Python or NumPy number, or an array of shape ()."""

T = TypeVar("T")

_LARGEST = float(np.finfo(np.float32).max)
_METADATA = "number"


class Number(NamedTuple):
    """What a field says of itself."""

    default: float | None
    meaning: str
    above: float | None
    least: float | None
    below: float | None
    most: float | None
    infinite: bool  # whether infinity is allowed
    optional: bool = False  # whether None is allowed: the term is then left out

    @property
    def allowed(self) -> str:
        """The range in words: "> 0", "in [0, 1)"; "" where every number is allowed."""
        low = self.above if self.least is None else self.least
        high = self.below if self.most is None else self.most
        if low is not None and high is not None:
            return f"in {'(' if self.least is None else '['}{low:g}, {high:g}{')' if self.most is None else ']'}"
        if low is not None:
            return f"{'>' if self.least is None else '>='} {low:g}"
        if high is not None:
            return f"{'<' if self.most is None else '<='} {high:g}"
        return ""

    @property
    def help(self) -> str:
        """Meaning and range in one line."""
        return ", ".join(part for part in (self.meaning, self.allowed) if part)

    def holds(self, value: float) -> bool:
        """Whether ``value`` is in the range."""
        return (
            (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
        )


def number(
    default: float | None,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> Any:
    """A field of a Hyper class.

    Args:
        default: used where none is given. None leaves the term out of the program.
        meaning: what the number is, in one line; None's meaning too, where None is allowed.
        above: the number must be greater.
        least: the number must be at least this.
        below: the number must be less.
        most: the number must be at most this.
        infinite: whether infinity is allowed, as a threshold that is never reached.
    """
    stated = Number(default, meaning, above, least, below, most, infinite)
    return dataclasses.field(default=default, metadata={_METADATA: stated})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(number,))
def hyper(cls: type[T]) -> type[T]:
    """Makes a class of `number` fields a frozen, keyword-only dataclass and a pytree whose leaves are the numbers."""
    stated_doc = cls.__doc__ or ""
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    jax.tree_util.register_dataclass(made, [field.name for field in dataclasses.fields(made)], [])
    lines = [f"    {name}: {given.help}." for name, given in numbers_of(made).items()]
    made.__doc__ = "\n".join([stated_doc.rstrip(), "", "Fields:", *lines])
    return made


def is_hyper(value: Any) -> bool:
    """Whether ``value`` is the numbers of a method, or a class of them."""
    return dataclasses.is_dataclass(value) and all(_METADATA in field.metadata for field in dataclasses.fields(value))


@cache
def numbers_of(kind: type) -> dict[str, Number]:
    """The fields of a Hyper class by name, inherited ones first."""
    return {
        field.name: field.metadata[_METADATA]._replace(optional=_takes_none(field))
        for field in dataclasses.fields(kind)
        if _METADATA in field.metadata
    }


def _takes_none(field: dataclasses.Field) -> bool:
    return field.default is None or types.NoneType in get_args(field.type)


def as_dict(hyper: Any) -> dict[str, Any]:
    """The numbers by name, not copied."""
    return {field.name: getattr(hyper, field.name) for field in dataclasses.fields(hyper)}


def replace(hyper: T, **numbers: Any) -> T:
    """``hyper`` with some numbers changed.

    Raises:
        ValueError: a name that is no field.
    """
    if unknown := numbers.keys() - as_dict(hyper).keys():
        raise ValueError(f"{type(hyper).__name__} has no field {min(unknown)!r}; it has {', '.join(as_dict(hyper))}")
    return dataclasses.replace(hyper, **numbers)  # pyright: ignore[reportArgumentType]


@cache
def joined(*kinds: type) -> type:
    """One Hyper class with the fields of several, those of the first ones first.

    Raises:
        ValueError: two of them have a field of the same name.
    """

    def join(first: type, second: type) -> type:
        if shared := numbers_of(first).keys() & numbers_of(second).keys():
            raise ValueError(f"{first.__name__} and {second.__name__} both have a number {min(shared)!r}; use one")
        doc = f"{(first.__doc__ or '').partition(chr(10))[0].rstrip('.')}, with those of {second.__name__}."
        # Fields of the last base come first in a dataclass.
        name = first.__name__.removesuffix("Hyper") + second.__name__
        return hyper(type(name, (second, first), {"__doc__": doc, "__module__": first.__module__}))

    return reduce(join, kinds)


def check_numbers(given: Any, *, stacked: bool = False) -> None:
    """Checks every number against what its field allows; tracers and shapes without values pass.

    Args:
        given: the numbers of a method.
        stacked: whether a field may hold an array of numbers, as the points of a sweep do.

    Raises:
        ValueError: naming the first field that is not allowed, what it was and what it may be.
    """
    if not is_hyper(given) or isinstance(given, type):
        raise ValueError(f"hyper={given!r} is not a Hyper; give the numbers of the method, as method.Hyper(lr=0.1)")
    stated = numbers_of(type(given))
    for name, value in as_dict(given).items():
        check_number(name, value, stated[name], stacked=stacked)


def check_number(name: str, value: Any, stated: Number, *, stacked: bool = False) -> None:
    """`check_numbers` of one field."""
    if value is None:
        if not stated.optional:
            raise ValueError(f"{name}=None is not a number; choose {_choice(name, stated)}")
        return
    if isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    for one in _values(name, value, stacked):
        if np.isnan(one):
            raise ValueError(f"{name}={one:g} is not a number; choose {_choice(name, stated)}")
        if not stated.holds(one) or (np.isinf(one) and not stated.infinite):
            finite = "a finite number, " if np.isinf(one) else ""
            raise ValueError(f"{name}={one:g} is out of its range; choose {finite}{_choice(name, stated)}")
        if _LARGEST < abs(one) < np.inf:
            raise ValueError(f"{name}={one:g} is too large for float32; choose at most {_LARGEST:.3g}")


def _values(name: str, value: Any, stacked: bool) -> list[float]:
    if isinstance(value, list | tuple) and not stacked:
        raise ValueError(f"{name}={value} is not one number; give one, or try several with fljax.sweep")
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is not a number; give one") from None
    if array.ndim and not stacked:
        raise ValueError(f"{name}={value} is not one number; give one, or try several with fljax.sweep")
    return array.ravel().tolist()


def _choice(name: str, stated: Number) -> str:
    allowed = f"{name} {stated.allowed}" if stated.allowed else "any number"
    return f"{allowed}{', or None' if stated.optional else ''} ({stated.meaning})"


@hyper
class LearningRate:
    """A learning rate, and how it falls over the rounds."""

    lr: Scalar = number(0.05, "learning rate of the clients", above=0)
    lr_decay: Scalar | None = number(None, "factor on lr per round; None: constant", above=0, most=1)

    replace = replace

    def lr_of(self, round: Array) -> Scalar:
        """The learning rate of a round, counted from 0: ``lr * lr_decay ** round``."""
        return self.lr if self.lr_decay is None else self.lr * self.lr_decay ** round.astype("float32")


@hyper
class LocalHyper(LearningRate):
    """Numbers of the clients' optimiser."""

    momentum: Scalar | None = number(None, "momentum of the clients' SGD; None: none", least=0, below=1)
    weight_decay: Scalar | None = number(None, "weight decay of the clients' optimiser; None: none", least=0)
