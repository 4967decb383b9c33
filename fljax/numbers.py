"""Hyperparameters as data: a frozen dataclass per method, whose fields define meaning, range and default once.

The dataclass is a pytree, so its numbers are leaves for `jit`, `vmap` and `scan`. A field that is None leaves its term
out of the program. Everything that reads a number (Python, TOML, the command line, help texts, generated tests) uses
these fields.
"""

import copyreg
import dataclasses
import types
from collections.abc import Callable, Iterable
from functools import cache, reduce, wraps
from typing import Any, TypeVar, dataclass_transform, get_args

import jax
from jax import Array

from fljax.ranges import Number, check_not_below, check_number, said

Scalar = Array | float
"""A number that is a program's argument: a Python or NumPy number, or an array of shape ()."""

T = TypeVar("T")

_METADATA = "number"


def number(
    default: float | None,
    meaning: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
    not_below: str | None = None,
    whole: bool = False,
) -> Any:
    """A field of a Hyper class.

    Args:
        default: the default value. None leaves the term out of the program.
        meaning: the meaning of the number, in one line; also that of None, if None is allowed.
        above: the number must be greater than this.
        least: the number must be at least this.
        below: the number must be less than this.
        most: the number must be at most this.
        infinite: whether infinity is allowed, for example for a threshold that is never reached.
        not_below: the name of another number of the class; this one must not be less than it.
        whole: whether it is a count, without a fraction.
    """
    stated = Number(default, meaning, above, least, below, most, infinite, not_below=not_below, whole=whole)
    return dataclasses.field(default=default, metadata={_METADATA: stated})


@dataclass_transform(frozen_default=True, kw_only_default=True)  # `number` counts as a default like any value
def hyper(cls: type[T]) -> type[T]:
    """Makes a class of `number` fields a frozen, keyword-only dataclass and a pytree whose leaves are the numbers.

    The class rejects an unknown field by ValueError, with a list of its fields. ``FedProxHyper`` without a docstring
    gets "Hyperparameters of FedProx."; the fields are appended to every docstring.
    """
    if not isinstance(cls, type):
        raise ValueError(f"@hyper decorates {cls!r}; put it above a class whose fields are made with fljax.number")
    stated_doc = cls.__doc__ or f"Hyperparameters of {cls.__name__.removesuffix('Hyper')}."
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    if unsaid := [field.name for field in dataclasses.fields(made) if _METADATA not in field.metadata]:
        raise ValueError(
            f"{cls.__name__}.{unsaid[0]} has neither meaning nor range; write {unsaid[0]}: fljax.Scalar = "
            "fljax.number(default, meaning)"
        )
    made.__init__ = _by_known_names(made)
    jax.tree_util.register_dataclass(made, [field.name for field in dataclasses.fields(made)], [])
    lines = [f"    {name}: {given.help}." for name, given in numbers_of(made).items()]
    made.__doc__ = "\n".join([stated_doc.rstrip(), "", "Fields:", *lines])
    return made


def _by_known_names(kind: Any) -> Callable[..., None]:
    """The ``__init__`` of a dataclass; for an unknown name it lists the fields of the class, as `replace` does."""
    init = kind.__init__

    @wraps(init)
    def __init__(self: Any, **numbers: Any) -> None:
        _check_names(kind, numbers)
        init(self, **numbers)

    return __init__


def _check_names(kind: type, names: Iterable[str]) -> None:
    has = [field.name for field in dataclasses.fields(kind)]
    if unknown := set(names).difference(has):
        raise ValueError(f"{kind.__name__} has no field {min(unknown)!r}; choose one of {', '.join(has)}")


def is_hyper(value: Any) -> bool:
    """Whether ``value`` is a Hyper, or a class that `hyper` has made."""
    kind = value if isinstance(value, type) else type(value)
    if "__dataclass_fields__" not in vars(kind):  # it only inherits fields
        return False
    return all(_METADATA in field.metadata for field in dataclasses.fields(kind))


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
    """The numbers by name, not copied.

    Raises:
        ValueError: ``hyper`` is neither a Hyper nor another dataclass.
    """
    if not dataclasses.is_dataclass(hyper):
        raise _no_hyper(hyper)
    return {field.name: getattr(hyper, field.name) for field in dataclasses.fields(hyper)}


