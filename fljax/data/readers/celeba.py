"""The CelebA folder as its authors distribute it: smiling or not, one user per celebrity."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fljax.data.cache import Chunk, cached, fingerprint
from fljax.data.readers.limits import check_size, inside, opened_image
from fljax.data.shown import short
from fljax.data.users import UserExamples, encode, join

SIDE = 84
_ROWS = 1000
_MOST_LIST = 1 << 28
"""Bytes of the longest list that is read; CelebA's have up to 2.7e7."""
_IDENTITY, _ATTRIBUTES, _IMAGES = "identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"


def find(folder: Path) -> Path | None:
    """``folder`` if it has any of CelebA's three parts; `read` reports a missing part."""
    return folder if any((folder / part).exists() for part in (_IDENTITY, _ATTRIBUTES, _IMAGES)) else None


def read(folder: Path) -> tuple[UserExamples, UserExamples]:
    """Images (84, 84, 3) uint8 as LEAF resizes them, label 1 for smiling; every fifth image is in the test set.

    Raises:
        FileNotFoundError: the identity file, the attribute file or an image is missing.
        ValueError: a line of a list cannot be read, or the lists name different images.
    """
    lists = [folder / _IDENTITY, folder / _ATTRIBUTES]
    for part in (*lists, folder / _IMAGES):
        if not part.exists():
            raise FileNotFoundError(f"{folder} has no {part.name}, which CelebA needs; put it beside the others")
    identity, smiling = _identities(lists[0]), _smiling(lists[1])
    if identity.keys() != smiling.keys():
        raise ValueError(
            f"{lists[0]} names {len(identity)} images and {lists[1]} {len(smiling)} others; get both again"
        )
    names = sorted(identity)
    for name in names:  # before any of them is opened
        inside(folder / _IMAGES, name, lists[0])
    columns = []
    for split, in_split in (("train", [n for i, n in enumerate(names) if i % 5 != 4]), ("test", names[4::5])):
        key = f"celeb_a/folder/{split}-{fingerprint(folder, lists)}"
        columns.append(
            cached(
                key, lambda in_split=in_split: _decode(folder, in_split, identity, smiling), -(-len(in_split) // _ROWS)
            )
        )
    return join(*columns)


def shrink(image: Image.Image) -> np.ndarray:
    """(84, 84, 3) uint8."""
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _decode(folder: Path, names: list[str], identity: dict[str, str], smiling: dict[str, int]) -> Iterator[Chunk]:
    for start in range(0, len(names), _ROWS):
        part = names[start : start + _ROWS]
        yield {
            "x": np.stack([_image(folder / _IMAGES / name) for name in part]),
            "y": np.array([smiling[name] for name in part], np.int32),
            "user": encode([identity[name] for name in part], folder / _IDENTITY),
        }


def _image(file: Path) -> np.ndarray:
    try:
        with opened_image(file) as image:
            return shrink(image)
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing, though CelebA's lists name it") from None


def _identities(file: Path) -> dict[str, str]:
    rows = [line.split() for line in _lines(file) if line.strip()]
    if bad := next((i for i, row in enumerate(rows, 1) if len(row) != 2 or not row[1].isdecimal()), 0):
        raise ValueError(f"{file} line {bad} is not 'image number'; get it again")
    return _each_once(file, rows, {name: number for name, number in rows})


def _smiling(file: Path) -> dict[str, int]:
    lines = _lines(file)
    count, attributes = (lines[0].strip(), lines[1].split()) if len(lines) > 1 else ("", [])
    if not count.isdecimal() or "Smiling" not in attributes:
        raise ValueError(f"{file} does not begin with a count and the names of the attributes; get it again")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(count) > 18 or len(rows) != int(count):
        raise ValueError(f"{file} has {len(rows)} images, but its first line says {count[:20]}; get it again")
    column = 1 + attributes.index("Smiling")
    if bad := next(
        (i for i, row in enumerate(rows, 3) if len(row) != 1 + len(attributes) or row[column] not in ("1", "-1")), 0
    ):
        raise ValueError(f"{file} line {bad} is not an image and {len(attributes)} values of 1 or -1; get it again")
    return _each_once(file, rows, {row[0]: int(row[column] == "1") for row in rows})


def _each_once(file: Path, rows: list[list[str]], by_name: dict[str, Any]) -> dict[str, Any]:
    if len(by_name) != len(rows):
        repeated = next(name for name, n in Counter(row[0] for row in rows).items() if n > 1)
        raise ValueError(f"{file} names the image {short(repeated)} twice; get it again")
    return by_name


def _lines(file: Path) -> list[str]:
    check_size(file, file.stat().st_size, _MOST_LIST)
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a text (byte {error.start}); get it again") from None
