"""Functions of keywords that make a static value, as a clock, an attack or a drift is: what is given is checked.

Importing this starts no JAX.
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
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given,
) -> Callable[..., T]:
    """``make`` as a function that gives a `T`, which is known by its arguments: equal calls give one value.

    Args:
        make: name, docstring and annotated keywords are those of the function.
        finish: ``(what make gave, all arguments) -> value``.
        beside: whose parameters the function takes too, described as there.
        settle: ``(all arguments) -> all arguments`` as they are kept, hashable; raises ValueError for what is wrong.
    """
    own, others = (inspect.signature(one).parameters for one in (make, beside))
    hints = get_type_hints(beside, include_extras=True) | get_type_hints(make, include_extras=True)
    known = {name: one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in (own | others).items()}

    @cache
    def once(**given: Any) -> T:
        return finish(make(**{name: given[name] for name in own}), given)

    def function(**given: Any) -> T:
        if unknown := given.keys() - known.keys():
            raise ValueError(f"{make.__name__} has no {min(unknown)!r}; it has {', '.join(known)}")
        given = {name: given.get(name, one.default) for name, one in known.items()}
        # An array of one number, which has no hash, as that number.
        given = {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in given.items()}
        check_choices(function, given)
        check_stated(hints, given)
        return once(**settle(given))

    entries = (inspect.getdoc(beside) or "").rpartition("Args:")[2]
    function.__doc__ = f"{inspect.getdoc(make)}\n\n{entries}".rstrip()
    function.__name__ = function.__qualname__ = make.__name__
    function.__module__ = make.__module__
    function.__annotations__ = {name: hints[name] for name in known} | {"return": get_type_hints(finish)["return"]}
    setattr(function, "__signature__", inspect.Signature([*known.values()]))  # noqa: B010 - what inspect reads
    return function
