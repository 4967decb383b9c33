"""Your own data in tables: CSV files, pandas and polars frames, Hugging Face data sets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import check_choices, check_kind, there_are
from fljax.data.own.arrays import OwnData, own_data
from fljax.data.own.bad_cells import Where
from fljax.data.own.checks import PARTS, VALIDATION
from fljax.data.own.columns import features_of, text_of, texts_of
from fljax.data.own.csv_files import read_lines
from fljax.data.own.file_kinds import TEXT_TABLES, kind_of
from fljax.data.own.fill import Fill
from fljax.data.own.label_columns import TaskChoice, labels_of
from fljax.data.own.words import USUAL, Words, as_words
from fljax.data.shown import short
from fljax.files import naming
from fljax.ranges import said

NO_ROWS = "no rows; give the names of the columns, and some examples below"


class Table(NamedTuple):
    """Columns by name and, for a text file, the lines on which its rows begin."""

    columns: dict[str, np.ndarray]
    lines: Sequence[int] | None = None


class Columns(NamedTuple):
    """The roles of a table's columns."""

    label: tuple[str, ...]  # one column: classes or targets; several: several targets, or labels of 0 and 1
    client: str | None = None  # the client of each example
    part: str | None = None  # "train", "val" or "test"
    features: tuple[str, ...] | None = None  # None: all others
    categories: tuple[str, ...] = ()  # features of words or codes: each word becomes a feature of 0 and 1
    text: str | None = None  # a column of texts, instead of features: their words become tokens
    ignored: tuple[str, ...] = ()  # columns that are not features, such as dates, if `features` is None
    fill: Fill | None = None  # the value of empty cells of features; None: they are rejected

    @property
    def special(self) -> tuple[str, ...]:
        """The columns that describe examples without being features: labels, client and part."""
        return (*self.label, *(name for name in (self.client, self.part) if name is not None))

    def others(self, there: Iterable[str]) -> tuple[str, ...]:
        """The columns in ``there`` without another role: the features, if no features are named."""
        special = (*self.special, *self.ignored)
        return tuple(name for name in there if name and name not in special)  # an index column has no name


def as_columns(columns: Any) -> Columns:
    """The columns with each single name in a tuple.

    Raises:
        ValueError: ``columns`` are not `Columns`, or have something else than names.
    """
    check_kind("columns", columns, Columns, 'give fljax.Columns(("label",), client="client")')
    tuples = {
        name: (value,)
        for name in ("label", "features", "categories", "ignored")
        if isinstance(value := getattr(columns, name), str)
    }
    columns = columns._replace(**tuples)
    for name in ("label", "categories", "ignored", "features"):
        value = getattr(columns, name)
        is_names = isinstance(value, tuple | list) and all(isinstance(column, str) for column in value)
        if not is_names and not (value is None and name == "features"):
            raise ValueError(f"columns: {said(name, value)} are not names of columns; give a tuple of texts")
    for name in ("client", "part", "text"):
        if not isinstance(value := getattr(columns, name), str | None):
            raise ValueError(f"columns: {said(name, value)} is not the name of a column; give a text, or None")
    return columns._replace(**{name: tuple(getattr(columns, name)) for name in ("label", "categories", "ignored")})