def _no_hyper(given: Any) -> ValueError:
    """The error for a value that is no Hyper."""
    if isinstance(given, list | tuple) and given and all(map(is_hyper, given)):
        return ValueError(
            f"hyper is a {type(given).__name__} of {len(given)} Hypers; give one, or call fljax.sweep with "
            "fljax.run.sweep.stack([...]) of them, or with grid(hyper, lr=(0.01, 0.1))"
        )
    return ValueError(f"{said('hyper', given)} is not a Hyper; give that of the method, such as method.Hyper(lr=0.1)")


def replace(hyper: T, **numbers: Any) -> T:
    """``hyper`` with some numbers changed.

    Raises:
        ValueError: a name is no field, or ``hyper`` is neither a Hyper nor another dataclass.
    """
    if not dataclasses.is_dataclass(hyper):
        raise _no_hyper(hyper)
    _check_names(type(hyper), numbers)
    return dataclasses.replace(hyper, **numbers)  # pyright: ignore[reportArgumentType]


@cache
def joined(*kinds: type) -> type:
    """One Hyper class with the fields of several classes, in their order.

    Raises:
        ValueError: two of them have a field of the same name.
    """

    def join(first: type, second: type) -> type:
        if shared := numbers_of(first).keys() & numbers_of(second).keys():
            raise ValueError(f"{first.__name__} and {second.__name__} both have a number {min(shared)!r}; use one")
        doc = f"{(first.__doc__ or '').partition(chr(10))[0].rstrip('.')}, with those of {second.__name__}."
        # Fields of the last base come first in a dataclass.
        name = first.__name__.removesuffix("Hyper") + second.__name__
        made = hyper(type(name, (second, first), {"__doc__": doc, "__module__": first.__module__}))
        _joined_of[made] = first, second
        copyreg.pickle(made, _pickled)  # pickle cannot find the class by its name, because no module has it
        return made

    return reduce(join, kinds)


_joined_of: dict[type, tuple[type, type]] = {}


def _pickled(given: Any) -> tuple[Any, ...]:
    return _remade, (_recipe(type(given)), as_dict(given))


def _recipe(kind: type) -> Any:
    """The named classes from which ``kind`` was joined, as nested pairs."""
    return tuple(map(_recipe, _joined_of[kind])) if kind in _joined_of else kind


def _remade(recipe: Any, numbers: dict[str, Any]) -> Any:
    return _made(recipe)(**numbers)


def _made(recipe: Any) -> type:
    return joined(*map(_made, recipe)) if isinstance(recipe, tuple) else recipe


def check_numbers(given: Any, *, stacked: bool = False) -> None:
    """Checks every number against the range of its field; tracers and shapes without values pass.

    Args:
        given: the Hyper of a method.
        stacked: whether a field may be an array of numbers, as in the points of a sweep.

    Raises:
        ValueError: a value is not allowed; the message has the field, the value and the range.
    """
    if not is_hyper(given) or isinstance(given, type):
        raise _no_hyper(given)
    stated = numbers_of(type(given))
    for name, value in as_dict(given).items():
        check_number(name, value, stated[name], stacked=stacked)
        if (other := stated[name].not_below) is not None:
            check_not_below(name, value, stated[name], getattr(given, other))


@hyper
class LearningRate:
    """A learning rate, and its decay over the rounds."""

    lr: Scalar = number(0.05, "learning rate of the clients", above=0)
    lr_decay: Scalar | None = number(None, "factor on lr per round; None: constant", above=0, most=1)

    replace = replace

    def lr_of(self, round: Array) -> Scalar:
        """The learning rate of a round, counted from 0: ``lr * lr_decay ** round``."""
        return self.decayed(self.lr, round)

    def decayed(self, rate: Scalar, round: Array) -> Scalar:
        """``rate * lr_decay ** round``: another rate with the decay of the learning rate."""
        return rate if self.lr_decay is None else rate * self.lr_decay ** round.astype("float32")


@hyper
class LocalHyper(LearningRate):
    """Hyperparameters of the clients' optimiser."""

    momentum: Scalar | None = number(None, "momentum of the clients' SGD; None: none", least=0, below=1)
    weight_decay: Scalar | None = number(None, "weight decay of the clients' optimiser; None: none", least=0)
