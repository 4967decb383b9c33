"""Arguments of the library's own types, which public functions check by their annotations.

Importing this does not start JAX.
"""

import functools
import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from fljax.choices import check_kind

F = TypeVar("F", bound=Callable[..., Any])

REMEDIES = {
    "Algorithm": "make one with a method, as fljax.fedavg(model, work)",
    "ClientData": "give a split, such as federation.train or federation.test",
    "Examples": "give fljax.Examples(x, y)",
    "Federation": "make one with fljax.PARTITIONS, fljax.federation_from_arrays or fljax.own_data(...).federation()",
    "Model": "make one by fljax.MODELS, fljax.from_linen, from_nnx or from_functions",
    "ModelTable": "give those of fljax.deployed or of fljax.load_run, or fljax.ModelTable(params, row)",
    "Work": "give one, as fljax.Work(epochs=1, batch_size=32)",
}
"""Type of `fljax.types` -> how to get one."""


def checked_kinds(function: F) -> F:
    """Decorator: refuses an argument that is not of the type in `REMEDIES` that its annotation names, or None if that
    allows it.

    The function raises a ValueError that names the argument, what was given and how to get what is allowed.
    """
    names = [name for name, one in inspect.signature(function).parameters.items() if one.kind in _POSITIONAL]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kinds = kinds_of(function)
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in kinds and not (value is None and kinds[name].or_none):
                check_own_kind(name, value, kinds[name].kind)
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_own_kind(name: str, value: Any, kind: type) -> None:
    """Raises ValueError if ``value`` is not of ``kind``, a type in `REMEDIES`."""
    is_uncalled = kind.__name__ == "Algorithm" and hasattr(value, "factory")  # a `fljax.rounds.Method`
    remedy = f"call it: fljax.{value.name}(model, work)" if is_uncalled else REMEDIES[kind.__name__]
    check_kind(name, value, kind, remedy)


class OneKind(NamedTuple):
    """What an argument may be."""

    kind: type
    or_none: bool


@functools.cache
def kinds_of(function: Callable[..., Any]) -> dict[str, OneKind]:
    """Argument -> what it may be, for those that the annotation allows one type in `REMEDIES` only."""
    kinds = {}
    for name, hint in get_type_hints(inspect.unwrap(function)).items():
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        types = [part for part in parts if part is not NoneType]
        is_own = len(types) == 1 and isinstance(types[0], type) and types[0].__module__ == "fljax.types"
        if name != "return" and is_own and types[0].__name__ in REMEDIES:
            kinds[name] = OneKind(types[0], or_none=len(parts) > 1)
    return kinds
