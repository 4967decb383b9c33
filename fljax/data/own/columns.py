"""Columns of a table as inputs of networks: features, categories and texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.data.own.bad_cells import BadCellsError, Where, and_more, check_none
from fljax.data.own.cells import as_text, is_empty, is_missing
from fljax.data.own.number_columns import numbers_of
from fljax.data.own.numbered import are_whole
from fljax.data.shown import short


def features_of(
    columns: Mapping[str, np.ndarray],
    categories: Mapping[str, Sequence[str]],
    where: Where,
    may_be_empty: bool = False,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(examples, ...) features and their names; no names if one column of arrays has all features.

    Args:
        columns: by their names.
        categories: name of each column of words -> the words that it may have; (): those that occur in it.
        where: how to name the place of a value.
        may_be_empty: whether cells of numbers may be empty; these become NaN.

    Raises:
        ValueError: a value is invalid; the message names the first, and the number of others in each column.
    """
    name, first = next(iter(columns.items()))
    if len(columns) == 1 and name not in categories and _holds_arrays(first):
        x = first if first.ndim > 1 else _arrays(first, name, where)
        return (x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x), ()  # grey images have one channel
    features: dict[str, np.ndarray] = {}
    errors: list[BadCellsError] = []
    for name, column in columns.items():
        try:
            if name in categories:
                of_column = _indicators(column, name, categories[name], where)
            else:
                of_column = {name: numbers_of(column, name, where, may_be_empty=may_be_empty)}
        except BadCellsError as error:
            errors.append(error)
            continue
        if repeated := [one for one in of_column if one in features or (one != name and one in columns)]:
            raise ValueError(
                f"a category of column {name!r} and another column are both called {repeated[0]!r}; rename one"
            )
        features |= of_column
    check_none(errors)
    return np.stack(list(features.values()), axis=1), tuple(features)


def texts_of(column: np.ndarray, name: str, where: Where) -> list[str]:
    """A column of texts.

    Raises:
        ValueError: a value is missing or not a text; the message names the first.
    """
    for i, text in enumerate(column):
        if is_empty(text):
            raise ValueError(f"{where.row(i)}, column {name!r} is empty; give a text, or leave the row out")
        if not isinstance(text, str):
            raise ValueError(f"{where.row(i)}, column {name!r} is {short(str(text))}; give a text")
    return [str(text) for text in column]


def _indicators(column: np.ndarray, name: str, allowed: Sequence[str], where: Where) -> dict[str, np.ndarray]:
    """A feature of 0 and 1 for each word of a column of categories: the ``allowed`` words, or all that occur, sorted.

    Raises:
        ValueError: a row has no word or an unknown one (the first is named), there are more words than half of the
            rows, or the cells are arrays.
    """
    if _holds_arrays(column):
        raise ValueError(f"column {name!r} holds arrays, which cannot be categories; leave it out of the categories")
    text = text_of(column)
    if (missing := text == "").any():
        place, n = where.row(int(np.argmax(missing))), int(missing.sum())
        raise BadCellsError(f"{place}, column {name!r} is empty{and_more(n)}; name the category", name, place, n)
    words = sorted(allowed) or np.unique(text).tolist()
    place = np.minimum(np.searchsorted(words, text), len(words) - 1)
    if (is_unknown := np.array(words)[place] != text).any():
        i, n = int(np.argmax(is_unknown)), int(is_unknown.sum())
        message = (
            f"{where.row(i)}, column {name!r} is {short(str(text[i]))}{and_more(n)}; choose one of {', '.join(words)}"
        )
        raise BadCellsError(message, name, where.row(i), n)
    if not allowed and len(words) > max(2, len(text) // 2):
        raise ValueError(
            f"column {name!r} has {len(words)} categories in {len(text)} rows; leave it out, or group them"
        )
    return {f"{name}={word}": (place == i).astype(np.float32) for i, word in enumerate(words)}


def _holds_arrays(column: np.ndarray) -> bool:
    return column.ndim > 1 or isinstance(column[0], np.ndarray | list)


def _arrays(column: np.ndarray, name: str, where: Where) -> np.ndarray:
    """A column whose cells are arrays or lists, as one array (examples, ...).

    Raises:
        ValueError: a cell has another shape than the first cell, or no shape; the message names its row.
    """
    cells = []
    for i, value in enumerate(column):
        try:
            cells.append(np.asarray(_plain(value)))
        except ValueError:  # lists of several lengths in one
            raise ValueError(f"{where.row(i)}, column {name!r} has lists of several lengths; give one length") from None
        if (shape := cells[i].shape) != (first := cells[0].shape):
            raise ValueError(f"{where.row(i)}, column {name!r} has shape {shape}, row 0 has {first}; give one shape")
    return np.stack(cells)


def _plain(value: Any) -> Any:
    """Arrays of arrays, which Parquet makes of lists of lists, as lists."""
    return [_plain(part) for part in value] if isinstance(value, np.ndarray) and value.dtype == object else value


def text_of(column: np.ndarray) -> np.ndarray:
    """(rows,) the values of a column as text, "" for missing values."""
    if column.dtype.kind == "f" and are_whole(column[~(gaps := np.isnan(column))]):
        # pandas holds whole numbers as floats if some are missing.
        return np.where(gaps, "", np.where(gaps, 0, column).astype(np.int64).astype(str))
    return np.array(["" if is_missing(value) else as_text(value).strip() for value in column])
