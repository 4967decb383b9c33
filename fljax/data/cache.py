"""Decoded examples in .npy files, written aside and then renamed: a killed process leaves no incomplete entry.

Checksums beside the files are compared whenever an entry is opened.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import platformdirs
from numpy.lib import format as npy
from rich.progress import track

from fljax.files import checksums

Chunk = dict[str, np.ndarray]
"""Some examples as columns of equal length, for instance ``{"x": (n, 28, 28, 1) uint8, "y": (n,) int32}``."""

_CHECKSUMS = "checksums.json"


def folder() -> Path:
    """Where decoded examples are kept: the environment variable FLJAX_CACHE, or the user's cache folder."""
    return Path(os.environ.get("FLJAX_CACHE") or platformdirs.user_cache_dir("fljax"))


def entry_of(key: str) -> Path:
    """The folder of an entry; versions of fljax with other checksums have other folders and do not delete these."""
    return folder() / f"{key}-crc32c"


def fingerprint(source: Path, files: Iterable[Path]) -> str:
    """A short digest of the files' place, sizes and times, so that changed files get a new cache entry."""
    digest = hashlib.sha256(str(source.resolve()).encode())
    for file in sorted(files):
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:12]


def cached(key: str, chunks: Callable[[], Iterable[Chunk]], n_chunks: int | None = None) -> dict[str, np.ndarray]:
    """The columns stored under ``key``, memory-mapped; decoded from ``chunks()`` first if they do not exist.

    Only one chunk is in memory at a time. A terminal shows a progress bar. Nothing appears under ``key`` until
    everything is written; an entry that is damaged or lacks a column is decoded again.

    Args:
        key: a relative path that names the data set, its version, its split and its `fingerprint`.
        chunks: returns the examples in order.
        n_chunks: number of chunks, if known.
    """
    entry = entry_of(key)
    with contextlib.suppress(OSError, ValueError, EOFError, RecursionError):
        return _open(entry)
    shutil.rmtree(entry, ignore_errors=True)
    entry.parent.mkdir(parents=True, exist_ok=True)
    _remove_partial_entries(entry)
    partial_entry = Path(tempfile.mkdtemp(prefix=_prefix(entry) + f"{os.getpid()}-", dir=entry.parent))
    try:
        _write(partial_entry, _with_progress_bar(chunks(), key, n_chunks))
        with contextlib.suppress(OSError):  # another process was faster: its entry is equal
            partial_entry.rename(entry)
    finally:
        shutil.rmtree(partial_entry, ignore_errors=True)
    return _open(entry)


def _open(entry: Path) -> dict[str, np.ndarray]:
    files = sorted(entry.glob("*.npy"))
    expected = json.loads(entry.joinpath(_CHECKSUMS).read_bytes())
    if expected != {file.stem: checksums(file) for file in files}:
        raise ValueError(f"{entry} has changed since it was written; delete it, and it is decoded again")
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}


def _write(partial_entry: Path, chunks: Iterable[Chunk]) -> None:
    """Appends each column to its file; the header, whose room is reserved, is rewritten with the final length."""
    headers, length = {}, 0
    with contextlib.ExitStack() as stack:
        files = {}
        for chunk in chunks:
            for name, column in chunk.items():
                if name not in files:
                    files[name] = stack.enter_context(open(partial_entry / f"{name}.npy", "wb"))
                    headers[name] = npy.header_data_from_array_1_0(np.empty((0, *column.shape[1:]), column.dtype))
                    npy.write_array_header_1_0(files[name], headers[name])
                files[name].write(np.ascontiguousarray(column, npy.descr_to_dtype(headers[name]["descr"])).data)
            length += len(next(iter(chunk.values())))
        if length == 0:
            raise ValueError("no examples found; the source is empty")
        for name, file in files.items():
            file.seek(0)
            npy.write_array_header_1_0(file, headers[name] | {"shape": (length, *headers[name]["shape"][1:])})
    sums = {name: checksums(partial_entry / f"{name}.npy") for name in files}
    partial_entry.joinpath(_CHECKSUMS).write_text(json.dumps(sums))


def _with_progress_bar(chunks: Iterable[Chunk], key: str, n_chunks: int | None) -> Iterable[Chunk]:
    if not sys.stderr.isatty():
        return chunks
    from rich.console import Console

    return track(chunks, f"decoding {Path(key).parts[0]}", total=n_chunks, console=Console(stderr=True))


def _prefix(entry: Path) -> str:
    return f".partial-{entry.name}-{socket.gethostname()}-"


def _remove_partial_entries(entry: Path) -> None:
    """Removes incomplete copies of this entry that killed processes of this machine left behind."""
    for path in entry.parent.iterdir():
        if not path.name.startswith(_prefix(entry)):
            continue
        pid = path.name.removeprefix(_prefix(entry)).split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process of another user
        pass
    return True
