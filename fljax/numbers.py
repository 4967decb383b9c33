"""Hyperparameters as data: a frozen dataclass per method, whose fields state meaning, range and default once.

The dataclass is a pytree, so `jit`, `vmap` and `scan` trace its hyperparameters. A field that is None leaves its term
out of the program. All readers (Python, TOML, the command line, help texts, generated tests) use these fields.
"""

import copyreg
import dataclasses
import types
from collections.abc import Callable, Iterable
from functools import cache, reduce, wraps
from typing import Any, Self, TypeVar, dataclass_transform, get_args

import jax
from jax import Array

from fljax.ranges import Number, check_not_below, check_number, said

Scalar = Array | float
"""A number that is an argument of a program: a Python or NumPy number, or an array of shape ()."""

T = TypeVar("T")

_METADATA = "number"
NO_HYPER = "is not a class of hyperparameters; write @fljax.hyper above it"
"""What is said of another value in the place of a Hyper class."""


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
    """A field of a Hyper class: one hyperparameter.

    Args:
        default: default value; None leaves the term out of the program.
        meaning: its meaning, in one line; the meaning of None too, if None is allowed.
        above: the number must be greater.
        least: the number must be at least this.
        below: the number must be less than this.
        most: the number must be at most this.
        infinite: whether infinity is allowed, for example as a threshold that is never reached.
        not_below: the name of another field of the class, which is the lower limit of this one.
        whole: whether it is a count, a whole number.
    """
    definition = Number(default, meaning, above, least, below, most, infinite, not_below=not_below, whole=whole)
    return dataclasses.field(default=default, metadata={_METADATA: definition})


@dataclass_transform(frozen_default=True, kw_only_default=True)  # `number` is a default, as any value would be
def hyper(cls: type[T]) -> type[T]:
    """Converts a class of `number` fields to a frozen, keyword-only dataclass and pytree; its fields are the leaves.

    An unknown name is a ValueError that lists the class's fields. The docstring is followed by the fields; without one,
    that of ``FedProxHyper`` is "Hyperparameters of FedProx."
    """
    if not isinstance(cls, type):
        raise ValueError(f"@hyper stands above {cls!r}; it takes a class whose fields are made by fljax.number")
    stated_doc = cls.__doc__ or f"Hyperparameters of {cls.__name__.removesuffix('Hyper')}."
    hyper_class: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    if undefined := [field.name for field in dataclasses.fields(hyper_class) if _METADATA not in field.metadata]:
        raise ValueError(
            f"{cls.__name__}.{undefined[0]} has neither meaning nor range; write {undefined[0]}: fljax.Scalar = "
            "fljax.number(default, meaning)"
        )
    hyper_class.__init__ = _checked_init(hyper_class)
    _register(hyper_class)
    lines = [f"    {name}: {definition.help}." for name, definition in numbers_of(hyper_class).items()]
    hyper_class.__doc__ = "\n".join([stated_doc.rstrip(), "", "Fields:", *lines])
    return hyper_class


