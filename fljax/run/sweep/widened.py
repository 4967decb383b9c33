"""A search that is resumed with more points and seeds: its old points keep their numbers in the files."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

NUMBERS = "points"
"""The entry of a search's identity with each point's number in the files; new points come after all others."""
HYPER = "hyper."
"""Prefix of a Hyper's fields in an identity."""


class Widened(NamedTuple):
    """The identity of a folder's search after it is resumed."""

    identity: dict[str, Any]
    lacks: str | None = None  # in words, a point of the folder that is not among the new points


def table_of(identity: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The value of each field at each point, (points,), by its name in the Hyper; fields that are None are left out.

    Raises:
        ValueError: fields have different numbers of points.
        TypeError: a field is no number.
    """
    fields = {name.removeprefix(HYPER): value for name, value in identity.items() if name.startswith(HYPER)}
    columns = {name: np.asarray(value, np.float32) for name, value in fields.items() if value is not None}
    n_points = max([1, *(len(value) for value in columns.values() if value.ndim)])
    return {name: np.broadcast_to(value, n_points) for name, value in columns.items()}


def widened(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Widened:
    """The identity ``stored`` with the points and seeds of ``given``, if these include the stored ones.

    For a search with halving, in which points are compared with each other, it is ``stored``. Any other difference to
    ``given`` means another search, see `fljax.folder.same_run`.
    """
    if stored.get("halving") is not None or given["halving"] is not None:
        return Widened(dict(stored))
    stored_table, given_table = table_of(stored), table_of(given)
    fields = {f"{HYPER}{name}": given[f"{HYPER}{name}"] for name in stored_table.keys() & given_table.keys()}
    if stored_table.keys() != given_table.keys():  # None needs another program
        return Widened({**stored, **fields})
    given_table = {name: given_table[name] for name in stored_table}  # a Hyper's fields may have got another order
    n_seeds = max(stored["n_seeds"], given["n_seeds"])
    free_numbers: dict[tuple[float, ...], list[int]] = {}
    for row, number in zip(_rows(stored_table), stored[NUMBERS], strict=True):
        free_numbers.setdefault(row, []).append(number)
    next_number, numbers = max(stored[NUMBERS]) + 1, []
    for row in _rows(given_table):
        free = free_numbers.get(row)
        numbers.append(free.pop(0) if free else next_number)
        next_number = max(next_number, numbers[-1] + 1)
    missing = [row for row, free in free_numbers.items() if free]
    return Widened(
        {**stored, **fields, NUMBERS: numbers, "n_seeds": n_seeds},
        _named(missing[0], stored_table, given_table) if missing else None,
    )


def _rows(table: Mapping[str, np.ndarray]) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in table.values()), strict=True))


def _named(row: tuple[float, ...], *tables: Mapping[str, np.ndarray]) -> str:
    """A point in words, by the fields that differ between the points of all ``tables``."""
    values = dict(zip(tables[0], row, strict=True))
    differ = [name for name in values if len({value for table in tables for value in table[name].tolist()}) > 1]
    return ", ".join(f"{name}={np.float32(values[name])!s}" for name in differ or values)
