"""Files that survive crashes and disk errors: written under another name and renamed, with a checksum that is checked.

The checksum is CRC-32C, for which processors have an instruction: it detects any single flipped bit and any burst of up
to 32 bits; other damage is missed with a probability of 2**-32.
"""

import contextlib
import io
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fljax.sealed import DamagedError as DamagedError
from fljax.sealed import naming as naming

_SEAL = b"fljax crc32c "
_DIGITS = 8
_LARGE = 1 << 16


def as_path(name: str, value: Any) -> Path:
    """``value`` as a path; ValueError if it is neither a text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} is of type {type(value).__name__}, not a path; give a text or a pathlib.Path")
    return Path(value)


def write_atomically(
    path: Path,
    content: bytes | Iterable[bytes | memoryview],
    keep: Path | None = None,
    durable: bool = True,
) -> None:
    """Writes ``content`` beside ``path`` and renames it: readers see the old file or the new one, never a part.

    Args:
        path: a file in a folder that exists.
        content: the whole content, as one or in parts.
        keep: new name of the old file; None: it is deleted.
        durable: whether the new name is on the disk on return, too; False leaves that to a later `sync_folder`.

    Raises:
        OSError: it cannot be written, for instance on a full disk; no partial file is left.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.writelines((content,) if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.rename(keep)
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the folder's names are on the disk: without it a rename may be lost when the power fails."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems do not support it
            os.fsync(handle)
    finally:
        os.close(handle)


def checksum(content: bytes | memoryview | np.ndarray, before: int = 0) -> int:
    """The CRC of ``content``, continuing from the CRC ``before``."""
    import google_crc32c  # here, so that programs that write no files run without it

    view = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
    return google_crc32c.extend(before, view)


def checksums(path: Path, block: int = 1 << 20) -> list[int]:
    """The CRC of each ``block`` of bytes of a file, without copying it."""
    if not path.stat().st_size:
        return []
    content = np.memmap(path, np.uint8, "r")
    return [checksum(content[start : start + block]) for start in range(0, len(content), block)]


def save_arrays(path: Path, arrays: dict[str, np.ndarray], durable: bool = True) -> int:
    """Writes an .npz atomically; returns its checksum, which is also the zip archive's comment.

    Large arrays that are mostly NaN, such as those of clients in rounds without a test, are compressed to very little.
    """
    buffer = io.BytesIO()
    # The same bytes as from np.savez, which cannot take an array that is named like one of its parameters ("file").
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in arrays.items():
            entry, array = zipfile.ZipInfo(f"{name}.npy"), np.asanyarray(value)
            entry.compress_type = zipfile.ZIP_DEFLATED if _is_mostly_nan(array) else zipfile.ZIP_STORED
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    # The last two bytes of an archive without a comment are the comment's length.
    body, end = buffer.getbuffer()[:-2], (len(_SEAL) + _DIGITS).to_bytes(2, "little") + _SEAL
    crc = checksum(end, checksum(body))
    write_atomically(path, (body, end + f"{crc:0{_DIGITS}x}".encode()), durable=durable)
    return crc


def _is_mostly_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.nbytes > _LARGE and bool(np.isnan(array).mean() > 0.5)


def restored(leaf: np.ndarray) -> np.ndarray:
    """An array of a file; bfloat16, which NumPy's files store as two plain bytes, is restored."""
    if leaf.dtype != np.dtype("V2"):
        return leaf
    from jax.numpy import bfloat16  # here, so that files can be read without JAX

    return leaf.view(bfloat16)


def read_arrays(path: Path, remedy: str) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of an .npz that `save_arrays` wrote, and its checksum.

    Raises:
        DamagedError: it has changed since it was written; the message ends with ``remedy``.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    body, digits = content[:-_DIGITS], content[-_DIGITS:]
    crc = checksum(body)
    if not body.endswith(_SEAL):
        raise DamagedError(f"{path} cannot be read (no checksum at its end); {remedy}")
    if digits != f"{crc:0{_DIGITS}x}".encode():
        raise DamagedError(f"{path} cannot be read (its checksum is wrong); {remedy}")
    with np.load(io.BytesIO(content)) as arrays:
        return {name: arrays[name] for name in arrays.files}, crc
