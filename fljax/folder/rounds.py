"""A run's metrics on disk: one line per round in ``metrics.jsonl``, and all arrays chunk by chunk in ``rounds/``."""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.files import DamagedError, checksum, read_arrays, save_arrays
from fljax.metrics.participants import means_of_participants
from fljax.sealed import naming

METRICS, ROUNDS = "metrics.jsonl", "rounds"
_BLOCK = 1 << 22


class Written(NamedTuple):
    """The lengths and checksums of what has been written so far, for a checkpoint."""

    metrics_bytes: int = 0  # length of metrics.jsonl
    metrics_crc: int = 0  # its checksum
    rounds_crc: int = 0  # the checksum of the chunks' checksums, in order


def append_rows(folder: Path, first: int, metrics: dict[str, np.ndarray], before: Written) -> Written:
    """Appends the chunk's rounds to metrics.jsonl and its arrays to ``rounds/``; returns what is written now.

    A row has every scalar metric, and the `means_of_participants`. NaN (a round that was not tested) is left out. No
    entry depends on the clock.

    Raises:
        OSError: it cannot be written; what was written before is undamaged.
    """
    scalars = {name: value for name, value in metrics.items() if value.ndim == 1}
    rows = [
        {"round": first + i} | {name: value[i].item() for name, value in scalars.items() if np.isfinite(value[i])}
        for i in range(len(metrics["ids"]))
    ]
    means = means_of_participants(metrics)
    for i, row in enumerate(rows):
        row |= {name: None if np.isnan(values[i]) else values[i].item() for name, values in means.items()}
    folder.joinpath(ROUNDS).mkdir(exist_ok=True)
    crc = save_arrays(folder / ROUNDS / f"{first:08d}.npz", metrics, durable=False)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    _append(folder / METRICS, text)
    return Written(
        before.metrics_bytes + len(text), checksum(text, before.metrics_crc), _chained(crc, before.rounds_crc)
    )


def _append(path: Path, text: bytes) -> None:
    with naming(path), path.open("ab") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _chained(crc: int, before: int) -> int:
    return checksum(crc.to_bytes(4, "big"), before)


def cut_back(folder: Path, round: int, metrics_bytes: int) -> None:
    """Drops what was written after ``round`` rounds; if there is nothing to drop, nothing is written."""
    path = folder / METRICS
    if not path.exists() or path.stat().st_size != metrics_bytes:
        path.touch()
        os.truncate(path, metrics_bytes)
    for first, part in _chunks(folder, r"\.npz(\.part)?"):
        if part.suffix == ".part" or first >= round:
            part.unlink()


def read_whole(folder: Path, n_rounds: int, written: Written) -> dict[str, np.ndarray]:
    """The first ``n_rounds`` rounds as from `read_rounds`, after checking everything that was written of them.

    Raises:
        DamagedError: something is missing or has changed since it was written.
    """
    path = folder / METRICS
    length = path.stat().st_size if path.exists() else 0
    if length < written.metrics_bytes:
        state = f"has {length} of its first {written.metrics_bytes} bytes" if path.exists() else "is missing"
        raise DamagedError(f"{path} {state}; {remedy(folder)}")
    if _crc_of_first(path, written.metrics_bytes) != written.metrics_crc:
        raise DamagedError(
            f"{path} has changed since it was written: its first {written.metrics_bytes} bytes have another checksum; "
            f"{remedy(folder)}"
        )
    metrics, crc = _read(folder, n_rounds)
    if crc != written.rounds_crc:
        raise DamagedError(f"{folder / ROUNDS} has files of another run or in another order; {remedy(folder)}")
    return metrics


def _crc_of_first(path: Path, n_bytes: int) -> int:
    crc = 0
    if n_bytes:
        with path.open("rb") as file:
            while n_bytes and (block := file.read(min(_BLOCK, n_bytes))):
                crc, n_bytes = checksum(block, crc), n_bytes - len(block)
    return crc


def read_rounds(folder: Path, n_rounds: int | None = None) -> dict[str, np.ndarray]:
    """The metrics of a results folder with a leading axis over rounds: of the first ``n_rounds`` rounds; None: of all.

    Raises:
        ValueError: there are none, or a chunk of them is missing or damaged.
    """
    return _read(folder, n_rounds)[0]


def _read(folder: Path, n_rounds: int | None) -> tuple[dict[str, np.ndarray], int]:
    """`read_rounds`, and the checksum of the chunks' checksums."""
    parts, done, crc = [], 0, 0
    for first, path in _chunks(folder, r"\.npz"):
        if n_rounds is not None and first >= n_rounds:
            break
        if first != done:
            raise _missing(folder, done)
        part, part_crc = read_arrays(path, remedy(folder))
        if "ids" not in part or (parts and part.keys() != parts[0].keys()):
            raise DamagedError(f"{path} belongs to another run; {remedy(folder)}")
        parts.append(part)
        done, crc = done + len(part["ids"]), _chained(part_crc, crc)
    if not parts and not n_rounds:
        raise DamagedError(f"{folder} has no rounds; give a results folder")
    if n_rounds is not None and done != n_rounds:
        raise _missing(folder, done)
    return joined(parts), crc


def n_written(folder: Path) -> int:
    """The number of rounds in a folder, damaged or not; 0 if there are none. A last file that cannot be read does not
    count."""
    chunks = _chunks(folder, r"\.npz")
    if not chunks:
        return 0
    first, path = chunks[-1]
    try:
        return first + len(read_arrays(path, "")[0]["ids"])
    except (DamagedError, KeyError):
        return first


def joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The metrics of chunks as one; the chunks are emptied, because the memory may not hold all of them twice."""
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}


def _chunks(folder: Path, ending: str) -> list[tuple[int, Path]]:
    """The first round and the file of every chunk, in order; other files are ignored."""
    matches = [(re.fullmatch(rf"(\d{{8,}}){ending}", path.name), path) for path in folder.glob(f"{ROUNDS}/*")]
    return sorted((int(match[1]), path) for match, path in matches if match)


def _missing(folder: Path, first: int) -> DamagedError:
    return DamagedError(f"{folder / ROUNDS / f'{first:08d}.npz'} is missing; {remedy(folder)}")


def remedy(folder: Path) -> str:
    """The remedy for a damaged file."""
    return f"restore it from a copy, or delete {folder} to begin again"
