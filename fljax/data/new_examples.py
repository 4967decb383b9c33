"""New examples of the kind that a run was trained on, with labels or without: what a trained model is asked about."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.data.columns import features_of, text_of, texts_of
from fljax.data.files import arrays_in
from fljax.data.image_folders import IMAGES, images_in
from fljax.data.tables import TABLES, Columns, Table, clients_in, table_in
from fljax.data.words import tokens_of
from fljax.files import naming


class Known(NamedTuple):
    """What a run's examples are."""

    columns: Columns  # of its table, or the names of its arrays
    shape: tuple[int, ...]  # of an example
    dtype: Any
    inputs: tuple[str, ...] = ()  # names of a table's features, in their order
    words: tuple[str, ...] = ()  # by their tokens, of texts
    fills: np.ndarray | None = None  # (features,) what takes the place of a table's empty cells; None: they are refused


class NewExamples(NamedTuple):
    """Examples as a run's network takes them."""

    x: np.ndarray  # (examples, ...) of the run's dtype
    names: np.ndarray  # (examples,) rows of the file from 0, or names of image files
    client: np.ndarray | None  # (examples,) text, whose each one is; None: the file does not say it
    label: tuple[np.ndarray, ...] = ()  # (examples,) text of each label column of the run, of a table that has them all


def read_new(path: str | Path, known: Known, labelled: bool = False) -> NewExamples:
    """The examples of a table or ``.npz`` like that of a run, or of a folder of images, perhaps in folders of clients.

    A table has the run's features under their names, in any order. A category has to be one that the run had; a word of
    a text may be new. Where the run's texts were in no table, the new ones stand in the column "text".

    Args:
        path: of the file or folder.
        known: what the run's examples are.
        labelled: whether they must have labels; those of an ``.npz`` are not looked at otherwise.

    Raises:
        ValueError: in one line, with the file: it is not there, or its examples are not such as the run had.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no {path}; give a .csv, .tsv, .parquet or .npz file, or a folder of images")
    with naming(path):
        if path.is_dir():
            found = _images(path)
        elif path.suffix == ".npz":
            found = _arrays(path, known.columns, labelled)
        elif path.suffix in TABLES:
            found = _rows(table_in(path), known)
        else:
            kinds = f"{', '.join(TABLES)}, .npz, or a folder of images"
            raise ValueError(f"new examples are no {path.suffix or 'nameless'} file; give {kinds}")
        if labelled and not found.label:
            absent = ", ".join(map(repr, known.columns.label))
            where = "in folders CLIENT/CLASS/" if path.is_dir() else f"in a column {absent or 'label'}"
            raise ValueError(f"its examples have no labels, which clients learn from; they stand {where}")
        return found._replace(x=_as_trained(found.x, known))


def _rows(table: Table, known: Known) -> NewExamples:
    there, columns = table.columns, known.columns
    of_categories = {} if known.words else _categories(known, there)
    features = _features(known, of_categories, there)
    if absent := [name for name in features if name not in there]:
        raise ValueError(f"there is no column {absent[0]!r}; the columns are {', '.join(there)}")
    client, where = clients_in(table, columns.client if columns.client in there else None)
    where = where._replace(is_of_run=False)
    if known.words:
        x = tokens_of(texts_of(there[features[0]], features[0], where), known.words, known.shape[0])
    else:
        wanted = {name: there[name] for name in features}
        x, _ = features_of(wanted, of_categories, where, known.fills is not None)
        x = x if known.fills is None else np.where(np.isnan(x), known.fills, x)
    label = [text_of(there[name]) for name in columns.label if name in there]
    return NewExamples(x, np.arange(len(x)), client, tuple(label) if len(label) == len(columns.label) else ())


def _categories(known: Known, there: Collection[str]) -> dict[str, list[str]]:
    """The words that each column of categories had, of features that are called ``column=word``."""
    found: dict[str, list[str]] = {}
    for name in known.inputs:
        of = [column for column in known.columns.categories if name.startswith(f"{column}=")]
        if of and name not in there:
            column = max(of, key=len)
            found.setdefault(column, []).append(name.removeprefix(f"{column}="))
    return found


def _features(known: Known, categories: dict[str, list[str]], there: Collection[str]) -> list[str]:
    """The columns that the run's network saw, in its order."""
    columns = known.columns
    if known.words:
        return [columns.text or "text"]
    if known.inputs:
        of = {f"{column}={word}": column for column, words in categories.items() for word in words}
        return list(dict.fromkeys(of.get(name, name) for name in known.inputs))
    if columns.features:
        return [*columns.features]
    return [*columns.others(there)]


