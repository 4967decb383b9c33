"""Results as columns: of a run a row a round, of many runs one below the other; tables read back from files."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fljax.run.rounds import means_of_participants
from fljax.sealed import check_listed

Columns = dict[str, np.ndarray]
"""Equally long columns by name."""


def frame(metrics: Mapping[str, Any]) -> Any:
    """A run's metrics as a pandas frame of a row a round, or a polars one where pandas is not installed.

    Args:
        metrics: of `fljax.simulate`, or of the `fljax.run.record.Run` that `fljax.train` gives.

    Returns:
        The columns of `columns_of_rounds`.

    Raises:
        ValueError: they are no metrics of a run, or neither package is installed.
    """
    return as_frame(columns_of_rounds(metrics))


def columns_of_rounds(metrics: Mapping[str, Any]) -> Columns:
    """Columns (rounds,): the round, from 1, each number that a round has, and its participants' means.

    Those are ``loss``, ``uplink`` and ``downlink`` (floats of 32 bits that one sends and receives), and
    ``n_not_finite``, as in metrics.jsonl.

    Raises:
        ValueError: they are no metrics of a run, or have more leading axes than that over rounds.
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics is of type {type(metrics).__name__}; give those of fljax.simulate, by name")
    if missing := [name for name in ("ids", "active", "ok", "loss", "uplink", "downlink") if name not in metrics]:
        raise ValueError(f"metrics have no {missing[0]!r}; give those of fljax.simulate or of a finished run")
    host = {name: np.asarray(value) for name, value in metrics.items()}
    if host["ids"].ndim != 2:
        raise ValueError(f"metrics['ids'] has shape {host['ids'].shape}; give those of one run, (rounds, participants)")
    scalars = {name: value for name, value in host.items() if value.ndim == 1}
    numbers = np.arange(1, len(host["ids"]) + 1)
    return {"round": numbers} | scalars | means_of_participants(host)


def as_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """Columns as a pandas frame, or a polars one where pandas is not installed.

    Raises:
        ValueError: neither is installed.
    """
    for package in ("pandas", "polars"):
        try:
            module = __import__(package)
        except ImportError:
            continue
        return module.DataFrame(dict(columns))
    raise ValueError("a frame needs pandas or polars: pip install pandas")


def stacked(parts: Sequence[tuple[Mapping[str, Any], Columns]]) -> Columns:
    """Columns of several runs below each other, each behind what it is called: ``({"seed": 0}, columns)``.

    What some of them do not have is NaN there.
    """
    labels = dict.fromkeys(name for own, _ in parts for name in own)
    names = dict.fromkeys(name for _, columns in parts for name in columns)
    n_rows = [len(next(iter(columns.values()))) for _, columns in parts]
    found: Columns = {}
    for name in labels:
        found[name] = np.concatenate([np.repeat(own[name], n) for (own, _), n in zip(parts, n_rows, strict=True)])
    for name in names:
        own = [columns.get(name, np.full(n, np.nan)) for (_, columns), n in zip(parts, n_rows, strict=True)]
        found[name] = np.concatenate(own)
    return found


def read_table(path: Path, text: Collection[str] = ()) -> list[dict[str, Any]]:
    """The rows of a table's CSV file, its numbers as numbers and None where a cell is empty; [] where there is no file.

    Args:
        path: of the file.
        text: columns that are read as they are.

    Raises:
        ValueError: it is no CSV text, or has changed since it was written.
    """
    if not path.exists():
        return []
    check_listed(path, f"restore it from a copy, or delete .{path.name}.crc to take it as it is")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV text: {error}") from None
    return [{name: word if name in text else _cell(word) for name, word in row.items()} for row in rows]


def _cell(word: Any) -> Any:
    return number_or_text(word) if word else None


def number_or_text(word: Any) -> Any:
    """A word as a whole number or a number, where it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except (TypeError, ValueError):
            continue
    return word
