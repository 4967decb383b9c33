"""Columns of a table as the numbers that networks see: features, categories, texts and labels."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.data.bad_cells import BadCellsError, and_more, check_none
from fljax.data.cells import as_text, is_missing
from fljax.data.labels import counts_classes
from fljax.data.own import are_whole
from fljax.data.users import short

TaskChoice = Literal["auto", "classification", "regression", "labels"]

_MANY = 100
"""Whole numbers with more distinct values than this may be classes or amounts: the user says which."""


class Where(NamedTuple):
    """How to say where a value stands."""

    client: np.ndarray | None
    lines: Sequence[int] | None  # of a text file, where its rows begin

    def row(self, i: int) -> str:
        """A row of the table, as a text editor or the frame counts, and whose it is."""
        whose = "" if self.client is None else f" (client {short(str(self.client[i]))})"
        return f"{f'row {i}' if self.lines is None else f'line {self.lines[i]}'}{whose}"


def features_of(
    columns: Mapping[str, np.ndarray],
    categories: Mapping[str, Sequence[str]],
    where: Where,
    may_be_empty: bool = False,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(examples, ...) and the names of the features; none of them where a column of arrays has them all.

    Args:
        columns: by their names.
        categories: of the columns, those of words, each with all the words that it may have; (): those that it has.
        where: how to say where a value stands.
        may_be_empty: whether cells of numbers may be empty, which are NaN then.

    Raises:
        ValueError: naming the first value that cannot be, and how many more there are in each column.
    """
    name, first = next(iter(columns.items()))
    if len(columns) == 1 and name not in categories and _holds_arrays(first):
        x = first if first.ndim > 1 else _arrays(first, name, where)
        return (x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x), ()  # grey images have one channel
    found: dict[str, np.ndarray] = {}
    bad: list[BadCellsError] = []
    for name, column in columns.items():
        of_words = name in categories
        try:
            numbers = _each(column, name, categories[name], where) if of_words else None
            made = {name: _numbers(column, name, where, "", may_be_empty)} if numbers is None else numbers
        except BadCellsError as error:
            bad.append(error)
            continue
        if twice := [one for one in made if one in found or (one != name and one in columns)]:
            raise ValueError(
                f"a category of column {name!r} and another column are both called {twice[0]!r}; rename one"
            )
        found |= made
    check_none(bad)
    return np.stack(list(found.values()), axis=1), tuple(found)


def texts_of(column: np.ndarray, name: str, where: Where) -> list[str]:
    """A column of texts.

    Raises:
        ValueError: naming the first row without one, or with something else.
    """
    for i, text in enumerate(column):
        if is_missing(text) or (isinstance(text, str) and not text.strip()):
            raise ValueError(f"{where.row(i)}, column {name!r} is empty; give a text, or leave the row out")
        if not isinstance(text, str):
            raise ValueError(f"{where.row(i)}, column {name!r} is {short(str(text))}, no text")
    return [str(text) for text in column]


