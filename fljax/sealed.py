"""Small files with a checksum: of a cache in front, of settings in the last line, of a table in a file beside it.

Importing this starts neither JAX nor NumPy, for commands that must answer at once.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class DamagedError(ValueError):
    """A file has changed since it was written."""


@contextlib.contextmanager
def naming(what: str | Path) -> Iterator[None]:
    """Inside it what is refused, a ValueError, has ``what`` in front: a file, or an argument with its value.

    An OSError names it where it names no file, as on a full disk.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), str(what)) from None
        raise


def write_sealed(path: Path, content: bytes) -> None:
    """Writes ``content`` with its checksum in front, aside and renamed; for a cache, so nothing waits for the disk.

    Raises:
        OSError: it cannot be written.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            aside.write_bytes(b"%08x" % zlib.crc32(content) + content)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def read_sealed(path: Path) -> bytes:
    """What `write_sealed` wrote.

    Raises:
        OSError: it cannot be read.
        DamagedError: it has changed since it was written.
    """
    content = path.read_bytes()
    if content[:8] != b"%08x" % zlib.crc32(content[8:]):
        raise DamagedError(f"{path} has changed since it was written: its checksum is wrong")
    return content[8:]


def checksum_of(value: Any) -> int:
    """The checksum of what JSON makes of a value."""
    return zlib.crc32(json.dumps(value).encode())


WORD = b"checksum"


def with_checksum(lines: str) -> bytes:
    """A text with a last line, a comment, that has the checksum of all before; the first should speak of a checksum."""
    body = lines.encode() + b"# " + WORD + b" "
    return body + b"%08x\n" % zlib.crc32(body)


def check_text(path: Path, remedy: str, required: bool = False) -> None:
    """Sees that a text is as `with_checksum` made it.

    One that never speaks of a checksum passes unless ``required``, if it says anything but comments: of what was made
    here the beginning of the first line may be left.

    Raises:
        OSError: it cannot be read.
        DamagedError: it has changed since it was written; ``remedy`` says what to do.
    """
    content = path.read_bytes()
    if WORD not in content and not required and _says_something(content):
        return
    body, digits = content[:-9], content[-9:]
    if not body.endswith(b"# " + WORD + b" ") or digits != b"%08x\n" % zlib.crc32(body):
        raise DamagedError(f"{path} has changed since it was written; {remedy}")


def _says_something(content: bytes) -> bool:
    return any(line.strip() and not line.lstrip().startswith(b"#") for line in content.splitlines())


def write_listed(path: Path, content: bytes) -> None:
    """Writes a file that has no room for a checksum, such as a table, with its checksum in a hidden file beside it.

    Raises:
        OSError: it cannot be written; the old one, if there is one, is whole.
    """
    known = [b"%08x" % zlib.crc32(one) for one in (content, *([path.read_bytes()] if path.is_file() else []))]
    write_sealed(_list_of(path), b" ".join(known))  # first, and of both: whenever this is cut off, one of them is there
    aside = path.with_name(f"{path.name}.part")
    with naming(path):
        aside.write_bytes(content)
    aside.replace(path)


def check_listed(path: Path, remedy: str) -> None:
    """Sees that a file is as `write_listed` wrote it; one without a list passes.

    Raises:
        OSError: it cannot be read.
        DamagedError: it, or the list, has changed since it was written; ``remedy`` says what to do.
    """
    listed = _list_of(path)
    if not listed.exists():
        return
    try:
        known = read_sealed(listed).split()
    except DamagedError as error:
        raise DamagedError(f"{error}; {remedy}") from None
    if b"%08x" % zlib.crc32(path.read_bytes()) not in known:
        raise DamagedError(f"{path} has changed since it was written; {remedy}")


def _list_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