def from_frame(frame: Any, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a pandas or polars frame, or of anything with ``columns`` and columns by name.

    A column of arrays (images, token lists of one length) is used unchanged if it is the only feature column. A column
    of ``columns.categories`` becomes one feature of 0 and 1 per word, in sorted order, called ``column=word``.
    ``columns.text`` becomes tokens of words (`fljax.data.own.words.as_words`), which `OwnData.words` lists.

    Args:
        frame: the table.
        columns: the role of each column.
        task: "auto": whole numbers and text are classes, other numbers targets of a regression.
        words: how many words of a text column get a token, and how many words of each text are used.

    Raises:
        ValueError: two columns have the same name, a named column does not exist, or a value is not a number (the
            message names its row, column and client).
    """
    columns = as_columns(columns)
    if not hasattr(frame, "columns"):
        raise ValueError(f"{said('frame', frame)} has no columns; give a pandas or polars frame")
    return _as_own_data(_frame_table(frame), columns, task, words)


def from_hugging_face(dataset: Any, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a ``datasets.Dataset``, as `from_frame` returns them; images become uint8 arrays.

    Raises:
        ValueError: as `from_frame`, or several splits are given at once.
    """
    columns = as_columns(columns)
    names = getattr(dataset, "column_names", dataset)
    if isinstance(names, Mapping):  # `datasets.load_dataset` returns all splits so
        parts = ", ".join(map(repr, dataset))
        raise ValueError(f"dataset is a dict of {parts}, not a datasets.Dataset; give one split, dataset['train']")
    if not hasattr(dataset, "with_format"):
        raise ValueError(f"{said('dataset', dataset)} is not a datasets.Dataset; for a frame use fljax.from_frame")
    in_numpy = dataset.with_format("numpy")
    names_read = [*_feature_columns(dataset.column_names, columns), *columns.special]
    return _as_own_data(Table({name: np.asarray(in_numpy[name][:]) for name in names_read}), columns, task, words)


def read_table(path: Path, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a table in a file, as `from_frame` returns them.

    Raises:
        ValueError: in one line that names the file and, for a value that is not a number, its line, column and client.
    """
    with naming(path):
        return _as_own_data(table_in(path), columns, task, words)


def table_in(path: Path) -> Table:
    """The columns of a CSV file, whose first line names them, or of a Parquet file.

    Values of a ``.tsv`` are separated by tabs; otherwise by commas or, if the first line has none, by the semicolon,
    tab or ``|`` that it has.

    Raises:
        ValueError: the file is of another kind, has no rows, or has two columns of the same name.
    """
    table = _text_table(path) if kind_of(path) in TEXT_TABLES else _parquet_table(path)
    if not len(next(iter(table.columns.values()), ())):
        raise ValueError(NO_ROWS)
    return table


def _text_table(path: Path) -> Table:
    header, rows, lines = read_lines(path)
    _check_names(header)
    by_column = zip(header, zip(*rows, strict=True), strict=True) if rows else ()
    return Table({name: np.array(column, dtype=object) for name, column in by_column}, lines)


def _parquet_table(path: Path) -> Table:
    for package in ("polars", "pandas"):
        try:
            module = __import__(package)
        except ImportError:
            continue
        try:
            frame = module.read_parquet(path)
        except MemoryError:
            raise
        except Exception as error:  # each package has its own errors
            raise ValueError(f"cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
        return _frame_table(frame)
    raise ValueError("reading Parquet needs pandas or polars: pip install polars")


def _frame_table(frame: Any) -> Table:
    _check_names([str(name) for name in frame.columns])
    return Table({str(name): np.asarray(frame[name]) for name in frame.columns})


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name; rename one")


def _as_own_data(table: Table, columns: Columns, task: TaskChoice, words: Words) -> OwnData:
    check_choices(_as_own_data, {"task": task})
    by_name = table.columns
    features = _feature_columns(list(by_name), columns)
    if not len(by_name[features[0]]):
        raise ValueError(NO_ROWS)
    client, where = clients_in(table, columns.client)
    vocabulary: tuple[str, ...] = ()
    if columns.fill not in (None, "median", "mean"):
        raise ValueError(f"fill={columns.fill!r} is unknown; choose 'median' or 'mean', or None")
    if columns.text is None:
        words_of = dict.fromkeys(columns.categories, ())
        x, inputs = features_of({name: by_name[name] for name in features}, words_of, where, columns.fill is not None)
        if columns.fill is not None and not inputs:
            raise ValueError(f"column {features[0]!r} holds arrays, whose cells cannot be filled; leave fill out")
    else:
        (x, vocabulary), inputs = as_words(texts_of(by_name[columns.text], columns.text, where), words), ()
    y = labels_of([by_name[name] for name in columns.label], columns.label, task, where)
    part = None if columns.part is None else _parts(by_name[columns.part], columns.part, where)
    data = own_data(x if columns.fill is None else np.nan_to_num(x), y, client, part=part)
    data = data._replace(inputs=inputs, words=vocabulary)
    return data if columns.fill is None else data._replace(empty=np.isnan(x), fill=columns.fill)


def _parts(column: np.ndarray, name: str, where: Where) -> np.ndarray:
    """The split of each example; raises ValueError naming the first row with an unknown word."""
    part = text_of(column)
    if (is_unknown := ~np.isin(part, (*PARTS, *VALIDATION))).any():
        i = int(np.argmax(is_unknown))
        raise ValueError(f"{where.row(i)}, column {name!r} is {short(str(part[i]))}; choose one of {', '.join(PARTS)}")
    return part


def clients_in(table: Table, column: str | None) -> tuple[np.ndarray | None, Where]:
    """(rows,) the client of each row, or None without such a column; and how to name the place of a value.

    Raises:
        ValueError: naming the first row without a client.
    """
    client = None if column is None else text_of(table.columns[column])
    where = Where(client, table.lines)
    if client is not None and (is_empty := client == "").any():
        raise ValueError(f"{where.row(int(np.argmax(is_empty)))}, column {column!r} is empty; name the client")
    return client, where


def _feature_columns(names: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """The feature columns, of the columns called ``names``.

    Raises:
        ValueError: a column does not exist or has two roles, no feature is left, or the roles contradict each other.
    """
    special = columns.special
    features = columns.features
    if columns.text is not None:
        if features or columns.categories or columns.ignored or columns.fill:
            text = f"column {columns.text!r} has the texts, the only input of the network"
            raise ValueError(f"{text}; name no features, categories, ignored columns or fill")
        features = (columns.text,)
    if features is None:
        features = columns.others(names)
    elif columns.ignored and columns.text is None:
        raise ValueError("features and ignored columns are named; name only one of them")
    for name in (*special, *features, *columns.ignored):
        if name not in names:
            raise ValueError(f"there is no column {name!r}; {there_are('the columns', names, name)}")
    if not features:
        raise ValueError("no column is left for the features; name or ignore fewer columns")
    if misplaced := [name for name in columns.categories if name in columns.label]:
        raise ValueError(
            f"the label {misplaced[0]!r} is not a feature, its words are classes; leave it out of the categories"
        )
    if misplaced := [name for name in columns.categories if name not in features]:
        all_names = ", ".join(features)
        raise ValueError(f"the category column {misplaced[0]!r} is not a feature; the features are {all_names}")
    repeated = [name for name, n in Counter([*features, *special, *columns.ignored]).items() if n > 1]
    if repeated:
        raise ValueError(f"a column is named twice: {', '.join(repeated)}; name it once, for one role")
    return features
