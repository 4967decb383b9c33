"""Ranges of numbers as data, and the check of a number against its range. Importing this does not start JAX."""

import math
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

_LARGEST, _SMALLEST = 3.4028234663852886e38, 1.1754943508222875e-38
"""The largest finite float32, and the smallest that processors do not flush to 0."""


class Number(NamedTuple):
    """The definition of a number: default, meaning and range."""

    default: float | None = None
    meaning: str = ""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    infinite: bool = False  # whether infinity is allowed
    optional: bool = False  # whether None is allowed: the term is then left out
    not_below: str | None = None  # the name of another number, than which it must not be less
    whole: bool = False  # whether it is a count, without a fraction

    @property
    def allowed(self) -> str:
        """The range in words: "> 0", "in [0, 1)"; "" if every number is allowed."""
        low = self.above if self.least is None else self.least
        high = self.below if self.most is None else self.most
        if self.not_below is not None:
            return f">= {self.not_below}"
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


def real(name: str, value: Any) -> Any:
    """Returns ``value`` if it can be compared with numbers.

    Raises:
        ValueError: it cannot.
    """
    try:
        if isinstance(value, bool | str | bytes) or _is_other(value):
            raise TypeError
        float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for float32; choose at most {_LARGEST:.3g}") from None
    except (TypeError, ValueError):
        raise ValueError(f"{said(name, value)} is not a number; give a number") from None
    return value


def check_stated(hints: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Checks arguments annotated as ``Annotated[float, Number(...)]``, or that or None; others pass.

    Raises:
        ValueError: as `check_number`.
    """
    for name, value in arguments.items():
        parts = get_args(hints[name])
        for mark in (mark for part in (hints[name], *parts) for mark in getattr(part, "__metadata__", ())):
            if isinstance(mark, Number) and not (value is None and type(None) in parts):
                check_number(name, value, mark)


def check_number(name: str, value: Any, definition: Number, *, stacked: bool = False) -> None:
    """Checks one number against its range; tracers, shapes without values and other hosts' arrays pass.

    Args:
        name: of the field.
        value: the number, or None.
        definition: the definition of the field.
        stacked: whether it may be an array of numbers.

    Raises:
        ValueError: it is not allowed; the message has the field, the value and the range.
    """
    if value is None:
        if not definition.optional:
            raise ValueError(f"{name}=None is not a number; choose {_choice(name, definition)}")
        return
    if not _is_known(value):
        return
    for number in _values(name, value, stacked, definition.whole):
        if math.isnan(number):
            raise ValueError(f"{name}={number:g} is not a number; choose {_choice(name, definition)}")
        if definition.whole and not number.is_integer() and not math.isinf(number):
            raise ValueError(f"{name}={number:g} is not a whole number; choose {_choice(name, definition)}")
        if not definition.holds(number) or (math.isinf(number) and not definition.infinite):
            finite = "a finite number, " if math.isinf(number) else ""
            raise ValueError(f"{name}={number:g} is out of its range; choose {finite}{_choice(name, definition)}")
        if _LARGEST < abs(number) < math.inf:
            raise ValueError(f"{name}={number:g} is too large for float32; choose at most {_LARGEST:.3g}")
        if not definition.holds(rounded := _in_float32(number)):
            raise ValueError(f"{name}={number!r} is {rounded:g} in float32; choose {_choice(name, definition)}")


def check_not_below(name: str, value: Any, definition: Number, bound: Any) -> None:
    """Checks that a number is not less than the one that its field names; unknown values pass, as in `check_number`.

    Args:
        name: of the field.
        value: a number or, as in a sweep, several.
        definition: the definition of the field, whose ``not_below`` is the name of the other number.
        bound: the other number, or as many.

    Raises:
        ValueError: it is less.
    """
    import numpy as np

    if not all(map(_is_known, (value, bound))):
        return
    for number, least in zip(*map(np.ravel, np.broadcast_arrays(np.float32(value), np.float32(bound))), strict=True):
        if number < least:
            raise ValueError(
                f"{name}={number:g} is less than {definition.not_below}={least:g}; choose {_choice(name, definition)}"
            )


def _is_known(value: Any) -> bool:
    """Whether the numbers of ``value`` are known here: not those of a tracer, a shape or an array of other hosts."""
    jax = sys.modules.get("jax")  # without it there are no tracers
    if jax is not None and isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return False
    return getattr(value, "is_fully_addressable", True)


def said(name: str, value: Any) -> str:
    """``name=value`` in one line if that is short, else the name and the value's type, because the repr of a federation
    or an array may have hundreds of lines."""
    line = " ".join(repr(value).split())
    return f"{name}={line}" if len(line) < 60 else f"{name} of type {type(value).__name__}"


def _in_float32(value: float) -> float:
    """``value`` rounded to float32, as programs see it."""
    if math.isinf(value) or abs(value) > _LARGEST:
        return value
    return struct.unpack("f", struct.pack("f", value))[0] if abs(value) >= _SMALLEST else 0.0


def _values(name: str, value: Any, stacked: bool, keep_all: bool) -> list[float]:
    """The number as a list; of several numbers all if ``keep_all``, else the least and the largest (NaN if there is
    one)."""
    if isinstance(value, float | int | str | bytes):
        return [float(real(name, value))]
    if isinstance(value, list | tuple) and not stacked:
        raise ValueError(f"{said(name, value)} is not one number; give one, or try several with fljax.sweep")
    import numpy as np  # a plain number needs no arrays

    try:
        if _is_other(original := np.asarray(value)):
            raise TypeError
        array = original.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        by_round = "; a function of the round is a brick of the slot 'schedule'" if callable(value) else ""
        raise ValueError(f"{said(name, value)} is not a number; give a number{by_round}") from None
    if array.ndim and not stacked:
        raise ValueError(f"{said(name, value)} is not one number; give one, or try several with fljax.sweep")
    if keep_all:
        return [float(entry) for entry in array.ravel()]
    return [float(array.min()), float(array.max())] if array.size else []


def _is_other(array: Any) -> bool:
    """Whether an array is of texts, truth values, dates or complex numbers, of which NumPy makes numbers."""
    return getattr(getattr(array, "dtype", None), "kind", "f") in "bSUMmc"


def _choice(name: str, definition: Number) -> str:
    allowed = f"{name} {definition.allowed}" if definition.allowed else "any number"
    meaning = f" ({definition.meaning})" if definition.meaning else ""
    return f"{allowed}{', or None' if definition.optional else ''}{meaning}"
