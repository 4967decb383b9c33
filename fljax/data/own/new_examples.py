"""New examples of the kind that a run was trained on, with or without labels, for predictions of a trained model."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.data.own.columns import features_of, text_of, texts_of
from fljax.data.own.file_kinds import ALLOWED_TABLES, TABLES, kind_of
from fljax.data.own.files import arrays_in
from fljax.data.own.image_folders import IMAGES, images_in
from fljax.data.own.tables import Columns, Table, clients_in, table_in
from fljax.data.own.words import tokens_of
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
        raise ValueError(f"there is no {path}; give a {ALLOWED_TABLES} or .npz file, or a folder of images")
    with naming(path):
        if path.is_dir():
            examples = _images(path)
        elif kind_of(path) == ".npz":
            examples = _arrays(path, known.columns, labelled)
        elif kind_of(path) in TABLES:
            examples = _rows(table_in(path), known)
        else:
            raise ValueError(
                f"new examples in a {path.suffix or 'nameless'} file cannot be read; give {ALLOWED_TABLES}, .npz, or a "
                "folder of images"
            )
        if labelled and not examples.label:
            absent = ", ".join(map(repr, known.columns.label))
            where = "in folders CLIENT/CLASS/" if path.is_dir() else f"in a column {absent or 'label'}"
            raise ValueError(f"its examples have no labels, which training needs; put them {where}")
        return examples._replace(x=_as_trained(examples.x, known))


def _rows(table: Table, known: Known) -> NewExamples:
    by_name, columns = table.columns, known.columns
    of_categories = {} if known.words else _words_of_categories(known, by_name)
    features = _input_columns(known, of_categories, by_name)
    if absent := [name for name in features if name not in by_name]:
        raise ValueError(f"there is no column {absent[0]!r}; the columns are {', '.join(by_name)}")
    client, where = clients_in(table, columns.client if columns.client in by_name else None)
    where = where._replace(is_of_run=False)
    if known.words:
        x = tokens_of(texts_of(by_name[features[0]], features[0], where), known.words, known.shape[0])
    else:
        wanted = {name: by_name[name] for name in features}
        x, _ = features_of(wanted, of_categories, where, known.fills is not None)
        x = x if known.fills is None else np.where(np.isnan(x), known.fills, x)
    label = [text_of(by_name[name]) for name in columns.label if name in by_name]
    return NewExamples(x, np.arange(len(x)), client, tuple(label) if len(label) == len(columns.label) else ())


def _words_of_categories(known: Known, column_names: Collection[str]) -> dict[str, list[str]]:
    """Column of categories -> its words in the run, from features called ``column=word``."""
    words_of: dict[str, list[str]] = {}
    for name in known.inputs:
        candidates = [column for column in known.columns.categories if name.startswith(f"{column}=")]
        if candidates and name not in column_names:
            column = max(candidates, key=len)
            words_of.setdefault(column, []).append(name.removeprefix(f"{column}="))
    return words_of


def _input_columns(known: Known, categories: dict[str, list[str]], column_names: Collection[str]) -> list[str]:
    """The input columns of the run's network, in its order."""
    columns = known.columns
    if known.words:
        return [columns.text or "text"]
    if known.inputs:
        column_of = {f"{column}={word}": column for column, words in categories.items() for word in words}
        return list(dict.fromkeys(column_of.get(name, name) for name in known.inputs))
    if columns.features:
        return [*columns.features]
    return [*columns.others(column_names)]


def _arrays(path: Path, columns: Columns, labelled: bool) -> NewExamples:
    """The examples of an ``.npz``; labels are read only if ``labelled``."""
    if columns.categories or columns.ignored or columns.text is not None:
        raise ValueError(f"the run's examples are rows of a table; give one with its columns, {ALLOWED_TABLES}")
    wanted = columns._replace(label=columns.label if labelled else (), part=None)
    arrays = arrays_in(path, wanted, needed=("x", "y") if labelled else ("x",))
    x, y, client = arrays["x"], arrays["y"] if labelled else None, arrays["client"]
    for what, array, n_axes in (("client ids", client, 1), ("labels", y, 2)):
        if array is not None and (len(array) != len(x) or array.ndim > n_axes):
            raise ValueError(f"has {len(x)} examples and {what} of shape {array.shape}; give one for each example")
    if not len(x):
        raise ValueError("has no examples; give some")
    label = () if y is None else tuple(map(text_of, y.reshape(len(y), -1).T))
    client = None if client is None else text_of(client)
    if client is not None and (is_missing := client == "").any():
        raise ValueError(f"client id of example {int(np.argmax(is_missing))} is missing; give one for each example")
    return NewExamples(x, np.arange(len(x)), client, label)


def _images(folder: Path) -> NewExamples:
    """The images of a folder: in it, in folders named after clients, or in folders of classes inside these."""
    depths = (folder.glob("/".join("*" * depth)) for depth in (1, 2, 3))
    files = sorted(file for paths in depths for file in paths if _is_image(file, folder))
    if not files:
        raise ValueError("no images; put them into it, or into folders named after clients, CLIENT/ or CLIENT/CLASS/")
    names = [file.relative_to(folder) for file in files]
    if len(depths := {len(name.parts) for name in names}) > 1:
        raise ValueError("it has images on several levels of folders; put all images on one level")
    has_clients, has_classes = depths != {1}, depths == {3}
    return NewExamples(
        images_in(files),
        np.array([name.as_posix() for name in names]),
        np.array([name.parts[0] for name in names]) if has_clients else None,
        (np.array([name.parts[1] for name in names]),) if has_classes else (),
    )


def _is_image(file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix.lower() in IMAGES and not is_hidden


def _as_trained(x: np.ndarray, known: Known) -> np.ndarray:
    """The examples with the run's dtype and shape.

    Raises:
        ValueError: they are of another shape or type, or an example is not finite (the first is named).
    """
    inputs, dtype = np.asarray(x), np.dtype(known.dtype)
    if inputs.dtype == np.uint8 and (*inputs.shape[1:], 1) == known.shape:
        inputs = inputs[..., None]  # grey images have one channel
    if inputs.shape[1:] != known.shape:
        raise ValueError(f"examples have shape {inputs.shape[1:]}; give the run's shape, {known.shape}")
    kinds = {"uint8": "u", "int32": "iu"}.get(dtype.name, "fiub")
    is_pixels = inputs.dtype == np.uint8 and dtype != np.uint8
    if inputs.dtype.kind not in kinds or is_pixels or (dtype == np.uint8 and inputs.dtype != np.uint8):
        raise ValueError(f"examples are {inputs.dtype}; give the run's type, {dtype}")
    if dtype == np.int32 and inputs.size and (max(-int(inputs.min()), int(inputs.max())) > np.iinfo(np.int32).max):
        raise ValueError(f"examples go from {inputs.min()} to {inputs.max()}; give tokens that int32 holds")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is named
        converted = inputs.astype(dtype)
    if not_finite := [i for i, example in enumerate(converted) if not np.isfinite(example).all()]:
        raise ValueError(f"example {not_finite[0]} is not finite; correct it, or leave it out")
    return converted
