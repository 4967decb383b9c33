"""What the trained models of a results folder make of their clients' examples, as columns of a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import expit, softmax

from fljax.choices import check_choices
from fljax.drift.stages import at
from fljax.jobs.remake import Remade, remake
from fljax.models.task import task_of
from fljax.run.checkpoint import identity_of
from fljax.run.identity import sums_of_examples
from fljax.run.load import LoadedRun, Result, load_run
from fljax.run.predictions import predictions
from fljax.types import Federation

Split = Literal["test", "val", "train"]
Columns = dict[str, np.ndarray]
"""Columns (examples,) by their names."""


def predicted(folder: str | Path, split: Split = "test", methods: Sequence[str] = ()) -> Columns:
    """Each client's examples with what the model that it was last tested with says of them, method after method.

    Columns: ``method``; ``client``, its name or number; ``example``, the place in the pool, which for data that names
    its clients is the row of the file, from 0; ``label`` and ``predicted``. Of a classification also a probability for
    each class (``p_NAME``, the softmax of the outputs), of several labels ``label_NAME``, ``p_NAME`` and
    ``predicted_NAME`` for each (p of 0.5 and more), of several targets ``label_NAME`` and ``predicted_NAME``. Of a
    client without a model, and where an output is no number, ``predicted`` is empty or NaN.

    Args:
        folder: of ``fljax run``, or of a seed of ``fljax compare``.
        split: whose examples; of clients that change over the rounds, those of the last one.
        methods: some of the folder's; none: all.

    Raises:
        ValueError: the folder holds no finished run, no such method or split, the data has changed since, or as
            `fljax.remake`.
    """
    check_choices(predicted, {"split": split})
    run, made = load_run(folder), remake(folder)
    parts = [_of_method(run, made, run[name], split) for name in methods or run]
    return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}


def _of_method(run: LoadedRun, made: Remade, result: Result, split: Split) -> Columns:
    """Columns of one method."""
    algorithm, federation = (made.runs[result.name][what] for what in ("algorithm", "federation"))
    _check_same_examples(result.folder, federation)
    data = getattr(at(federation, len(result.metrics["loss"]) - 1), split)
    if data is None:
        raise ValueError(f"split={split!r}: {run.folder} has no such examples; --partition.val-fraction 0.1 makes some")
    outputs, index, size = (
        np.asarray(a) for a in (predictions(algorithm.predict, result.models, data), data.index, data.size)
    )
    client, place = np.nonzero(np.arange(index.shape[1]) < size[:, None])
    example = index[client, place]
    names = np.array(result.clients) if result.clients else np.arange(len(size))
    columns = {"method": np.full(len(example), result.name), "client": names[client], "example": example}
    task, y = task_of(algorithm.loss), np.asarray(data.pool.y)[example]
    if task == "classification":
        return columns | _classes(outputs[client, place], y, run.classes)
    return columns | _numbers(outputs[client, place], y, run.config.get("label_column", ()), task == "labels")


def _check_same_examples(folder: Path, federation: Federation) -> None:
    """Raises ValueError where the run was on other examples, whose words and numbers may mean something else."""
    known, found = identity_of(folder) or {}, sums_of_examples(federation)
    if any(known.get(name, value) != value for name, value in found.items()):
        raise ValueError(f"{folder} holds a run on other examples; put the data back as it was")


def _classes(outputs: np.ndarray, y: np.ndarray, classes: Sequence[str]) -> Columns:
    """The class, what is told, and the probability of each."""
    names = np.array([*classes, *map(str, range(len(classes), outputs.shape[1]))])
    is_told = np.isfinite(outputs).all(axis=1)
    told = np.where(is_told, names[np.where(is_told, outputs.argmax(axis=1), 0)], "")
    shares = softmax(outputs.astype(np.float64), axis=1)
    return {"label": names[y], "predicted": told} | {f"p_{name}": p for name, p in zip(names, shares.T, strict=True)}


def _numbers(outputs: np.ndarray, y: np.ndarray, asked: Any, are_labels: bool) -> Columns:
    """Each target or label, and what is told; a name of its own for each of several."""
    y = y.reshape(len(y), -1)
    names = asked if len(asked) == y.shape[1] else range(y.shape[1])
    columns: Columns = {}
    for name, output, target in zip(names, outputs.T, y.T, strict=True):
        end = "" if y.shape[1] == 1 else f"_{name}"
        columns[f"label{end}"] = target
        if are_labels:
            columns[f"p{end}"] = p = expit(output.astype(np.float64))
            output = np.where(np.isnan(p), np.nan, p >= 0.5)
        columns[f"predicted{end}"] = output
    return columns
