"""Your own data in files: CSV, ``.npz``, Parquet, LEAF's JSON, and a folder of images for each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from fljax.choices import check_choices, there_are
from fljax.data.federation import on_host
from fljax.data.labels import are_classes, counts_classes
from fljax.data.own.arrays import OwnData, own_data
from fljax.data.own.file_kinds import ALLOWED_TABLES, TABLES, is_packed, kind_of
from fljax.data.own.image_folders import read_images
from fljax.data.own.label_columns import TaskChoice
from fljax.data.own.leaf import read_leaf
from fljax.data.own.numbered import are_whole, numbered
from fljax.data.own.tables import Columns, as_columns, read_table, table_in
from fljax.data.own.words import USUAL, Words
from fljax.data.readers.leaf import find_shards
from fljax.files import as_path, naming

ARRAYS = {
    "x": ("x", "X", "data", "images", "features"),
    "y": ("y", "labels", "targets"),
    "client": ("client_ids", "client", "clients"),
    "part": ("part", "split"),
}
"""Names of the arrays of an ``.npz`` that are found without `Columns`."""


def read_own(
    path: str | Path, columns: Columns | None = None, task: TaskChoice = "auto", words: Words = USUAL
) -> OwnData:
    """Your own data from a file (``.csv``, ``.csv.gz``, ``.tsv``, ``.tsv.gz``, ``.npz``, ``.json``, or ``.parquet``
    with pandas or polars) or a folder.

    Args:
        path: the file, or a folder ``client/class/image.png`` or ``train/client/class/image.png``, or LEAF's with
            ``train/*.json`` and ``test/*.json``.
        columns: the roles of a table's columns, or the names of an ``.npz``'s arrays; None for images and JSON, which
            have fixed roles, and for arrays with the names in `ARRAYS`.
        task: meaning of the labels, see `fljax.data.own.tables.from_frame`.
        words: how words become tokens, in a table's text column or in LEAF's Sent140.

    Raises:
        ValueError: in one line that names the file: it does not exist, is of another kind, or has invalid data.
    """
    path, columns = as_path("path", path), None if columns is None else as_columns(columns)
    if path.suffix.partition(":")[0] == ".py":
        raise ValueError(
            f"{path} is Python; a partition of yours can read any data: fljax run --partition ./mine.py:name"
        )
    if not path.exists():
        raise ValueError(f"there is no {path}; give a {ALLOWED_TABLES}, .npz or .json file, or a folder of images")
    if path.is_dir() or kind_of(path) == ".json":
        if columns is not None and (given_roles := [name for name, value in columns._asdict().items() if value]):
            kind = "a folder" if path.is_dir() else "LEAF's JSON"
            raise ValueError(f"{path} is {kind}, but a column is given for {', '.join(given_roles)}; leave it out")
        is_json = path.is_file() or find_shards(path) is not None
        return _for_task(read_leaf(path, words) if is_json else read_images(path), task, path)
    if kind_of(path) == ".npz":
        return _with_class_names(_for_task(read_npz(path, columns, task), task, path))
    if kind_of(path) not in TABLES:
        raise ValueError(
            f"{path} is a {path.suffix or 'nameless'} file; give {ALLOWED_TABLES}, .npz, .json or a folder"
        )
    if columns is None or not columns.label:
        with naming(path):
            listing = there_are("the columns", table_in(path).columns)
        what = "the labels: --label-column or Columns(label=...); and that of the clients, if any"
        raise ValueError(f"{path}: name the column of {what}: --client-column; {listing}")
    return read_table(path, columns, task, words)


def read_npz(path: Path, columns: Columns | None = None, task: TaskChoice = "auto") -> OwnData:
    """The examples of an ``.npz``: arrays ``x``, ``y`` and, if present, ``client_ids`` and ``part``.

    Args:
        path: the file.
        columns: names of arrays that are not called as in `ARRAYS`.
        task: "regression": whole numbers, also negative ones, are targets.

    Raises:
        ValueError: an array is missing or is a pickled object, or as `fljax.data.own.arrays.own_data`.
    """
    with naming(path):
        arrays = arrays_in(path, columns, needed=("x", "y"))
        y = arrays["y"].astype(np.float64) if task == "regression" and arrays["y"].dtype.kind in "iu" else arrays["y"]
        return own_data(arrays["x"], y, arrays["client"], part=arrays["part"])


def arrays_in(path: Path, columns: Columns | None, needed: Sequence[str]) -> dict[str, Any]:
    """The arrays of an ``.npz`` by role, a key of `ARRAYS`; None for an array that is missing and not ``needed``.

    Raises:
        ValueError: as `read_npz`.
    """
    given_names = {} if columns is None else _names_by_role(columns)
    names_by_role = {
        role: (given_names[role],) if role in given_names else usual_names for role, usual_names in ARRAYS.items()
    }
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            stored_names = file.files
            arrays = {
                role: next((file[name] for name in names if name in stored_names), None)
                for role, names in names_by_role.items()
            }
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive fails wherever zip, zlib or NumPy notices it
        raise ValueError(f"cannot be read as arrays: {' '.join(str(error).split())[:200]}") from None
    for role, array in arrays.items():
        if array is None and (role in given_names or role in needed):
            raise ValueError(f"has no array {names_by_role[role][0]}; it has {', '.join(stored_names)}")
        if array is not None and array.ndim == 0:
            raise ValueError(f"the array {given_names.get(role, role)} is one number; give one row per example")
    return arrays


def array_names(path: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` that can be read."""
    with np.load(path, allow_pickle=False) as file:
        return file.files


def n_bytes_unpacked(path: Path) -> int:
    """Least number of bytes that reading a user's file takes: of a packed file, its unpacked size.

    0 for a file that cannot be read; reading it reports why.
    """
    if path.is_dir() or not path.exists():
        return 0
    n_bytes = path.stat().st_size
    if is_packed(path):
        return _n_bytes_of_gzip(path, n_bytes)
    if kind_of(path) != ".npz":
        return n_bytes
    try:
        with ZipFile(path) as archive:
            return sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError):
        return 0


_MOST_PACKED = 1032
"""Bytes that gzip packs into one at most."""


def _n_bytes_of_gzip(path: Path, n_bytes: int) -> int:
    """The size that a packed file states in its last four bytes, which is that of its last part, modulo 2^32."""
    with path.open("rb") as file:
        file.seek(max(n_bytes - 4, 0))
        stated = int.from_bytes(file.read(4), "little")
    return stated if stated <= _MOST_PACKED * n_bytes else n_bytes  # else the file is damaged, as reading it says


def _names_by_role(columns: Columns) -> dict[str, str]:
    """The arrays that the columns name: key of `ARRAYS` -> name."""
    if columns.ignored:
        raise ValueError("only columns of a table can be ignored; arrays that are not named are not read")
    if columns.fill:
        raise ValueError("only cells of a table can be filled; fill those of arrays before")
    if columns.categories or columns.text is not None:
        what = "categories" if columns.categories else "texts"
        raise ValueError(f"{what} must be columns of a table; give numbers in the arrays")
    given_names = {"x": columns.features, "y": columns.label, "client": columns.client, "part": columns.part}
    names_by_role = {
        role: (names,) if isinstance(names, str) else names for role, names in given_names.items() if names
    }
    if several := [names for names in names_by_role.values() if len(names) > 1]:
        raise ValueError(f"{', '.join(several[0])} are several arrays for one thing; name one array")
    return {role: name for role, (name,) in names_by_role.items()}


def _for_task(data: OwnData, task: TaskChoice, path: Path) -> OwnData:
    """The data with labels for the task: whole numbers of any type may be targets or classes, and several labels of 0
    and 1 may be targets."""
    check_choices(_for_task, {"task": task})
    y = np.asarray(data.examples.y)
    if task == "classification" and y.ndim == 1 and y.dtype.kind == "f" and are_whole(y):
        y = y.astype(np.int64)
        data = data._replace(examples=on_host(np.asarray(data.examples.x), y))
    are_binary = y.ndim == 2 and np.isin(y, (0, 1)).all()
    kind = "classification" if are_classes(y) else "labels" if are_binary else "regression"
    if task in ("auto", kind):
        return data
    if task == "regression" and not data.classes:
        return data._replace(examples=on_host(np.asarray(data.examples.x), y.astype(np.float32)))
    raise ValueError(
        f"{path}: its labels are {y.dtype} of shape {y.shape}, for {kind}; choose --task {kind}, or give other labels"
    )


def _with_class_names(data: OwnData) -> OwnData:
    """The data; classes whose numbers do not count from 0 get names, as in a table."""
    y = np.asarray(data.examples.y)
    if data.classes or not are_classes(y) or y.ndim > 1 or counts_classes(y):
        return data
    labels, classes = numbered(y, "label")
    return data._replace(examples=on_host(np.asarray(data.examples.x), labels), classes=classes)
