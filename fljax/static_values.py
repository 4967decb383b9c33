"""Functions of keywords that make a static value, such as a clock, an attack or a drift, with checked arguments.

Importing this does not start JAX.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints

from fljax.choices import check_choices
from fljax.ranges import check_stated

T = TypeVar("T")


def static_value(
    make: Callable[..., Any],
    finish: Callable[[Any, dict[str, Any]], T],
    beside: Callable[..., Any] = lambda: None,
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda arguments: arguments,
) -> Callable[..., T]:
    """``make`` as a function that returns a `T`, and returns the same object for equal arguments.

    Args:
        make: gives the function its name, docstring and annotated keywords.
        finish: ``(result of make, all arguments) -> value``.
        beside: a function whose parameters, with their descriptions, the function takes as well.
        settle: ``(all arguments) -> all arguments`` in a hashable form; raises ValueError for wrong values.
    """
    make_parameters, beside_parameters = (inspect.signature(source).parameters for source in (make, beside))
    hints = get_type_hints(beside, include_extras=True) | get_type_hints(make, include_extras=True)
    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in (make_parameters | beside_parameters).items()
    }

    @cache
    def once(**arguments: Any) -> T:
        return finish(make(**{name: arguments[name] for name in make_parameters}), arguments)

    def function(**arguments: Any) -> T:
        if unknown_names := arguments.keys() - parameters.keys():
            raise ValueError(f"{make.__name__} has no {min(unknown_names)!r}; choose one of {', '.join(parameters)}")
        arguments = {name: arguments.get(name, parameter.default) for name, parameter in parameters.items()}
        # A scalar array, which has no hash, becomes a plain number.
        arguments = {
            name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in arguments.items()
        }
        check_choices(function, arguments)
        check_stated(hints, arguments)
        return once(**settle(arguments))

    entries = (inspect.getdoc(beside) or "").rpartition("Args:")[2]
    function.__doc__ = f"{inspect.getdoc(make)}\n\n{entries}".rstrip()
    function.__name__ = function.__qualname__ = make.__name__
    function.__module__ = make.__module__
    function.__annotations__ = {name: hints[name] for name in parameters} | {"return": get_type_hints(finish)["return"]}
    setattr(function, "__signature__", inspect.Signature([*parameters.values()]))  # noqa: B010 - what inspect reads
    return function