def _arrays(path: Path, columns: Columns, labelled: bool) -> NewExamples:
    """Those of an ``.npz``, whose labels are looked at where ``labelled``."""
    if columns.categories or columns.ignored or columns.text is not None:
        raise ValueError(f"the run's examples are rows of a table; give one with its columns, {', '.join(TABLES)}")
    wanted = columns._replace(label=columns.label if labelled else (), part=None)
    found = arrays_in(path, wanted, needed=("x", "y") if labelled else ("x",))
    x, y, client = found["x"], found["y"] if labelled else None, found["client"]
    for what, array, n_axes in (("client ids", client, 1), ("labels", y, 2)):
        if array is not None and (len(array) != len(x) or array.ndim > n_axes):
            raise ValueError(f"has {len(x)} examples and {what} of shape {array.shape}; give one for each example")
    label = () if y is None else tuple(map(text_of, y.reshape(len(y), -1).T))
    return NewExamples(x, np.arange(len(x)), None if client is None else text_of(client), label)


def _images(folder: Path) -> NewExamples:
    """Those that stand in a folder, in folders of it that have their clients' names, or there in folders of classes."""
    depths = (folder.glob("/".join("*" * depth)) for depth in (1, 2, 3))
    files = sorted(file for there in depths for file in there if _is_image(file, folder))
    if not files:
        raise ValueError("no images; they stand in it, or in folders called as the clients, CLIENT/ or CLIENT/CLASS/")
    names = [file.relative_to(folder) for file in files]
    if len(depths := {len(name.parts) for name in names}) > 1:
        raise ValueError("images stand in it and in folders of it; put all in folders of clients, or none")
    of_clients, with_classes = depths != {1}, depths == {3}
    return NewExamples(
        images_in(files),
        np.array([name.as_posix() for name in names]),
        np.array([name.parts[0] for name in names]) if of_clients else None,
        (np.array([name.parts[1] for name in names]),) if with_classes else (),
    )


def _is_image(file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix.lower() in IMAGES and not is_hidden


def _as_trained(x: np.ndarray, known: Known) -> np.ndarray:
    """Examples of the run's dtype and shape.

    Raises:
        ValueError: they are of another shape or kind, or naming the first that is not finite.
    """
    given, wanted = np.asarray(x), np.dtype(known.dtype)
    if given.dtype == np.uint8 and (*given.shape[1:], 1) == known.shape:
        given = given[..., None]  # grey images have one channel
    if given.shape[1:] != known.shape:
        raise ValueError(f"examples have shape {given.shape[1:]}, and those of the run {known.shape}")
    kinds = {"uint8": "u", "int32": "iu"}.get(wanted.name, "fiub")
    is_pixels = given.dtype == np.uint8 and wanted != np.uint8
    if given.dtype.kind not in kinds or is_pixels or (wanted == np.uint8 and given.dtype != np.uint8):
        raise ValueError(f"examples are {given.dtype}, and those of the run {wanted}; give such")
    made = given.astype(wanted)
    if bad := [i for i, one in enumerate(made) if not np.isfinite(one).all()]:
        raise ValueError(f"example {bad[0]} is not finite; correct it, or leave it out")
    return made