def _each(column: np.ndarray, name: str, known: Sequence[str], where: Where) -> dict[str, np.ndarray]:
    """A feature of 0 and 1 for each word of a column of categories: the ``known`` ones, or all of it in their order.

    Raises:
        ValueError: naming the first row without a word or with an unknown one, or there are more words than half of the
            rows, or arrays.
    """
    if _holds_arrays(column):
        raise ValueError(f"column {name!r} holds arrays, which are no categories; leave it out of the categories")
    text = text_of(column)
    if (missing := text == "").any():
        place, n = where.row(int(np.argmax(missing))), int(missing.sum())
        raise BadCellsError(f"{place}, column {name!r} is empty; name the category{and_more(n)}", name, place, n)
    words = sorted(known) or np.unique(text).tolist()
    place = np.minimum(np.searchsorted(words, text), len(words) - 1)
    if (strange := np.array(words)[place] != text).any():
        i, n = int(np.argmax(strange)), int(strange.sum())
        said = (
            f"{where.row(i)}, column {name!r} is {short(str(text[i]))}; choose one of {', '.join(words)}{and_more(n)}"
        )
        raise BadCellsError(said, name, where.row(i), n)
    if not known and len(words) > max(2, len(text) // 2):
        raise ValueError(
            f"column {name!r} has {len(words)} categories in {len(text)} rows; leave it out, or group them"
        )
    return {f"{name}={word}": (place == i).astype(np.float32) for i, word in enumerate(words)}


def _holds_arrays(column: np.ndarray) -> bool:
    return column.ndim > 1 or isinstance(column[0], np.ndarray | list)


def _arrays(column: np.ndarray, name: str, where: Where) -> np.ndarray:
    """A column whose cells are arrays or lists, as one array (examples, ...).

    Raises:
        ValueError: naming the first cell that has another shape than that of the first example, or none.
    """
    cells = []
    for i, value in enumerate(column):
        try:
            cells.append(np.asarray(_plain(value)))
        except ValueError:  # lists of several lengths in one
            raise ValueError(f"{where.row(i)}, column {name!r} has lists of several lengths; give one length") from None
        if (shape := cells[i].shape) != (first := cells[0].shape):
            raise ValueError(f"{where.row(i)}, column {name!r} has shape {shape} and the first row {first}; give one")
    return np.stack(cells)


def _plain(value: Any) -> Any:
    """Arrays in arrays, as Parquet has lists of lists, as lists."""
    return [_plain(one) for one in value] if isinstance(value, np.ndarray) and value.dtype == object else value


def _numbers(column: np.ndarray, name: str, where: Where, of_words: str = "", may_be_empty: bool = False) -> np.ndarray:
    """A column as float32; ``of_words``: what to make of one of words; an empty cell that may be one is NaN.

    Raises:
        ValueError: it has dates, durations or complex numbers, or naming the first value that is no finite number.
    """
    if column.dtype.kind in "mMc":
        what = "complex numbers" if column.dtype.kind == "c" else "dates or durations"
        raise ValueError(f"column {name!r} has {what} ({column.dtype}); make them numbers, or leave the column out")
    try:
        if column.dtype == object and any(isinstance(value, _NO_NUMBERS) for value in column):
            raise TypeError
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([_number(value) for value in column])
    bad = ~np.isfinite(numbers) | (np.abs(numbers) > np.finfo(np.float32).max)
    if may_be_empty:
        bad[bad] = [not _is_empty(value) for value in column[bad]]
    if bad.any():
        i = int(np.argmax(bad))
        value = column[i]
        is_empty = _is_empty(value)
        what = "empty" if is_empty else f"{short(str(value))}, no finite number"
        is_word = isinstance(value, str) and not is_empty
        whose = "" if where.client is not None else f"{_OF_CLIENTS}; "
        words = f" ({of_words or whose + _OF_WORDS})" if is_word else ""
        fill = ", fill it (--fill median, Columns(fill=...))" if is_empty and not of_words else ""
        remedy = f"mend it{words}{fill}, or leave the column or the row out"
        remedy = _WITH_POINTS if is_word and _has_decimal_comma(value) else remedy
        n = int(bad.sum())
        raise BadCellsError(f"{where.row(i)}, column {name!r} is {what}; {remedy}{and_more(n)}", name, where.row(i), n)
    return numbers.astype(np.float32)


def _is_empty(value: Any) -> bool:
    return is_missing(value) or (isinstance(value, str) and not value.strip())  # of an array == has no truth


_OF_WORDS = (
    "name the column as a category: --category-column, Columns(categories=...); a text: --text-column, "
    "Columns(text=...); neither: --ignored-column, Columns(ignored=...)"
)
_OF_CLIENTS = "says it whose an example is: --client-column, Columns(client=...)"
_WITH_POINTS = "write numbers with a point, and not with a comma"
_NO_TARGET = "names are classes: --task classification, and one column of them"
_NO_NUMBERS = (np.datetime64, np.timedelta64, complex)
"""What NumPy makes a number of, and should not."""


def _has_decimal_comma(value: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d*,\d+\s*", value) is not None


def _number(value: Any) -> float:
    if isinstance(value, _NO_NUMBERS):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def labels_of(columns: Sequence[np.ndarray], names: Sequence[str], task: TaskChoice, where: Where) -> np.ndarray:
    """(examples,) classes as whole numbers or names, or targets; (examples, columns) of several targets or labels.

    Raises:
        ValueError: naming the first row without a label, or the columns that cannot be those of the task.
    """
    if not columns:
        raise ValueError("no label column is named")
    if task == "classification" or (task == "auto" and len(columns) == 1):
        if len(columns) > 1:
            raise ValueError(f"classes stand in one column, not in {', '.join(names)}")
        return _classes_or_targets(columns[0], names[0], task, where)
    made = [_numbers(column, name, where, _NO_TARGET) for column, name in zip(columns, names, strict=True)]
    targets = np.stack(made, axis=1)
    binary = np.isin(targets, (0, 1)).all()
    if task == "labels" or (task == "auto" and binary):
        if not binary:
            raise ValueError(f"columns {', '.join(names)}: several labels of an example are 0 or 1 each")
        return targets.astype(np.int32)
    return targets[:, 0] if len(columns) == 1 else targets


def _classes_or_targets(column: np.ndarray, name: str, task: TaskChoice, where: Where) -> np.ndarray:
    """(examples,) int or text: classes; float: targets."""
    text = text_of(column)
    numbers = np.array([_number(value) for value in text])
    missing, no_number = text == "", np.isin(text, ("nan", "None"))
    if (np.isfinite(numbers) | missing | no_number).all():  # elsewhere they are names of classes
        missing |= no_number
    if missing.any():
        raise ValueError(f"{where.row(int(np.argmax(missing)))}, column {name!r} is empty; every example has a label")
    n_values = len(np.unique(text))
    if n_values == 1:
        raise ValueError(
            f"column {name!r} has one label only, {short(str(text[0]))}; give examples of two classes or more"
        )
    if not np.isfinite(numbers).all():
        like_numbers = np.isfinite(numbers) | np.array([_has_decimal_comma(value) for value in text])
        if n_values > max(2, len(text) // 2) and like_numbers.mean() > 0.5:
            i = int(np.argmin(np.isfinite(numbers)))
            what = f"is {short(str(text[i]))}, no number, and {n_values} names in {len(text)} rows are no classes"
            remedy = _WITH_POINTS if _has_decimal_comma(text[i]) else "mend it, or choose another column"
            raise ValueError(f"{where.row(i)}, column {name!r} {what}; {remedy}")
        return text  # names
    if (numbers != np.round(numbers)).any():
        if task == "classification" and n_values > max(2, len(text) // 2):
            raise ValueError(
                f"column {name!r} has {n_values} different numbers in {len(text)} rows; say task 'regression'"
            )
        return text if task == "classification" else _numbers(column, name, where)
    n_values = len(np.unique(numbers))
    if task == "auto" and n_values > _MANY:
        raise ValueError(
            f"column {name!r} has {n_values} different whole numbers: say task 'classification' or 'regression'"
        )
    if counts_classes(numbers):
        return numbers.astype(np.int64)
    # One name for 10 and 10.0; a number of more digits than float64 has may be that of several texts.
    return np.array([str(int(n)) if abs(n) < 2**53 else name for n, name in zip(numbers, text, strict=True)])


def text_of(column: np.ndarray) -> np.ndarray:
    """(rows,) the values of a column as text, "" for a missing one."""
    if column.dtype.kind == "f" and are_whole(column):
        column = column.astype(np.int64)  # as pandas has whole numbers beside missing ones
    return np.array(["" if is_missing(value) else as_text(value).strip() for value in column])
