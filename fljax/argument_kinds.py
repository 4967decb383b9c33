"""Arguments of the library's own types, and functions, which public functions check by their annotations.

Importing this does not start JAX.
"""

import functools
import inspect
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from fljax.choices import check_choices, check_kind, short_repr

F = TypeVar("F", bound=Callable[..., Any])

REMEDIES = {
    "Algorithm": "make one with a method, as fljax.fedavg(model, work)",
    "ClientData": "give a split, such as federation.train or federation.test",
    "Combine": "give one of fljax.rounds, such as fljax.rounds.median",
    "Examples": "give fljax.Examples(x, y)",
    "Federation": "make one with fljax.PARTITIONS, fljax.federation_from_arrays or fljax.own_data(...).federation()",
    "Model": "make one by fljax.MODELS, fljax.from_linen, from_nnx or from_functions",
    "ModelTable": "give those of fljax.deployed or of fljax.load_run, or fljax.ModelTable(params, row)",
    "Rule": "give fljax.Rule(begin, before, after)",
    "Sampling": "make one by fljax.rounds: uniform(0.5), by_size, power_of_choice, oort, poisson, table",
    "SamplingMemory": "give fljax.rounds.SamplingMemory(init, update)",
    "Sharing": "give one of fljax.rounds, such as fljax.rounds.all_but(layers)",
    "Transform": "give fljax.rounds.uplink.Transform(apply)",
    "Work": "give one, as fljax.Work(epochs=1, batch_size=32)",
}
"""Type of the library -> how to get one."""
OF_FUNCTIONS = ("Combine", "Rule", "Sampling", "SamplingMemory", "Sharing", "Transform")
"""Types in `REMEDIES` whose fields are checked too, because they are the functions of a slot."""
MISPLACED = {
    "Brick": "a brick is added to a method, as fljax.fedavg + brick",
    "Model": "give fljax.client.training_loss(model) if its loss is meant",
}
"""Type of the library that is given in place of a function -> what to do instead."""


class Allowed(NamedTuple):
    """What an argument may be."""

    kinds: tuple[type, ...]  # types in `REMEDIES`
    is_function: bool = False  # a function too
    or_none: bool = False
    form: str = ""  # of that function, from the docstring: "(key) -> params"


def checked_kinds(function: F) -> F:
    """Decorator: refuses an argument that is not of the types in `REMEDIES`, or the function, that its annotation
    allows, or not one of its `Literal`s (see `check_choices`).

    The function raises a ValueError that names the argument, what was given and how to get what is allowed.
    """
    names = [name for name, one in inspect.signature(function).parameters.items() if one.kind in _POSITIONAL]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        allowed = allowed_of(function)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, value in given.items():
            if name in allowed:
                check_allowed(name, value, allowed[name])
        check_choices(function, given)
        return function(*args, **kwargs)

    return call  # pyrefly: ignore[bad-return]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_own_kind(name: str, value: Any, kind: type) -> None:
    """Raises ValueError if ``value`` is not of ``kind``, a type in `REMEDIES`."""
    is_uncalled = kind.__name__ == "Algorithm" and hasattr(value, "factory")  # a `fljax.rounds.Method`
    remedy = f"call it: fljax.{value.name}(model, work)" if is_uncalled else REMEDIES[kind.__name__]
    check_kind(name, value, kind, remedy)


def check_allowed(name: str, value: Any, allowed: Allowed) -> None:
    """Raises ValueError if ``value``, or a field of it that is a function of a slot, is not what is allowed, or is a
    function of other arguments."""
    if value is None and allowed.or_none:
        return
    if isinstance(value, allowed.kinds):
        for field, of_field in allowed_of(type(value)).items() if type(value).__name__ in OF_FUNCTIONS else ():
            check_allowed(f"{name}.{field}", getattr(value, field), of_field)
    elif not allowed.is_function:
        check_own_kind(name, value, allowed.kinds[0])
    elif not _is_function(value):
        what = " or a ".join([*(kind.__name__ for kind in allowed.kinds), "function"])
        remedies = [*(REMEDIES[kind.__name__] for kind in allowed.kinds), allowed.form or "a function"]
        remedy = ", or ".join(remedies) if allowed.kinds else f"give {remedies[0]}"
        remedy = MISPLACED.get(type(value).__name__, remedy)
        raise ValueError(f"{name} is {short_repr(value)}, not a {what}; {remedy}")
    else:
        _check_arguments(name, value, allowed.form)


def _check_arguments(name: str, function: Callable[..., Any], form: str) -> None:
    """Raises ValueError if ``function`` cannot be called with as many arguments as its ``form`` has.

    A form with ``*`` is not checked.
    """
    if (arguments := re.match(r"\(([^()*]*)\) ->", form)) is None:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not Python's
        return
    try:
        signature.bind(*arguments[1].split(", "))
    except TypeError:
        taken = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        function_name = getattr(function, "__name__", "it")
        raise ValueError(f"{name} is called with ({arguments[1]}), but {function_name} takes ({taken})") from None


def _is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether ``value`` can be called, and is neither a class nor a `fljax.rounds.Method`."""
    return callable(value) and not isinstance(value, type) and not hasattr(value, "factory")


@functools.cache
def allowed_of(function: Callable[..., Any]) -> dict[str, Allowed]:
    """What each argument, or each field of a class, may be, if its annotation allows nothing but functions, types in
    `REMEDIES` and None."""
    allowed = {}
    for name, hint in get_type_hints(inspect.unwrap(function)).items():
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        others = [part for part in parts if part is not NoneType]
        kinds = [part for part in others if _is_own(part)]
        functions = [part for part in others if get_origin(part) is Callable]
        if name != "return" and others and len(kinds) + len(functions) == len(others):
            allowed[name] = Allowed(tuple(kinds), bool(functions), NoneType in parts, _form(function, name))
    return allowed


def _is_own(hint: Any) -> bool:
    return isinstance(hint, type) and hint.__module__.startswith("fljax.") and hint.__name__ in REMEDIES


def _form(function: Callable[..., Any], name: str) -> str:
    """The form of a function in a docstring: ``(key) -> params`` of an entry ``begin: ``(key) -> params``, ...``."""
    match = re.search(rf"\b{name}: ``([^`]*->[^`]*)``|``{name}(\([^`]*->[^`]*)``", inspect.getdoc(function) or "")
    return "" if match is None else (match[1] or match[2]).removeprefix(name)