def _register(kind: Any) -> None:
    """Makes a dataclass a pytree with its fields as children.

    `jax.tree_util.register_dataclass` would do so too, but by it the structures of all classes with as many fields are
    equal, and a jitted function may return what it has kept for another class (JAX 0.10.2).
    """
    names = [field.name for field in dataclasses.fields(kind)]
    keys = [jax.tree_util.GetAttrKey(name) for name in names]

    def flatten(instance: Any) -> tuple[list[Any], tuple[()]]:
        return [getattr(instance, name) for name in names], ()

    def flatten_with_keys(instance: Any) -> tuple[list[Any], tuple[()]]:
        return list(zip(keys, flatten(instance)[0], strict=True)), ()

    def unflatten(_: tuple[()], values: Iterable[Any]) -> Any:
        return kind(**dict(zip(names, values, strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


def _checked_init(kind: Any) -> Callable[..., None]:
    """The ``__init__`` of a dataclass, with an error for unknown names that lists the fields, as in `replace`."""
    init = kind.__init__

    @wraps(init)
    def __init__(self: Any, **numbers: Any) -> None:
        _check_names(kind, numbers)
        init(self, **numbers)

    return __init__


def _check_names(kind: type, names: Iterable[str]) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    if unknown_names := set(names).difference(fields):
        raise ValueError(f"{kind.__name__} has no field {min(unknown_names)!r}; choose one of {', '.join(fields)}")


def is_hyper(value: Any) -> bool:
    """Whether ``value`` is a Hyper, or a class of them made by `hyper`."""
    kind = value if isinstance(value, type) else type(value)
    if "__dataclass_fields__" not in vars(kind):  # only its base class has been decorated
        return False
    return all(_METADATA in field.metadata for field in dataclasses.fields(kind))


@cache
def numbers_of(kind: type) -> dict[str, Number]:
    """The fields of a Hyper class by name, inherited fields first."""
    return {
        field.name: field.metadata[_METADATA]._replace(optional=_takes_none(field))
        for field in dataclasses.fields(kind)
        if _METADATA in field.metadata
    }


def _takes_none(field: dataclasses.Field) -> bool:
    return field.default is None or types.NoneType in get_args(field.type)


def as_dict(hyper: Any) -> dict[str, Any]:
    """The hyperparameters by name, not copied.

    Raises:
        ValueError: ``hyper`` is neither a Hyper nor another dataclass.
    """
    if not dataclasses.is_dataclass(hyper):
        raise _no_hyper_error(hyper)
    return {field.name: getattr(hyper, field.name) for field in dataclasses.fields(hyper)}


def check_hyper(value: Any) -> None:
    """Raises ValueError if ``value`` is not a Hyper."""
    if not is_hyper(value) or isinstance(value, type):
        raise _no_hyper_error(value)


def _no_hyper_error(value: Any) -> ValueError:
    """The error for a value that is not a Hyper."""
    if isinstance(value, list | tuple) and value and all(map(is_hyper, value)):
        return ValueError(
            f"hyper is a {type(value).__name__} of {len(value)} Hypers; give one, or call fljax.sweep with "
            "fljax.run.sweep.stack([...]) of them, or with grid(hyper, lr=(0.01, 0.1))"
        )
    return ValueError(f"{said('hyper', value)} is not a Hyper; give hyperparameters, as method.Hyper(lr=0.1)")


def replace(hyper: T, **numbers: Any) -> T:
    """``hyper`` with some fields replaced.

    Raises:
        ValueError: a name is not a field, or ``hyper`` is neither a Hyper nor another dataclass.
    """
    if not dataclasses.is_dataclass(hyper):
        raise _no_hyper_error(hyper)
    _check_names(type(hyper), numbers)
    return dataclasses.replace(hyper, **numbers)  # pyrefly: ignore[bad-specialization]


@cache
def joined(*kinds: type) -> type:
    """One Hyper class with the fields of several classes, in their order.

    Raises:
        ValueError: two classes have a field of the same name.
    """

    def join(first: type, second: type) -> type:
        if common := numbers_of(first).keys() & numbers_of(second).keys():
            raise ValueError(
                f"{first.__name__} and {second.__name__} both have a hyperparameter {min(common)!r}; use one of them"
            )
        doc = f"{(first.__doc__ or '').partition(chr(10))[0].rstrip('.')}, and those of {second.__name__}."
        # Fields of the last base come first in a dataclass.
        name = first.__name__.removesuffix("Hyper") + second.__name__
        joined_class = hyper(type(name, (second, first), {"__doc__": doc, "__module__": first.__module__}))
        _joined_of[joined_class] = first, second
        copyreg.pickle(joined_class, _pickled)  # pickle would search for the class by name, but no module has it
        return joined_class

    return reduce(join, kinds)


_joined_of: dict[type, tuple[type, type]] = {}


def _pickled(instance: Any) -> tuple[Any, ...]:
    return _remade, (_recipe(type(instance)), as_dict(instance))


def _recipe(kind: type) -> Any:
    """The named classes that ``kind`` is joined from, as nested pairs."""
    return tuple(map(_recipe, _joined_of[kind])) if kind in _joined_of else kind


def _remade(recipe: Any, numbers: dict[str, Any]) -> Any:
    return _class_of(recipe)(**numbers)


def _class_of(recipe: Any) -> type:
    return joined(*map(_class_of, recipe)) if isinstance(recipe, tuple) else recipe


def check_numbers(given: Any, *, stacked: bool = False) -> None:
    """Checks every hyperparameter against its field's range; tracers and shapes without values pass.

    Args:
        given: a Hyper.
        stacked: whether a field may hold an array of numbers, as for the points of a sweep.

    Raises:
        ValueError: names the first field with an invalid value, the value, and the allowed range.
    """
    check_hyper(given)
    definitions = numbers_of(type(given))
    for name, value in as_dict(given).items():
        check_number(name, value, definitions[name], stacked=stacked)
        if (bound_name := definitions[name].not_below) is not None:
            check_not_below(name, value, definitions[name], getattr(given, bound_name))


@hyper
class LearningRate:
    """A learning rate, and its decay over the rounds."""

    lr: Scalar = number(0.05, "learning rate of the clients", above=0)
    lr_decay: Scalar | None = number(None, "factor on lr per round; None: constant", above=0, most=1)

    replace = replace

    def with_lr(self, lr: Scalar | None) -> Self:
        """The same hyperparameters with another learning rate; None: unchanged."""
        return self if lr is None else self.replace(lr=lr)

    def lr_of(self, round: Array) -> Scalar:
        """The learning rate of a round, counted from 0: ``lr * lr_decay ** round``."""
        return self.decayed(self.lr, round)

    def decayed(self, rate: Scalar, round: Array) -> Scalar:
        """``rate * lr_decay ** round``: another rate with the same decay as the learning rate."""
        return rate if self.lr_decay is None else rate * self.lr_decay ** round.astype("float32")


@hyper
class LocalHyper(LearningRate):
    """Hyperparameters of the clients' optimiser."""

    momentum: Scalar | None = number(None, "momentum of the clients' SGD; None: none", least=0, below=1)
    weight_decay: Scalar | None = number(None, "weight decay of the clients' optimiser; None: none", least=0)
