"""Columns of a table as labels: classes, targets, or several labels per example."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fljax.data.labels import counts_classes
from fljax.data.own.bad_cells import Where
from fljax.data.own.columns import text_of
from fljax.data.own.number_columns import WITH_POINTS, as_number, has_decimal_comma, numbers_of
from fljax.data.shown import short

TaskChoice = Literal["auto", "classification", "regression", "labels"]

_MANY = 100
"""Whole numbers with more distinct values than this may be classes or amounts: the user must choose."""
_NO_TARGET = "names can only be classes: --task classification, with one label column"


def labels_of(columns: Sequence[np.ndarray], names: Sequence[str], task: TaskChoice, where: Where) -> np.ndarray:
    """(examples,) classes as whole numbers or names, or targets; (examples, columns) several targets or labels.

    Raises:
        ValueError: a row has no label (the first is named), or the columns do not fit the task.
    """
    if not columns:
        raise ValueError("no label column is named; name one")
    if task == "classification" or (task == "auto" and len(columns) == 1):
        if len(columns) > 1:
            raise ValueError(
                f"the label columns are {', '.join(names)}; classes need one: name one, or choose another task"
            )
        return _classes_or_targets(columns[0], names[0], task, where)
    numbers = [numbers_of(column, name, where, _NO_TARGET) for column, name in zip(columns, names, strict=True)]
    targets = np.stack(numbers, axis=1)
    if task == "labels" and not np.isin(targets, (0, 1)).all():
        raise ValueError(f"columns {', '.join(names)}: several labels of an example must each be 0 or 1")
    return targets[:, 0] if len(columns) == 1 and task != "labels" else targets


def _classes_or_targets(column: np.ndarray, name: str, task: TaskChoice, where: Where) -> np.ndarray:
    """(examples,) int or text: classes; float: targets."""
    text = text_of(column)
    numbers = np.array([as_number(value) for value in text])
    is_missing, is_nan_text = text == "", np.isin(text, ("nan", "None"))
    if (np.isfinite(numbers) | is_missing | is_nan_text).all():  # otherwise they are names of classes
        is_missing |= is_nan_text
    if is_missing.any():
        raise ValueError(
            f"{where.row(int(np.argmax(is_missing)))}, column {name!r} is empty; give each example a label"
        )
    n_values = len(np.unique(text))
    if n_values == 1:
        raise ValueError(
            f"column {name!r} has one label only, {short(str(text[0]))}; give examples of two classes or more"
        )
    if not np.isfinite(numbers).all():
        like_numbers = np.isfinite(numbers) | np.array([has_decimal_comma(value) for value in text])
        if n_values > max(2, len(text) // 2) and like_numbers.mean() > 0.5:
            i = int(np.argmin(np.isfinite(numbers)))
            what = f"is {short(str(text[i]))}, not a number, and {n_values} names in {len(text)} rows are not classes"
            remedy = WITH_POINTS if has_decimal_comma(text[i]) else "correct it, or choose another column"
            raise ValueError(f"{where.row(i)}, column {name!r} {what}; {remedy}")
        return text  # names
    if (numbers != np.round(numbers)).any():
        if task == "classification" and n_values > max(2, len(text) // 2):
            raise ValueError(
                f"column {name!r} has {n_values} different numbers in {len(text)} rows; say task 'regression'"
            )
        return text if task == "classification" else numbers_of(column, name, where)
    n_values = len(np.unique(numbers))
    if task == "auto" and n_values > _MANY:
        raise ValueError(
            f"column {name!r} has {n_values} different whole numbers: say task 'classification' or 'regression'"
        )
    if counts_classes(numbers):
        return numbers.astype(np.int64)
    # One name for 10 and 10.0; several texts with more digits than float64 holds may be the same number.
    return np.array([str(int(n)) if abs(n) < 2**53 else name for n, name in zip(numbers, text, strict=True)])
