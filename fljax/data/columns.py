"""Columns of a table as what networks see: features, categories and texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.data.bad_cells import BadCellsError, Where, and_more, check_none
from fljax.data.cells import as_text, is_empty, is_missing
from fljax.data.number_columns import numbers_of
from fljax.data.numbered import are_whole
from fljax.data.shown import short


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
        try:
            if name in categories:
                made = _each(column, name, categories[name], where)
            else:
                made = {name: numbers_of(column, name, where, may_be_empty=may_be_empty)}
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
        if is_empty(text):
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


def text_of(column: np.ndarray) -> np.ndarray:
    """(rows,) the values of a column as text, "" for a missing one."""
    if column.dtype.kind == "f" and are_whole(column):
        column = column.astype(np.int64)  # as pandas has whole numbers beside missing ones
    return np.array(["" if is_missing(value) else as_text(value).strip() for value in column])
