"""Data of your own in tables: CSV files, pandas and polars frames, Hugging Face data sets."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.choices import check_choices, check_kind
from fljax.data.cells import as_text, is_missing
from fljax.data.own import OwnData, are_whole, own_data
from fljax.data.users import short
from fljax.data.words import USUAL, Words, as_words
from fljax.ranges import said

TaskChoice = Literal["auto", "classification", "regression", "labels"]

_MANY = 100
"""Whole numbers with more distinct values than this may be classes or amounts: the user says which."""


NO_ROWS = "no rows; give the names of the columns, and some examples below"


class Columns(NamedTuple):
    """What the columns of a table are."""

    label: tuple[str, ...]  # one of classes or targets; several: several targets, or labels of 0 and 1
    client: str | None = None  # whose an example is
    part: str | None = None  # "train", "val" or "test"
    features: tuple[str, ...] | None = None  # None: all others
    categories: tuple[str, ...] = ()  # of the features, those of words or codes: a feature of 0 and 1 for each of them
    text: str | None = None  # of texts, in the place of features: their words become tokens


def as_columns(columns: Any) -> Columns:
    """The columns as they are meant: a name by itself is one of a kind.

    Raises:
        ValueError: they are no `Columns`.
    """
    check_kind("columns", columns, Columns, 'give fljax.Columns(("label",), client="client")')
    several = {
        name: (one,) for name in ("label", "features", "categories") if isinstance(one := getattr(columns, name), str)
    }
    return columns._replace(**several)


def from_frame(frame: Any, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a pandas or polars frame, or of anything with ``columns`` and columns by name.

    A feature column of arrays (images, token lists of one length) is taken as it is, where it is the only one. One of
    ``columns.categories`` becomes a feature of 0 and 1 for each of its words in their order, called ``column=word``.
    ``columns.text`` becomes tokens of its words (`fljax.data.words.as_words`), which `OwnData.words` names.

    Args:
        frame: the table.
        columns: which column is what.
        task: "auto": whole numbers and text are classes, other numbers targets of a regression.
        words: how many words of a text column are told apart, and how many of each text are read.

    Raises:
        ValueError: two columns have the same name, or naming the column that is not there, or row, column and client of
            a value that is no number.
    """
    columns = as_columns(columns)
    if not hasattr(frame, "columns"):
        raise ValueError(f"{said('frame', frame)} has no columns; give a pandas or polars frame")
    _check_names([str(name) for name in frame.columns])
    return _of_columns({str(name): np.asarray(frame[name]) for name in frame.columns}, columns, task, words)


