"""New examples of the kind that a run was trained on, with or without labels, for predictions of a trained model."""

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
    """The format of a run's examples."""

    columns: Columns  # of its table, or the names of its arrays
    shape: tuple[int, ...]  # of an example
    dtype: Any
    inputs: tuple[str, ...] = ()  # names of a table's features, in order
    words: tuple[str, ...] = ()  # for texts, the word of each token
    fills: np.ndarray | None = None  # (features,) values for a table's empty cells; None: these are rejected


class NewExamples(NamedTuple):
    """Examples as inputs of a run's network."""

    x: np.ndarray  # (examples, ...) of the run's dtype
    names: np.ndarray  # (examples,) rows of the file from 0, or names of image files
    client: np.ndarray | None  # (examples,) text, the client of each example; None: the file names no clients
    label: tuple[np.ndarray, ...] = ()  # (examples,) text of each of the run's label columns, if the file has them all


def read_new(path: str | Path, known: Known, labelled: bool = False) -> NewExamples:
    """The examples of a table or ``.npz`` like that of a run, or of a folder of images, perhaps in folders of clients.

    A table has the run's features by name, in any order. A category must be one that the run had; a word of a text may
    be new. If the run's texts were not in a table, new texts are in the column "text".

    Args:
        path: of the file or folder.
        known: the format of the run's examples.
        labelled: whether labels are required; without it, labels of an ``.npz`` are not read.

    Raises:
        ValueError: in one line that names the file: it does not exist, or its examples differ in kind from the run's.
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
            raise ValueError(f"new examples in a {path.suffix or 'nameless'} file cannot be read; give {kinds}")
        if labelled and not found.label:
            absent = ", ".join(map(repr, known.columns.label))
            where = "in folders CLIENT/CLASS/" if path.is_dir() else f"in a column {absent or 'label'}"
            raise ValueError(f"its examples have no labels, which training needs; put them {where}")
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
    """Column of categories -> its words in the run, from features called ``column=word``."""
    found: dict[str, list[str]] = {}
    for name in known.inputs:
        of = [column for column in known.columns.categories if name.startswith(f"{column}=")]
        if of and name not in there:
            column = max(of, key=len)
            found.setdefault(column, []).append(name.removeprefix(f"{column}="))
    return found


def _features(known: Known, categories: dict[str, list[str]], there: Collection[str]) -> list[str]:
    """The input columns of the run's network, in its order."""
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
    """The examples of an ``.npz``; labels are read only if ``labelled``."""
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
    """The images of a folder: in it, in folders named after clients, or in folders of classes inside these."""
    depths = (folder.glob("/".join("*" * depth)) for depth in (1, 2, 3))
    files = sorted(file for there in depths for file in there if _is_image(file, folder))
    if not files:
        raise ValueError("no images; put them into it, or into folders named after clients, CLIENT/ or CLIENT/CLASS/")
    names = [file.relative_to(folder) for file in files]
    if len(depths := {len(name.parts) for name in names}) > 1:
        raise ValueError("it has images on several levels of folders; put all images on one level")
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
    """The examples with the run's dtype and shape.

    Raises:
        ValueError: they are of another shape or type, or an example is not finite (the first is named).
    """
    given, wanted = np.asarray(x), np.dtype(known.dtype)
    if given.dtype == np.uint8 and (*given.shape[1:], 1) == known.shape:
        given = given[..., None]  # grey images have one channel
    if given.shape[1:] != known.shape:
        raise ValueError(f"examples have shape {given.shape[1:]}; give the run's shape, {known.shape}")
    kinds = {"uint8": "u", "int32": "iu"}.get(wanted.name, "fiub")
    is_pixels = given.dtype == np.uint8 and wanted != np.uint8
    if given.dtype.kind not in kinds or is_pixels or (wanted == np.uint8 and given.dtype != np.uint8):
        raise ValueError(f"examples are {given.dtype}; give the run's type, {wanted}")
    made = given.astype(wanted)
    if bad := [i for i, one in enumerate(made) if not np.isfinite(one).all()]:
        raise ValueError(f"example {bad[0]} is not finite; correct it, or leave it out")
    return made
