"""What is never done with a file from elsewhere: unfolding it without end, or following it out of its folder."""

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
"""Bytes of the largest JSON file that is read; LEAF's shards of FEMNIST have about 1.3e8."""
MOST_ARRAY = 1 << 31
"""Bytes of the largest IDX file that is read, decompressed; EMNIST's largest has 5.5e8."""
MOST_PIXELS = 1 << 24
"""Pixels of the largest image that is decoded; CelebA's have up to 178 x 218 (aligned) or a few thousand a side."""


def read_object(file: Path, what: str, most: int = MOST_JSON) -> dict[str, Any]:
    """The JSON object in ``file``.

    Args:
        file: to be read.
        what: for the messages, such as "LEAF shard".
        most: bytes that it may have.

    Raises:
        ValueError: it is larger, nested deeper than Python's recursion limit, names a key of an object twice, is no
            JSON, or no object.
    """
    check_size(file, file.stat().st_size, most)
    content = file.read_bytes()
    try:
        found = json.loads(content, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError(f"{file} is not a {what}: it is nested hundreds deep; get it again") from None
    except (ValueError, MemoryError) as error:
        wrong = "" if content.lstrip()[:1] in (b"{", b"[") else f" but {kind(content[:4])}"
        raise ValueError(f"{file} is not a whole {what}{wrong} ({error}); get it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} is not a {what}: a {type(found).__name__}, not an object; get it again")
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {short(twice)} twice in one object")
    return found


def check_size(file: Path, size: int, most: int) -> None:
    """Raises ValueError where ``size`` bytes are more than ``most``."""
    if size > most:
        raise ValueError(f"{file} has {size:,} bytes; at most {most:,} are read")


def inside(folder: Path, name: str, source: Path) -> Path:
    """``folder/name``, where ``name`` comes from the file ``source``.

    Raises:
        ValueError: it is absolute, leads up, or is no name at all.
    """
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
    if absolute or ".." in parts or not parts or "\0" in name:
        raise ValueError(f"{source} names {short(name)}, which is not a file inside {folder}; get it again")
    return folder / name


class Unpacked:
    """A plain or gzipped file of which never more is unfolded than is asked for."""

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
            ValueError: the gzip file is damaged, or none.
        """
        try:
            return self._stream.read(n)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            head = self.file.read_bytes()[:4]
            wrong = "truncated or damaged" if head[:2] == b"\x1f\x8b" else f"not gzip but {kind(head)}"
            raise ValueError(f"{self.file} is {wrong}; get it again") from error


@contextlib.contextmanager
def opened_image(file: Path, formats: tuple[str, ...] = ("JPEG", "PNG")) -> Iterator[Image.Image]:
    """An image file of one of the ``formats``, as Pillow names them, and of a size that is allowed.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is larger than `MOST_PIXELS`, or no whole image.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is odd in the file; the limit below is lower than Pillow's
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
"""What its decoders also raise of damaged files."""
