"""Limits for files from elsewhere: they are not decompressed without bound and name no files outside their folder."""

import contextlib
import gzip
import json
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from PIL import Image, UnidentifiedImageError

from fljax.data.readers.foreign import kind
from fljax.data.shown import short

MOST_JSON = 1 << 30
"""Largest size in bytes of a JSON file; LEAF's shards of FEMNIST have about 1.3e8."""
MOST_ARRAY = 1 << 31
"""Largest decompressed size in bytes of an IDX file; EMNIST's largest has 5.5e8."""
MOST_PIXELS = 1 << 24
"""Most pixels of an image; CelebA's have up to 178 x 218 (aligned) or a few thousand per side."""


def read_object(file: Path, what: str, most: int = MOST_JSON) -> dict[str, Any]:
    """The JSON object in ``file``.

    Args:
        file: the file.
        what: its kind for messages, such as "LEAF shard".
        most: largest allowed size in bytes.

    Raises:
        ValueError: the file is larger, nested deeper than Python's recursion limit, has a key twice in one object, is
            not JSON, or is not an object.
    """
    check_size(file, file.stat().st_size, most)
    content = file.read_bytes()
    try:
        value = json.loads(content, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError(f"{file} is not a {what}: it is nested hundreds deep; get it again") from None
    except (ValueError, MemoryError) as error:
        wrong = "" if content.lstrip()[:1] in (b"{", b"[") else f" but {kind(content[:4])}"
        raise ValueError(f"{file} is not a whole {what}{wrong} ({error}); get it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file} is not a {what}: a {type(value).__name__}, not an object; get it again")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {short(repeated)} twice in one object")
    return by_name


def check_size(file: Path, size: int, most: int) -> None:
    """Raises ValueError if ``size`` bytes are more than ``most``."""
    if size > most:
        raise ValueError(f"{file} has {size:,} bytes; at most {most:,} are read")


def inside(folder: Path, name: str, source: Path) -> Path:
    """``folder/name``, where ``name`` comes from the file ``source``.

    Raises:
        ValueError: the name is absolute, contains ``..`` or a zero byte, or is empty.
    """
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    is_absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
    if is_absolute or ".." in parts or not parts or "\0" in name:
        raise ValueError(f"{source} names {short(name)}, which is not a file inside {folder}; get it again")
    return folder / name


class Unpacked:
    """A plain or gzipped file, decompressed only as far as it is read."""

    def __init__(self, file: Path) -> None:
        self.file, self._gz = file, file.suffix == ".gz"
        self._stream = gzip.open(file) if self._gz else file.open("rb")  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> "Unpacked":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes, fewer at the end.

        Raises:
            ValueError: the gzip file is damaged, or not a gzip file.
        """
        try:
            return self._stream.read(n)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            head = self.file.read_bytes()[:4]
            wrong = "truncated or damaged" if head[:2] == b"\x1f\x8b" else f"not gzip but {kind(head)}"
            raise ValueError(f"{self.file} is {wrong}; get it again") from error


@contextlib.contextmanager
def opened_image(file: Path, formats: tuple[str, ...] = ("JPEG", "PNG")) -> Iterator[Image.Image]:
    """An opened image file of one of the ``formats`` (Pillow's names) and of an allowed size.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the image is larger than `MOST_PIXELS`, or incomplete.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of the file; the limit below is lower than Pillow's
            with Image.open(file, formats=formats) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError(f"{image.width} x {image.height}")
                yield image
    except FileNotFoundError:
        raise
    except Image.DecompressionBombError as error:
        raise ValueError(f"{file} is too large ({error}); images of at most {MOST_PIXELS:,} pixels are read") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, *_OF_PILLOW) as error:
        raise ValueError(f"{file} is not a whole image; get it again") from error


_OF_PILLOW = (EOFError, KeyError, IndexError, TypeError, struct.error, zlib.error, OverflowError)
"""Errors that Pillow's decoders also raise for damaged files."""
