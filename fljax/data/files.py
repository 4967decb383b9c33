"""Data of your own in files: CSV, ``.npz``, Parquet, LEAF's JSON, and a folder of images for each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from fljax.choices import check_choices
from fljax.data.columns import TaskChoice
from fljax.data.federation import on_host
from fljax.data.labels import are_classes, counts_classes
from fljax.data.own import VALIDATION, OwnData, are_whole, numbered, own_data
from fljax.data.readers.limits import opened_image
from fljax.data.readers.shards import OfUser, find_shards, users_of
from fljax.data.tables import TABLES, Columns, as_columns, read_table, table_in
from fljax.data.text import as_tokens
from fljax.data.words import USUAL, Words, as_words
from fljax.files import naming

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
ARRAYS = {
    "x": ("x", "X", "data", "images", "features"),
    "y": ("y", "labels", "targets"),
    "client": ("client_ids", "client", "clients"),
    "part": ("part", "split"),
}
"""What the arrays of an ``.npz`` may be called where nobody says which they are."""


def read_own(
    path: str | Path, columns: Columns | None = None, task: TaskChoice = "auto", words: Words = USUAL
) -> OwnData:
    """Data of your own by its file: ``.csv``, ``.tsv``, ``.parquet`` (with pandas or polars), ``.npz``, ``.json``, or a
    folder.

    Args:
        path: the file, or a folder ``client/class/image.png`` or ``train/client/class/image.png``, or LEAF's with
            ``train/*.json`` and ``test/*.json``.
        columns: what the columns of a table are, or which arrays of an ``.npz`` are used; None for images and JSON,
            which say it themselves, and for arrays of known names.
        task: what labels are, see `fljax.data.tables.from_frame`.
        words: how texts of words become tokens, those of a table's text column or of LEAF's Sent140.

    Raises:
        ValueError: in one line, with the file: it is not there, of another kind, or has data that cannot be.
    """
    path, columns = Path(path), None if columns is None else as_columns(columns)
    if not path.exists():
        raise ValueError(f"there is no {path}; give a .csv, .tsv, .parquet, .npz or .json file, or a folder of images")
    if path.is_dir() or path.suffix == ".json":
        if columns is not None and (given := [name for name, value in columns._asdict().items() if value]):
            kind = "a folder" if path.is_dir() else "LEAF's JSON"
            raise ValueError(f"{path} is {kind}, and a column is given for {', '.join(given)}; leave it out")
        is_json = path.is_file() or find_shards(path) is not None
        return _of_task(read_leaf(path, words) if is_json else read_images(path), task, path)
    if path.suffix == ".npz":
        return _named(_of_task(read_npz(path, columns, task), task, path))
    if path.suffix not in TABLES:
        raise ValueError(
            f"{path} is a {path.suffix or 'nameless'} file; give .csv, .tsv, .parquet, .npz, .json or a folder"
        )
    if columns is None or not columns.label:
        with naming(path):
            there = ", ".join(table_in(path).columns)
        what = "the labels, --label-column or Columns(label=...), and which one, where there is one, the client"
        raise ValueError(f"{path}: say which column has {what}, --client-column; the columns are {there}")
    return read_table(path, columns, task, words)


def read_npz(path: Path, columns: Columns | None = None, task: TaskChoice = "auto") -> OwnData:
    """Arrays ``x``, ``y`` and, where the file says whose examples are, ``client_ids``; perhaps ``part``.

    Args:
        path: the file.
        columns: arrays that are called otherwise than `ARRAYS` has it.
        task: "regression": whole numbers are targets, negative ones too.

    Raises:
        ValueError: an array is missing or is a pickled object, or as `fljax.data.own.own_data`.
    """
    with naming(path):
        found = arrays_in(path, columns, needed=("x", "y"))
        y = found["y"].astype(np.float64) if task == "regression" and found["y"].dtype.kind in "iu" else found["y"]
        return own_data(found["x"], y, found["client"], part=found["part"])


def arrays_in(path: Path, columns: Columns | None, needed: Sequence[str]) -> dict[str, Any]:
    """The arrays of an ``.npz`` by what they are, a key of `ARRAYS`; None: it is not there, and not ``needed``.

    Raises:
        ValueError: as `read_npz`.
    """
    named = {} if columns is None else _as_arrays(columns)
    wanted = {what: (named[what],) if what in named else usual for what, usual in ARRAYS.items()}
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            there = file.files
            found = {
                what: next((file[name] for name in names if name in there), None) for what, names in wanted.items()
            }
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive fails wherever zip, zlib or NumPy notices it
        raise ValueError(f"cannot be read as arrays: {' '.join(str(error).split())[:200]}") from None
    for what, array in found.items():
        if array is None and (what in named or what in needed):
            raise ValueError(f"has no array {wanted[what][0]}; it has {', '.join(there)}")
        if array is not None and array.ndim == 0:
            raise ValueError(f"the array {named.get(what, what)} is one number; give one row an example")
    return found


def _as_arrays(columns: Columns) -> dict[str, str]:
    """Which arrays the columns name: key of `ARRAYS` -> name."""
    if columns.ignored:
        raise ValueError("columns of a table are ignored; of other arrays than those that are named none is read")
    if columns.categories or columns.text is not None:
        what = "categories" if columns.categories else "texts"
        raise ValueError(f"{what} stand in columns of a table; give numbers in the arrays")
    given = {"x": columns.features, "y": columns.label, "client": columns.client, "part": columns.part}
    lists = {what: (names,) if isinstance(names, str) else names for what, names in given.items() if names}
    if several := [names for names in lists.values() if len(names) > 1]:
        raise ValueError(f"{', '.join(several[0])} are several arrays for one thing; name one array")
    return {what: name for what, (name,) in lists.items()}


def array_names(path: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` that can be read."""
    with np.load(path, allow_pickle=False) as file:
        return file.files


def _of_task(data: OwnData, task: TaskChoice, path: Path) -> OwnData:
    """The data with labels of the task: whole numbers may be targets or classes, whatever type of numbers they are,
    and several labels of 0 and 1 may be targets."""
    check_choices(_of_task, {"task": task})
    y = np.asarray(data.examples.y)
    if task == "classification" and y.ndim == 1 and y.dtype.kind == "f" and are_whole(y):
        y = y.astype(np.int64)
        data = data._replace(examples=on_host(np.asarray(data.examples.x), y))
    several = y.ndim == 2 and np.isin(y, (0, 1)).all()
    kind = "classification" if are_classes(y) else "labels" if several else "regression"
    if task in ("auto", kind):
        return data
    if task == "regression" and not data.classes:
        return data._replace(examples=on_host(np.asarray(data.examples.x), y.astype(np.float32)))
    raise ValueError(f"{path}: its labels are {y.dtype} of shape {y.shape}, for {kind} and not for {task}")


def _named(data: OwnData) -> OwnData:
    """The data whose classes have names where their numbers do not count from 0, as in a table."""
    y = np.asarray(data.examples.y)
    if data.classes or not are_classes(y) or y.ndim > 1 or counts_classes(y):
        return data
    labels, classes = numbered(y, "label")
    return data._replace(examples=on_host(np.asarray(data.examples.x), labels), classes=classes)


def n_bytes_unpacked(path: Path) -> int:
    """Bytes that reading a file of one's own takes at least: of an ``.npz`` those of its arrays, unpacked.

    What cannot be read counts as nothing here; reading it says why.
    """
    if path.is_dir() or not path.exists():
        return 0
    if path.suffix != ".npz":
        return path.stat().st_size
    try:
        with ZipFile(path) as archive:
            return sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError):
        return 0


def read_images(folder: Path) -> OwnData:
    """A folder for each client, in it a folder for each class, in it images of one size; hidden ones are passed over.

    With folders ``train`` and ``test`` (and perhaps ``val``) above the clients' the splits are those. Grey images
    of 16 bits keep their upper 8.

    Raises:
        ValueError: no images, images of different sizes (both are named), one that cannot be read, or a folder beside
            ``train`` that is no split.
    """
    roots = _roots(folder)
    files = [
        (part, client.name, label.name, file)
        for part, root in roots.items()
        for client in _folders(root)
        for label in _folders(client)
        for file in sorted(label.iterdir())
        if file.suffix.lower() in IMAGES and not file.name.startswith(".")
    ]
    if not files:
        raise ValueError(f"{folder} has no images; they stand in CLIENT/CLASS/NAME.png, or train/CLIENT/CLASS/NAME.png")
    *names, found = zip(*files, strict=True)
    part, client, label = map(np.array, names)
    return own_data(images_in(found), label, client, part=part if "" not in roots else None)


def _roots(folder: Path) -> dict[str, Path]:
    """Part -> the folder of its clients; the part is "" where the clients' folders are not in parts."""
    if not (folder / "train").is_dir():
        return {"": folder}
    there = [found.name for found in _folders(folder)]
    known = ("train", "val", *VALIDATION, "test")
    if other := [name for name in there if name not in known]:
        raise ValueError(
            f"{folder} has the folder {other[0]} beside train; name it train, val or test, or move it away"
        )
    return {name: folder / name for name in known if name in there}


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(files: Sequence[Path]) -> np.ndarray:
    """The pixels of image files, (files, height, width, channels) uint8.

    Raises:
        ValueError: images of different sizes (both are named), or one that cannot be read.
    """
    images = [_image(file) for file in files]
    for image, file in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            shapes = f"{image.shape} and {files[0]} {images[0].shape}"
            size = (
                "size" if image.shape[:2] != images[0].shape[:2] else "number of channels, all grey or all in colours"
            )
            raise ValueError(f"{file} has shape {shapes} (height, width, channels); bring them to one {size}")
    return np.stack(images)


def _image(file: Path) -> np.ndarray:
    """(height, width, channels) uint8.

    Raises:
        ValueError: it cannot be read, or has numbers of more than 16 bits, whose range nobody knows.
    """
    with opened_image(file, FORMATS) as opened:
        kind, mode = opened.format, opened.mode
        wide = mode in ("I", "F") or mode.startswith("I;")
        image = np.asarray(opened if wide or mode in ("L", "RGB") else opened.convert("RGB"))
    if mode == "F" or (mode == "I" and kind != "PNG"):  # Pillow has a PNG of 16 bits as I or as I;16
        what = "floating-point numbers" if mode == "F" else "whole numbers of 32 bits"
        raise ValueError(f"{file} has {what}; give images of 8 or 16 bits, or the numbers as an .npz")
    if wide:
        image = (image >> 8).astype(np.uint8)
    return image[..., None] if image.ndim == 2 else image


def read_leaf(path: Path, words: Words = USUAL) -> OwnData:
    """The users of a file of LEAF's, or of a folder with ``train/*.json``, ``test/*.json`` (and perhaps ``val``), which
    are the splits then.

    JSON does not tell whole numbers from others: labels that are all whole are classes, and inputs that are all whole
    stay so, as the tokens of a text. Texts of one length with a character each for a label, as LEAF's Shakespeare has
    them, become tokens of characters, the label that of the next one (`fljax.data.text.as_tokens`). Other texts become
    tokens of words (`fljax.data.words.as_words`); of examples that are lists of texts, as LEAF's Sent140 has them (id,
    date, query, user, text, ...), the fifth is read.

    Raises:
        ValueError: a file is not whole, or examples are neither numbers nor such texts, or not of one shape.
    """
    root = find_shards(path) or path
    files = {name: sorted((root / name).glob("*.json")) for name in ("train", "val", *VALIDATION, "test")}
    files = {"": [path]} if path.is_file() else files
    rows = [(part, file, user) for part, there in files.items() for file in there for user in users_of(file) if user.y]
    if not rows:
        raise ValueError(f"{path} has no examples of any user")
    inputs = [_numbers(user, file) for _, file, user in rows]
    for x, (_, file, user) in zip(inputs, rows, strict=True):
        if x.shape[1:] != inputs[0].shape[1:]:
            shapes = f"{x.shape[1:]} and those of {rows[0][2].user} {inputs[0].shape[1:]}"
            raise ValueError(f"{file}: examples of user {user.user} have shape {shapes}; bring them to one")
        if (x.dtype.kind == "U") != (inputs[0].dtype.kind == "U"):
            raise ValueError(f"{file}: of users {rows[0][2].user} and {user.user} one has texts and one numbers")
    x = np.concatenate(inputs)
    try:
        y = np.asarray([label for *_, user in rows for label in user.y])
    except ValueError:
        y = np.zeros(0, object)
    letters: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    if x.dtype.kind == "U":
        x, y, letters, known = _tokens(path, x, y, words)
    if y.dtype.kind not in "iufbU" or y.ndim > 2:
        raise ValueError(f"{path}: labels are no numbers or names of classes; give one, or as many, for each example")
    if y.dtype.kind == "f" and are_whole(y):
        y = y.astype(np.int64)
    client = np.repeat([user.user for *_, user in rows], [len(user.y) for *_, user in rows])
    part = np.repeat([part for part, *_ in rows], [len(user.y) for *_, user in rows])
    with naming(path):
        made = own_data(x, y, client, part=None if "" in files else part)
        return made._replace(classes=letters or made.classes, words=known)


def _tokens(
    path: Path, x: np.ndarray, y: np.ndarray, words: Words
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The texts of all users as tokens, the labels, and the letters or the words that tokens stand for.

    Raises:
        ValueError: examples are lists of texts and none of Sent140's, or as `as_tokens` and `as_words`.
    """
    with naming(path):
        if x.ndim > 2 or (x.ndim == 2 and x.shape[1] <= _TEXT):
            raise ValueError("examples are lists of texts; give one text for each, or LEAF's Sent140 as it is")
        if x.ndim == 1 and y.dtype.kind == "U" and y.ndim == 1 and (np.char.str_len(y) == 1).all():
            return (*as_tokens(x, y), ())
        tokens, known = as_words((x if x.ndim == 1 else x[:, _TEXT]).tolist(), words)
        return tokens, y, (), known


_TEXT = 4
"""Place of the text among what LEAF's Sent140 has of an example."""


def _numbers(of: OfUser, file: Path) -> np.ndarray:
    """(examples, ...) the inputs of a user.

    Raises:
        ValueError: they are no numbers, or of different shapes.
    """
    try:
        x = np.asarray(of.x)
    except ValueError:
        raise ValueError(f"{file}: examples of user {of.user} have different shapes; bring them to one") from None
    known = x.dtype.kind in "iufb"
    if x.dtype.kind == "U" and x.ndim < 3:  # which NumPy makes of numbers among texts too
        known = all(isinstance(word, str) for one in of.x for word in (one if x.ndim == 2 else (one,)))
    if not known:
        raise ValueError(f"{file}: x of user {of.user} are neither numbers nor texts")
    return x.astype(np.float32) if x.dtype.kind == "f" else x
