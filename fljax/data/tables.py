"""Data of your own in tables: CSV files, pandas and polars frames, Hugging Face data sets."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import check_choices, check_kind, there_are
from fljax.data.bad_cells import Where
from fljax.data.columns import features_of, text_of, texts_of
from fljax.data.fill import Fill
from fljax.data.label_columns import TaskChoice, labels_of
from fljax.data.own import OwnData, own_data
from fljax.data.own_checks import PARTS, VALIDATION
from fljax.data.shown import short
from fljax.data.words import USUAL, Words, as_words
from fljax.files import naming
from fljax.ranges import said

TEXT_TABLES = (".csv", ".tsv")
TABLES = (*TEXT_TABLES, ".parquet")
NO_ROWS = "no rows; give the names of the columns, and some examples below"


class Table(NamedTuple):
    """Columns by their names, and of a text file the lines that its rows begin on."""

    columns: dict[str, np.ndarray]
    lines: Sequence[int] | None = None


class Columns(NamedTuple):
    """What the columns of a table are."""

    label: tuple[str, ...]  # one of classes or targets; several: several targets, or labels of 0 and 1
    client: str | None = None  # whose an example is
    part: str | None = None  # "train", "val" or "test"
    features: tuple[str, ...] | None = None  # None: all others
    categories: tuple[str, ...] = ()  # of the features, those of words or codes: a feature of 0 and 1 for each of them
    text: str | None = None  # of texts, in the place of features: their words become tokens
    ignored: tuple[str, ...] = ()  # where all others are features: no features either, such as dates
    fill: Fill | None = None  # what takes the place of empty cells of features; None: they are refused

    @property
    def special(self) -> tuple[str, ...]:
        """The columns that are no features and say something of an example: labels, client and part."""
        return (*self.label, *(name for name in (self.client, self.part) if name is not None))

    def others(self, there: Iterable[str]) -> tuple[str, ...]:
        """Of the columns that are ``there`` those that are nothing else: the features, where none are named."""
        known = (*self.special, *self.ignored)
        return tuple(name for name in there if name and name not in known)  # an index column has no name


def as_columns(columns: Any) -> Columns:
    """The columns as they are meant: a name by itself is one of a kind.

    Raises:
        ValueError: they are no `Columns`.
    """
    check_kind("columns", columns, Columns, 'give fljax.Columns(("label",), client="client")')
    several = {
        name: (one,)
        for name in ("label", "features", "categories", "ignored")
        if isinstance(one := getattr(columns, name), str)
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
    return _of_columns(_frame_table(frame), columns, task, words)


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
    plain = dataset.with_format("numpy")
    wanted = [*_features(dataset.column_names, columns), *columns.special]
    return _of_columns(Table({name: np.asarray(plain[name][:]) for name in wanted}), columns, task, words)


def read_table(path: Path, columns: Columns, task: TaskChoice = "auto", words: Words = USUAL) -> OwnData:
    """The examples of a file of a table, as `from_frame` has them.

    Raises:
        ValueError: in one line, with the file, and line, column and client of a value that is no number.
    """
    with naming(path):
        return _of_columns(table_in(path), columns, task, words)


def table_in(path: Path) -> Table:
    """The columns of a CSV file, whose first line names them, or of a Parquet file.

    What separates the values of a ``.tsv`` is a tab; elsewhere a comma or, where the first line has none, a semicolon,
    a tab or a ``|`` that it has.

    Raises:
        ValueError: it is no such file, has no rows, or two columns of one name.
    """
    table = _text_table(path) if path.suffix in TEXT_TABLES else _parquet_table(path)
    if not len(next(iter(table.columns.values()), ())):
        raise ValueError(NO_ROWS)
    return table


@contextmanager
def _values_of_any_length() -> Iterator[None]:
    """Inside it, Python's csv reads values of more than 131,072 characters too, such as a book."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _text_table(path: Path) -> Table:
    try:
        with _values_of_any_length(), path.open(newline="", encoding="utf-8-sig") as file:
            separator = "\t" if path.suffix == ".tsv" else _separator(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=separator)
            header = next(reader, [])
            rows, lines, begins = [], [], reader.line_num + 1  # empty lines are none; a quoted value may have several
            for row in reader:
                if row and len(row) != len(header):
                    raise ValueError(f"line {begins} has {len(row)} values and the header {len(header)} names")
                if row:
                    rows.append(row)
                    lines.append(begins)
                begins = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise ValueError(f"no CSV text in UTF-8: {error}; save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"no CSV text: {error}") from None
    _check_names(header)
    by_column = zip(header, zip(*rows, strict=True), strict=True) if rows else ()
    return Table({name: np.array(column, dtype=object) for name, column in by_column}, lines)


def _separator(header: str) -> str:
    return next((one for one in ",;\t|" if one in header), ",")


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
        except Exception as error:  # each package has errors of its own
            raise ValueError(f"no Parquet file that can be read: {' '.join(str(error).split())[:200]}") from None
        return _frame_table(frame)
    raise ValueError("reading Parquet needs pandas or polars: pip install polars")


def _frame_table(frame: Any) -> Table:
    _check_names([str(name) for name in frame.columns])
    return Table({str(name): np.asarray(frame[name]) for name in frame.columns})


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")


def _of_columns(table: Table, columns: Columns, task: TaskChoice, words: Words) -> OwnData:
    check_choices(_of_columns, {"task": task})
    there = table.columns
    features = _features(list(there), columns)
    if not len(there[features[0]]):
        raise ValueError(NO_ROWS)
    client, where = clients_in(table, columns.client)
    known: tuple[str, ...] = ()
    if columns.fill not in (None, "median", "mean"):
        raise ValueError(f"fill={columns.fill!r} is unknown; choose 'median' or 'mean', or None")
    if columns.text is None:
        words_of = dict.fromkeys(columns.categories, ())
        x, inputs = features_of({name: there[name] for name in features}, words_of, where, columns.fill is not None)
        if columns.fill is not None and not inputs:
            raise ValueError(f"column {features[0]!r} holds arrays, in which no cell is filled; leave fill out")
    else:
        (x, known), inputs = as_words(texts_of(there[columns.text], columns.text, where), words), ()
    y = labels_of([there[name] for name in columns.label], columns.label, task, where)
    part = None if columns.part is None else _parts(there[columns.part], columns.part, where)
    made = own_data(x if columns.fill is None else np.nan_to_num(x), y, client, part=part)
    made = made._replace(inputs=inputs, words=known)
    return made if columns.fill is None else made._replace(empty=np.isnan(x), fill=columns.fill)


def _parts(column: np.ndarray, name: str, where: Where) -> np.ndarray:
    """What each example is for; ValueError naming the first row of another word."""
    part = text_of(column)
    if (strange := ~np.isin(part, (*PARTS, *VALIDATION))).any():
        i = int(np.argmax(strange))
        raise ValueError(f"{where.row(i)}, column {name!r} is {short(str(part[i]))}; choose one of {', '.join(PARTS)}")
    return part


def clients_in(table: Table, column: str | None) -> tuple[np.ndarray | None, Where]:
    """(rows,) whose each row is, None where no column says it; and how to say where a value stands.

    Raises:
        ValueError: naming the first row that is nobody's.
    """
    client = None if column is None else text_of(table.columns[column])
    where = Where(client, table.lines)
    if client is not None and (missing := client == "").any():
        raise ValueError(f"{where.row(int(np.argmax(missing)))}, column {column!r} is empty; name the client")
    return client, where


def _features(there: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """The columns of the features, of those that are ``there``.

    Raises:
        ValueError: a column is not there or two things at once, no feature is left, or what is said of the columns does
            not go together.
    """
    special = columns.special
    features = columns.features
    if columns.text is not None:
        if features or columns.categories or columns.ignored or columns.fill:
            raise ValueError(f"the text of column {columns.text!r} is all that the network sees; name no other columns")
        features = (columns.text,)
    if features is None:
        features = columns.others(there)
    elif columns.ignored and columns.text is None:
        raise ValueError("name the features, or the columns that are ignored beside them, not both")
    for name in (*special, *features, *columns.ignored):
        if name not in there:
            raise ValueError(f"there is no column {name!r}; {there_are('the columns', there, name)}")
    if not features:
        raise ValueError("no column is left for the features")
    if other := [name for name in columns.categories if name in columns.label]:
        raise ValueError(
            f"the label {other[0]!r} is no feature, and its words are classes; leave it out of the categories"
        )
    if other := [name for name in columns.categories if name not in features]:
        raise ValueError(f"the column of categories {other[0]!r} is no feature; the features are {', '.join(features)}")
    twice = [name for name, n in Counter([*features, *special, *columns.ignored]).items() if n > 1]
    if twice:
        raise ValueError(f"a column is two things at once: {', '.join(twice)}; name it for one of them, once")
    return features
