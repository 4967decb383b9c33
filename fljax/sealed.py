"""Small files with a checksum: at the beginning of a cache, in the last line of settings, in a file beside a table.

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
    """Puts ``what``, a file or an argument with its value, in front of a ValueError of the block.

    An OSError without a file name, as on a full disk, gets it as its file name.
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
    """Writes ``content`` atomically with its checksum in front; for a cache, so it does not wait for the disk.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            temporary.write_bytes(b"%08x" % zlib.crc32(content) + content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_sealed(path: Path) -> bytes:
    """The content that `write_sealed` wrote.

    Raises:
        OSError: it cannot be read.
        DamagedError: it has changed since it was written.
    """
    content = path.read_bytes()
    if content[:8] != b"%08x" % zlib.crc32(content[8:]):
        raise DamagedError(f"{path} has changed since it was written: its checksum is wrong")
    return content[8:]


def checksum_of(value: Any) -> int:
    """The checksum of a value as JSON."""
    return zlib.crc32(json.dumps(value).encode())


WORD = b"checksum"


def with_checksum(lines: str) -> bytes:
    """A text with a comment as its last line, the checksum of all before it; the first line should mention a
    checksum."""
    body = lines.encode() + b"# " + WORD + b" "
    return body + b"%08x\n" % zlib.crc32(body)


def check_text(path: Path, remedy: str, required: bool = False) -> None:
    """Checks that a text is as `with_checksum` made it.

    Unless ``required``, a text that does not mention a checksum passes if it has anything but comments; a text with
    comments only may be the remaining beginning of a damaged file.

    Raises:
        OSError: it cannot be read.
        DamagedError: it has changed since it was written; the message ends with ``remedy``.
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
        OSError: it cannot be written; the old file, if there is one, is unchanged.
    """
    checksums = [
        b"%08x" % zlib.crc32(version) for version in (content, *([path.read_bytes()] if path.is_file() else []))
    ]
    write_sealed(
        _checksum_file(path), b" ".join(checksums)
    )  # first, with both checksums: after an interruption, one of them fits
    temporary = path.with_name(f"{path.name}.part")
    with naming(path):
        temporary.write_bytes(content)
    temporary.replace(path)


def check_listed(path: Path, remedy: str) -> None:
    """Checks that a file is as `write_listed` wrote it; a file without checksums beside it passes.

    Raises:
        OSError: it cannot be read.
        DamagedError: it, or its checksum file, has changed since it was written; the message ends with ``remedy``.
    """
    checksum_file = _checksum_file(path)
    if not checksum_file.exists():
        return
    try:
        checksums = read_sealed(checksum_file).split()
    except DamagedError as error:
        raise DamagedError(f"{error}; {remedy}") from None
    if b"%08x" % zlib.crc32(path.read_bytes()) not in checksums:
        raise DamagedError(f"{path} has changed since it was written; {remedy}")


def _checksum_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
