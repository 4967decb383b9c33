"""The columns of predictions: labels, predictions and probabilities; and their CSV text."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from fljax.models.task import task_of
from fljax.report.frames import ColumnArrays
from fljax.results.load import LoadedRun
from fljax.results.remake import Remade
from fljax.results.result import Result


def prediction_columns(
    run: LoadedRun,
    remade: Remade,
    result: Result,
    first: ColumnArrays,
    label: Sequence[np.ndarray],
    outputs: np.ndarray,
) -> ColumnArrays:
    """All columns of one method: its name, those of ``first``, then labels and predictions; ``label`` is empty, or has
    one array per label column."""
    columns = {"method": np.full(len(outputs), result.name)} | first
    task = task_of(remade.runs[result.name]["algorithm"].loss)
    if task == "classification":
        return columns | ({"label": label[0]} if label else {}) | _classes(outputs, run.classes)
    label_columns: Any = run.config.get("label_column", ())
    n = outputs.shape[1]
    endings = [""] if n == 1 else [f"_{name}" for name in (label_columns if len(label_columns) == n else range(n))]
    for i, (ending, output) in enumerate(zip(endings, outputs.T, strict=True)):
        columns |= {f"label{ending}": label[i]} if label else {}
        columns |= _probability(output, ending) if task == "labels" else {f"predicted{ending}": output}
    return columns


def _classes(outputs: np.ndarray, classes: Sequence[str]) -> ColumnArrays:
    """The predicted class, and the probability of each class."""
    names = np.array([*classes, *map(str, range(len(classes), outputs.shape[1]))])
    is_finite = np.isfinite(outputs).all(axis=1)
    predicted = np.where(is_finite, names[np.where(is_finite, outputs.argmax(axis=1), 0)], "")
    shares = softmax(outputs.astype(np.float64), axis=1)
    return {"predicted": predicted} | {f"p_{name}": p for name, p in zip(names, shares.T, strict=True)}


def _probability(output: np.ndarray, end: str) -> ColumnArrays:
    """The probability of one label of several, and whether it is predicted."""
    p = expit(output.astype(np.float64))
    return {f"p{end}": p, f"predicted{end}": np.where(np.isnan(p), np.nan, (p >= 0.5).astype(output.dtype))}


def as_csv(columns: Mapping[str, np.ndarray]) -> str:
    """Columns of one length as CSV: NaN as an empty cell, probabilities (float64) to seven digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    return text.getvalue()


def _cells(column: np.ndarray) -> list[Any]:
    if column.dtype.kind != "f":
        return column.tolist()
    format_number = (
        "{}".format if column.dtype.itemsize == 4 else "{:.7g}".format
    )  # float32: as many digits as identify the number
    return ["" if value != value else format_number(value) for value in column]
