"""Results as columns: one row per round of a run, or of several runs below each other; and tables read from files."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fljax.metrics.participants import means_of_participants
from fljax.sealed import check_listed

ColumnArrays = dict[str, np.ndarray]
"""Equally long columns by name."""


def frame(metrics: Mapping[str, Any]) -> Any:
    """A run's metrics as a pandas frame with one row per round, or a polars frame if pandas is not installed.

    Args:
        metrics: from `fljax.simulate`, or of the `fljax.run.record.Run` that `fljax.train` returns.

    Returns:
        The columns of `columns_of_rounds`.

    Raises:
        ValueError: ``metrics`` are not those of a run, or neither package is installed.
    """
    return as_frame(columns_of_rounds(metrics))


def columns_of_rounds(metrics: Mapping[str, Any]) -> ColumnArrays:
    """Columns (rounds,): the round, from 1, each scalar metric of a round, and its participants' means.

    These means are ``loss``, ``uplink`` and ``downlink`` (float32 numbers that one participant sends and receives), and
    ``n_not_finite``, as in metrics.jsonl.

    Raises:
        ValueError: ``metrics`` are not those of a run, or have leading axes besides that of the rounds.
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics is of type {type(metrics).__name__}; give the dictionary from fljax.simulate")
    if missing := [name for name in ("ids", "active", "ok", "loss", "uplink", "downlink") if name not in metrics]:
        raise ValueError(f"metrics have no {missing[0]!r}; give those of fljax.simulate or of a finished run")
    arrays = {name: np.asarray(value) for name, value in metrics.items()}
    if arrays["ids"].ndim != 2:
        raise ValueError(
            f"metrics['ids'] has shape {arrays['ids'].shape}; give those of one run, (rounds, participants)"
        )
    scalars = {name: value for name, value in arrays.items() if value.ndim == 1}
    numbers = np.arange(1, len(arrays["ids"]) + 1)
    return {"round": numbers} | scalars | means_of_participants(arrays)


def as_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """Columns as a pandas frame, or a polars frame if pandas is not installed.

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


def stacked(parts: Sequence[tuple[Mapping[str, Any], ColumnArrays]]) -> ColumnArrays:
    """Columns of several runs below each other, with labels in front: each part is ``({"seed": 0}, columns)``.

    A column that a run lacks is NaN there.
    """
    labels = dict.fromkeys(name for run_labels, _ in parts for name in run_labels)
    names = dict.fromkeys(name for _, columns in parts for name in columns)
    n_rows = [len(next(iter(columns.values()))) for _, columns in parts]
    stacked_columns: ColumnArrays = {}
    for name in labels:
        stacked_columns[name] = np.concatenate(
            [np.repeat(run_labels[name], n) for (run_labels, _), n in zip(parts, n_rows, strict=True)]
        )
    for name in names:
        values = [columns.get(name, np.full(n, np.nan)) for (_, columns), n in zip(parts, n_rows, strict=True)]
        stacked_columns[name] = np.concatenate(values)
    return stacked_columns


def read_table(path: Path, text: Collection[str] = ()) -> list[dict[str, Any]]:
    """The rows of a table's CSV file, with numbers as numbers and None for an empty cell; [] if there is no file.

    Args:
        path: of the file.
        text: columns that are kept as text.

    Raises:
        ValueError: the file is not CSV, or has changed since it was written.
    """
    if not path.exists():
        return []
    check_listed(path, f"restore it from a copy, or delete .{path.name}.crc to take it as it is")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
    return [{name: word if name in text else _cell(word) for name, word in row.items()} for row in rows]


def _cell(word: Any) -> Any:
    return number_or_text(word) if word else None


def number_or_text(word: Any) -> Any:
    """A word as an int or a float if it is one, else the word itself."""
    for kind in (int, float) if "_" not in str(word) else ():  # Python reads 1_0 as 10
        try:
            return kind(word)
        except (TypeError, ValueError):
            continue
    return word
