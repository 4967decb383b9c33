"""A method as an object: a factory with its paper and its hyperparameters, and the bricks that fit its slots."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, get_args, overload

import numpy as np
from jax import Array

from fljax.argument_kinds import check_own_kind
from fljax.choices import check_choices, check_kind, is_hashable, plain
from fljax.client.augment import augmented
from fljax.client.steps import check_work
from fljax.data.federation import as_inputs
from fljax.models.calling import check_model
from fljax.numbers import NO_HYPER, LocalHyper, hyper, is_hyper, joined, numbers_of
from fljax.rounds.around import surrounded
from fljax.rounds.documented import documented
from fljax.rounds.fitting import check_distinct, check_fits
from fljax.rounds.local import checking_terms
from fljax.rounds.slots import Brick, Slot, check_brick
from fljax.types import About, Algorithm, Model, Params, Work

Kind = Literal["baseline", "one model", "personalised", "clustered"]
"""What clients get from a method: training alone, one global model, personal models, or one model per cluster."""

KINDS: tuple[Kind, ...] = ("baseline", "one model", "personalised", "clustered")

P = ParamSpec("P")  # the arguments of a method's factory: model, work and static choices
H = TypeVar("H")  # its class of hyperparameters


@dataclass(eq=False, repr=False)
class Method(Generic[P, H]):
    """A method, such as ``fljax.ifca``: ``fljax.ifca(model, work, n_clusters=4)``, ``fljax.ifca.Hyper(lr=0.1)``.

    Called with a model, local work and static choices, it returns the `Algorithm`; equal arguments return the same
    object. ``method + brick`` is the method with the brick in its slot. To type checkers it has the arguments of its
    factory and its own class of hyperparameters.
    """

    factory: Callable[P, Algorithm]
    Hyper: type[H]
    paper: str
    link: str
    kind: Kind
    bricks: tuple[Brick, ...]
    sends: bool | None
    trains: bool = True
    heterogeneous: bool = False

    def __post_init__(self) -> None:
        update_wrapper(self, self.factory)
        self.name = "+".join([self.factory.__name__, *(brick.name for brick in self.bricks)])
        self._made: dict[Any, Algorithm] = {}

    def __call__(self, *args: P.args, **choices: P.kwargs) -> Algorithm:
        """The algorithm.

        Raises:
            ValueError: a static choice is unknown or out of its range, ``work`` has a number that is not a whole number
                above 0, the model's layers are not those of its parameters, or clients would have different networks
                (`fljax.models.heterogeneous`) in a method that combines whole ones.
        """
        signature = inspect.signature(self.factory)
        if unknown := [name for name in choices if name not in signature.parameters]:
            names = ", ".join(name for name in signature.parameters if name not in ("model", "work")) or "none"
            raise ValueError(
                f"{self.name} has no static choice {unknown[0]!r}; its static choices: {names}; hyperparameters belong "
                "to its Hyper"
            )
        try:
            bound = signature.bind(*args, **choices)
        except TypeError as error:
            raise TypeError(f"{self.name}({', '.join(signature.parameters)}): {error}") from None
        model, work = bound.arguments["model"], bound.arguments["work"]
        check_own_kind("model", model, Model)
        check_work(work)
        if model.n_networks > 1 and not self.heterogeneous:
            raise ValueError(
                f"{self.name}: clients have {model.n_networks} different networks, and it combines whole networks; "
                "choose a method that does not, such as fedproto, fedmd or lg_fedavg"
            )
        bound.apply_defaults()
        # A scalar of NumPy is converted to its number, so that it does not recompile.
        bound.arguments |= {name: one.item() for name, one in bound.arguments.items() if isinstance(one, np.generic)}
        check_choices(self.factory, bound.arguments)
        for name, value in bound.arguments.items():
            if not is_hashable(value):
                kind = type(value).__name__
                raise ValueError(f"{self.name}: {name} is of type {kind}, which is mutable; give a tuple")
        cache_key = tuple((_types(value), value) for value in bound.arguments.values())
        if cache_key not in self._made:
            self._made[cache_key] = self._make(model, work, dict(bound.arguments))
        return self._made[cache_key]

    def _make(self, model: Model, work: Work, arguments: dict[str, Any]) -> Algorithm:
        check_model(model)
        static = {name: value for name, value in arguments.items() if name not in ("model", "work")}
        is_usual = "combine" not in static or static["combine"] == self.static["combine"].default
        of_slot = {slot: [brick for brick in self.bricks if brick.slot == slot] for slot in get_args(Slot)}
        # Augmentation comes outside of all other terms: they see one version of an example, dp_sgd each example's own.
        terms = {brick.name: brick.value for brick in of_slot["loss"]}
        terms |= {brick.name: augmented(brick.value) for brick in of_slot["augment"]}
        filled = dict(static)
        for brick in of_slot["combine"]:
            if not is_usual:
                raise ValueError(f"{self.name}: {brick.name} would replace combine={static['combine']}; leave one out")
            filled["combine"] = brick.value
        for brick in of_slot["server"]:
            filled["combine"] = brick.value(filled["combine"])
        factory: Callable[..., Algorithm] = self.factory
        algorithm = factory(model, work._replace(terms=(*work.terms, *terms.values())), **filled)
        check_kind(
            f"what the function of {self.name} returns", algorithm, Algorithm, "return one, as fljax.averaging does"
        )
        shown = {name: value for name, value in static.items() if name != "combine" or not is_usual}
        choices = tuple((name, _as_hashable(plain(value))) for name, value in shown.items())
        # A user's function in the slot may read hyperparameters that this method's class does not have.
        about = About(self.name, choices, work, model.about, tuple(numbers_of(self.Hyper)) if is_usual else ())
        # A method that only adds an end to another one, such as fine-tuning, keeps its `about`.
        predict = algorithm.predict if isinstance(algorithm.predict, _OfExamples) else _OfExamples(algorithm.predict)
        algorithm = algorithm._replace(about=about, predict=predict)
        if terms:
            algorithm = checking_terms(algorithm, terms)
        return surrounded(algorithm, of_slot)._replace(about=about)

    def __add__(self, brick: Brick) -> "Method[P, Any]":
        """The method with a brick in its slot.

        Raises:
            ValueError: the method has no such slot or already has such a hyperparameter, or ``brick`` is not a brick.
        """
        if isinstance(brick, str):
            check_kind("brick", brick, Brick, f"give one, or write fljax.compose({f'{self.name}+{brick}'!r})")
        check_brick(brick)
        check_fits(self, brick)
        Hyper = self.Hyper if brick.Hyper is None else joined(self.Hyper, brick.Hyper)
        return replace(self, Hyper=Hyper, bricks=(*self.bricks, brick))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that bricks can fill."""
        # A method whose clients do not train by gradient steps on a loss cannot take a term on it.
        trains, combines = self.trains and issubclass(self.Hyper, LocalHyper), "combine" in self.static
        sends = combines if self.sends is None else self.sends
        single = combines and self.kind in ("one model", "personalised")  # clustered methods start from several models
        exists: dict[Slot, bool] = {
            "loss": trains,
            "augment": trains,
            "uplink": sends,
            "downlink": single,
            "combine": combines,
            "server": combines,
            "schedule": True,
            "algorithm": True,
        }
        return tuple(slot for slot, does_exist in exists.items() if does_exist)

    @cached_property
    def static(self) -> dict[str, inspect.Parameter]:
        """The static choices: the factory's parameters except model and work."""
        parameters = inspect.signature(self.factory).parameters
        return {name: parameter for name, parameter in parameters.items() if name not in ("model", "work")}

    @property
    def title(self) -> str:
        """The paper's name for it, and its bricks."""
        return " + ".join([self._first_line.partition(":")[0], *(brick.name for brick in self.bricks)])

    @property
    def summary(self) -> str:
        """The method in a few words."""
        return self._first_line.partition(": ")[2].rstrip(".")

    @cached_property
    def _first_line(self) -> str:
        """First line of the docstring of the method's file if the file has its name, otherwise of the function."""
        module = sys.modules.get(self.factory.__module__)
        of_file = module is not None and Path(module.__name__).name.rpartition(".")[2] == self.factory.__name__
        return (inspect.getdoc(module if of_file else self.factory) or self.factory.__name__).partition("\n")[0]

    def __repr__(self) -> str:
        return f"<method {self.name}>"