def from_hugging_face(dataset: Any, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a ``datasets.Dataset``, as `from_frame` has them; images become uint8 arrays.

    Raises:
        ValueError: as `from_frame`, or several splits are given together.
    """
    columns = as_columns(columns)
    names = getattr(dataset, "column_names", dataset)
    if isinstance(names, Mapping):  # as `datasets.load_dataset` makes of all splits
        parts = ", ".join(map(repr, dataset))
        raise ValueError(f"dataset is a dict of {parts}, not a datasets.Dataset; of splits give one, dataset['train']")
    if not hasattr(dataset, "with_format"):
        raise ValueError(f"{said('dataset', dataset)} is not a datasets.Dataset; give one, or fljax.from_frame a frame")
    wanted = _wanted(dataset.column_names, columns)
    plain = dataset.with_format("numpy")
    return _of_columns({name: np.asarray(plain[name][:]) for name in wanted}, columns, task, words)


def read_csv(path: Path, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a CSV file, whose first line names the columns; a ``.tsv`` has tabs.

    Raises:
        ValueError: in one line, with the file, and line, column and client of a value that is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            header = next(reader, [])
            rows, lines, begins = [], [], reader.line_num + 1  # empty lines are none; a quoted value may have several
            for row in reader:
                if row and len(row) != len(header):
                    raise ValueError(f"line {begins} has {len(row)} values and the header {len(header)} names")
                if row:
                    rows.append(row)
                    lines.append(begins)
                begins = reader.line_num + 1
        _check_names(header)
        if not rows:
            raise ValueError(NO_ROWS)
        by_column = zip(header, zip(*rows, strict=True), strict=True)
        table = {name: np.array(column, dtype=object) for name, column in by_column}
        return _of_columns(table, columns, task, words, lines)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV text: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")


def _of_columns(
    table: dict[str, np.ndarray],
    columns: Columns,
    task: TaskChoice,
    words: Words,
    lines: Sequence[int] | None = None,
) -> OwnData:
    check_choices(_of_columns, {"task": task})
    wanted = _wanted(list(table), columns)
    if not len(table[wanted[0]]):
        raise ValueError(NO_ROWS)
    features = wanted[: len(wanted) - len(columns.label) - (columns.client is not None) - (columns.part is not None)]
    client = None if columns.client is None else _text(table[columns.client])
    where = _Where(client, lines)
    if client is not None and (missing := client == "").any():
        raise ValueError(f"{where.row(int(np.argmax(missing)))}, column {columns.client!r} is empty; name the client")
    known: tuple[str, ...] = ()
    if columns.text is None:
        x, inputs = _features({name: table[name] for name in features}, columns.categories, where)
    else:
        (x, known), inputs = as_words(_texts(table[columns.text], columns.text, where), words), ()
    y = _labels([table[name] for name in columns.label], columns.label, task, where)
    part = None if columns.part is None else _text(table[columns.part])
    return own_data(x, y, client, part=part)._replace(inputs=inputs, words=known)


def _wanted(there: Sequence[str], columns: Columns) -> list[str]:
    """Features, then labels, client and part."""
    special = [*columns.label, *(name for name in (columns.client, columns.part) if name is not None)]
    features = columns.features
    if columns.text is not None:
        if features or columns.categories:
            raise ValueError(f"the text of column {columns.text!r} is all that the network sees; name no features")
        features = (columns.text,)
    if features is None:
        features = tuple(name for name in there if name not in special and name)  # an index column has no name
    for name in (*special, *features):
        if name not in there:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(there)}")
    if not features:
        raise ValueError("no column is left for the features")
    if other := [name for name in columns.categories if name not in features]:
        raise ValueError(f"the column of categories {other[0]!r} is no feature; the features are {', '.join(features)}")
    twice = [name for name, n in Counter([*features, *special]).items() if n > 1]
    if twice:
        raise ValueError(f"a column is two things at once: {', '.join(twice)}; name it for one of them, once")
    return [*features, *special]


class _Where(NamedTuple):
    """How to say where a value stands."""

    client: np.ndarray | None
    lines: Sequence[int] | None  # of a text file, where its rows begin

    def row(self, i: int) -> str:
        """A row of the table, as a text editor or the frame counts, and whose it is."""
        whose = "" if self.client is None else f" (client {short(str(self.client[i]))})"
        return f"{f'row {i}' if self.lines is None else f'line {self.lines[i]}'}{whose}"


def _features(
    columns: Mapping[str, np.ndarray], categories: Sequence[str], where: _Where
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(examples, ...) and the names of the features; none of them where a column of arrays has them all."""
    name, first = next(iter(columns.items()))
    if len(columns) == 1 and name not in categories and _holds_arrays(first):
        x = first if first.ndim > 1 else _arrays(first, name, where)
        return (x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x), ()  # grey images have one channel
    found: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        made = _each(column, name, where) if name in categories else {name: _numbers(column, name, where)}
        if twice := [one for one in made if one in found or (one != name and one in columns)]:
            raise ValueError(
                f"a category of column {name!r} and another column are both called {twice[0]!r}; rename one"
            )
        found |= made
    return np.stack(list(found.values()), axis=1), tuple(found)


def _texts(column: np.ndarray, name: str, where: _Where) -> list[str]:
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


def _each(column: np.ndarray, name: str, where: _Where) -> dict[str, np.ndarray]:
    """A feature of 0 and 1 for each word of a column of categories, in their order.

    Raises:
        ValueError: naming the first row without a word, or there are more words than half of the rows, or arrays.
    """
    if _holds_arrays(column):
        raise ValueError(f"column {name!r} holds arrays, which are no categories; leave it out of the categories")
    text = _text(column)
    if (missing := text == "").any():
        raise ValueError(f"{where.row(int(np.argmax(missing)))}, column {name!r} is empty; name the category")
    words, place = np.unique(text, return_inverse=True)
    if len(words) > max(2, len(text) // 2):
        raise ValueError(
            f"column {name!r} has {len(words)} categories in {len(text)} rows; leave it out, or group them"
        )
    return {f"{name}={word}": (place == i).astype(np.float32) for i, word in enumerate(words)}


def _holds_arrays(column: np.ndarray) -> bool:
    return column.ndim > 1 or isinstance(column[0], np.ndarray | list)


def _arrays(column: np.ndarray, name: str, where: _Where) -> np.ndarray:
    """A column whose cells are arrays or lists, as one array (examples, ...).

    Raises:
        ValueError: naming the first cell that has another shape than that of the first example, or none.
    """
    cells = []
    for i, value in enumerate(column):
        try:
            cells.append(np.asarray(value))
        except ValueError:  # lists of several lengths in one
            raise ValueError(f"{where.row(i)}, column {name!r} has lists of several lengths; give one length") from None
        if (shape := cells[i].shape) != (first := cells[0].shape):
            raise ValueError(f"{where.row(i)}, column {name!r} has shape {shape} and the first row {first}; give one")
    return np.stack(cells)


def _numbers(column: np.ndarray, name: str, where: _Where) -> np.ndarray:
    """A column as float32.

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
    if bad.any():
        i = int(np.argmax(bad))
        value = column[i]
        is_empty = is_missing(value) or (isinstance(value, str) and not value)  # of an array == has no truth
        what = "empty" if is_empty else f"{short(str(value))}, no finite number"
        is_word = isinstance(value, str) and not is_empty
        ways = "a category: --category-column, Columns(categories=...); a text: --text-column, Columns(text=...)"
        words = f" (name the column as {ways})" if is_word else ""
        remedy = f"mend it{words}, or leave the column or the row out"
        raise ValueError(f"{where.row(i)}, column {name!r} is {what}; {remedy}")
    return numbers.astype(np.float32)


_NO_NUMBERS = (np.datetime64, np.timedelta64, complex)
"""What NumPy makes a number of, and should not."""


def _number(value: Any) -> float:
    if isinstance(value, _NO_NUMBERS):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _labels(columns: Sequence[np.ndarray], names: Sequence[str], task: TaskChoice, where: _Where) -> np.ndarray:
    if not columns:
        raise ValueError("no label column is named")
    if task == "classification" or (task == "auto" and len(columns) == 1):
        if len(columns) > 1:
            raise ValueError(f"classes stand in one column, not in {', '.join(names)}")
        return _classes_or_targets(columns[0], names[0], task, where)
    targets = np.stack([_numbers(column, name, where) for column, name in zip(columns, names, strict=True)], axis=1)
    binary = np.isin(targets, (0, 1)).all()
    if task == "labels" or (task == "auto" and binary):
        if not binary:
            raise ValueError(f"columns {', '.join(names)}: several labels of an example are 0 or 1 each")
        return targets.astype(np.int32)
    return targets[:, 0] if len(columns) == 1 else targets


def _classes_or_targets(column: np.ndarray, name: str, task: TaskChoice, where: _Where) -> np.ndarray:
    """(examples,) int or text: classes; float: targets."""
    text = _text(column)
    numbers = np.array([_number(value) for value in text])
    missing, no_number = text == "", np.isin(text, ("nan", "None"))
    if (np.isfinite(numbers) | missing | no_number).all():  # elsewhere they are names of classes
        missing |= no_number
    if missing.any():
        raise ValueError(f"{where.row(int(np.argmax(missing)))}, column {name!r} is empty; every example has a label")
    if not np.isfinite(numbers).all():
        return text  # names
    if (numbers != np.round(numbers)).any():
        return text if task == "classification" else _numbers(column, name, where)
    n_values = len(np.unique(numbers))
    if task == "auto" and n_values > _MANY:
        raise ValueError(
            f"column {name!r} has {n_values} different whole numbers: say task 'classification' or 'regression'"
        )
    if numbers.min() >= 0 and numbers.max() < 2 * n_values:
        return numbers.astype(np.int64)
    # One name for 10 and 10.0; a number of more digits than float64 has may be that of several texts.
    return np.array([str(int(n)) if abs(n) < 2**53 else name for n, name in zip(numbers, text, strict=True)])


def _text(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f" and are_whole(column):
        column = column.astype(np.int64)  # as pandas has whole numbers beside missing ones
    return np.array(["" if is_missing(value) else as_text(value).strip() for value in column])