AnyMethod = Method[..., Any]
"""A method whose static choices and hyperparameters are not known to type checkers, as one that is found by name."""


class _Decorator(Protocol[H]):
    """What `method` returns: it makes a factory a `Method` with these hyperparameters."""

    def __call__(self, factory: Callable[P, Algorithm], /) -> Method[P, H]: ...


@overload
def method(
    Hyper: type[H],
    paper: str = ...,
    link: str = ...,
    *,
    kind: Kind = ...,
    sends: bool | None = ...,
    trains: bool = ...,
    heterogeneous: bool = ...,
) -> _Decorator[H]: ...
@overload
def method(
    *,
    paper: str = ...,
    link: str = ...,
    kind: Kind = ...,
    sends: bool | None = ...,
    trains: bool = ...,
    heterogeneous: bool = ...,
) -> _Decorator[LocalHyper]: ...
@overload
def method(Hyper: Callable[P, Algorithm], /) -> Method[P, LocalHyper]: ...
def method(
    Hyper: Any = LocalHyper,
    paper: str = "",
    link: str = "",
    *,
    kind: Kind = "one model",
    sends: bool | None = None,
    trains: bool = True,
    heterogeneous: bool = False,
) -> Any:
    """Makes a factory ``(model, work, **static choices) -> Algorithm`` a `Method`; used as a decorator.

    The name is the function's; title and summary are the first line of its file's docstring, "FedProx: FedAvg with
    ...", or of the function's docstring if the file has another name. Static choices annotated as `Literal`, or as
    `Positive` or `Natural` of `fljax.choices`, are checked. An argument ``combine`` is the slot for the aggregation of
    received models. Arguments with the usual names need no entry in the docstring (`fljax.rounds.documented`).

    Args:
        Hyper: the class of its hyperparameters, see `fljax.numbers.hyper`.
        paper: authors, venue and year.
        link: to the paper.
        kind: what its clients get.
        sends: whether uplink bricks can change its updates, which needs `Algorithm.exchange`; None: if it has a slot
            ``combine``.
        trains: whether bricks can add terms to its clients' loss, as `fljax.rounds.train` does; False: it trains more
            than one model at once, which a term does not support.
        heterogeneous: whether clients can have different networks (`fljax.models.heterogeneous`): nothing but their
            last layer is combined, and clients start by ``fljax.models.starting_models`` or ``own_copies``.

    Raises:
        ValueError: ``Hyper`` is not a class of hyperparameters, the function's first arguments are not ``model`` and
            ``work``, or its static choices, its hyperparameters and the fields of `Work` share a name.
    """
    if inspect.isfunction(Hyper):  # "@method" without parentheses
        return method()(Hyper)
    if not (isinstance(Hyper, type) and is_hyper(Hyper)):
        raise ValueError(f"Hyper={Hyper!r} {NO_HYPER}")

    def made(factory: Callable[P, Algorithm]) -> Method[P, Any]:
        if (first := list(inspect.signature(factory).parameters)[:2]) != ["model", "work"]:
            raise ValueError(f"{factory.__name__}({', '.join(first)}): the first arguments of a method are model, work")
        factory.__doc__ = documented(factory)
        new_method = Method(factory, Hyper, paper, link, kind, (), sends, trains, heterogeneous)
        check_distinct(new_method.name, new_method.static, numbers_of(Hyper))
        return new_method

    return made


@dataclass(frozen=True)
class _OfExamples:
    """An `Algorithm.predict` that also takes examples as stored in a pool; those of a batch are scaled already."""

    predict: Callable[[Params, Array], Array]

    def __call__(self, params: Params, x: Array) -> Array:
        return self.predict(params, as_inputs(x))


def _types(value: Any) -> Any:
    """The type of a choice and of its parts: True, 1 and 1.0 are equal, but not the same choice."""
    return type(value), tuple(map(_types, value)) if type(value) is tuple else ()


def _as_hashable(value: Any) -> Any:
    return tuple(map(_as_hashable, value)) if isinstance(value, list) else value


__all__ = ["KINDS", "AnyMethod", "Brick", "Kind", "Method", "Slot", "hyper", "method"]
