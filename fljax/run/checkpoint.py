"""A run's files: metrics row by row, arrays chunk by chunk, and a checkpoint that a killed run goes on from.

Order of writing, so that a kill at any moment loses nothing but time: the chunk's rows and arrays first, the checkpoint
last, aside and renamed. A checkpoint says how long the files were when it was written; whatever lies beyond is cut off
on resume and computed again, bit for bit.
"""

import io
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import numpy as np
from flax import serialization
from msgpack.exceptions import UnpackException

from fljax.types import State

METRICS, ROUNDS = "metrics.jsonl", "rounds"


class Checkpoint(NamedTuple):
    """Where a run stands after ``round`` rounds."""

    round: int
    metrics_bytes: int  # length of metrics.jsonl
    identity: dict[str, Any]  # what makes it this run and no other
    state: State


def write_atomically(path: Path, content: bytes) -> None:
    """Writes ``content`` beside ``path`` and renames it: readers see the old file or the new one, never a part."""
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an .npz aside and renames it."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """An .npz as it was saved.

    Raises:
        ValueError: it is damaged, or no .npz; ``remedy`` says what to do.
    """
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}") from None


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Replaces the folder's checkpoint."""
    folder.joinpath("checkpoints").mkdir(exist_ok=True)
    state = jax.device_get(checkpoint.state)
    content = checkpoint._replace(identity=json.dumps(checkpoint.identity), state=serialization.to_state_dict(state))
    write_atomically(folder / "checkpoints" / "last.msgpack", serialization.msgpack_serialize(content._asdict()))


def load(folder: Path, like: State) -> Checkpoint | None:
    """The folder's checkpoint with a state of the structure of ``like``; None where there is none.

    Raises:
        ValueError: the file is no checkpoint, or one of another method or model.
    """
    path = folder / "checkpoints" / "last.msgpack"
    if not path.exists():
        return None
    try:
        content: Any = serialization.msgpack_restore(path.read_bytes())
        state: Any = serialization.from_state_dict(like, content["state"])
        found = Checkpoint(int(content["round"]), int(content["metrics_bytes"]), read_identity(content), state)
    except (ValueError, KeyError, TypeError, AttributeError, UnpackException) as error:
        raise ValueError(f"{path} is not a checkpoint of this method and model ({error}); use another folder") from None
    different = [
        f"{jax.tree_util.keystr(where)}: {np.shape(old)} instead of {np.shape(new)}"
        for (where, new), old in zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(state), strict=True)
        if np.shape(old) != np.shape(new)
    ]
    if different:
        raise ValueError(f"{path} is of another model or federation: state{different[0]}; use another folder")
    return found


def rounds_done(folder: Path) -> int:
    """Rounds of the folder's checkpoint; 0 where there is none, or none that can be read (the run says what is wrong)."""
    try:
        return int(serialization.msgpack_restore((folder / "checkpoints" / "last.msgpack").read_bytes())["round"])
    except (OSError, ValueError, KeyError, TypeError, UnpackException):
        return 0


def read_identity(content: dict[str, Any]) -> dict[str, Any]:
    """The ``identity`` of a checkpoint's content.

    Raises:
        ValueError: it is not that of a run.
    """
    identity = json.loads(content["identity"])
    if not isinstance(identity, dict):
        raise ValueError(f"identity={identity!r}")
    return identity


def check_same_run(folder: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises ValueError where the folder's run differs from the one to be resumed."""
    for name, old in stored.items():
        if name in given and old != given[name]:
            text = f"{name}={old!r}, not {given[name]!r}; use another folder or {old!r}"
            raise ValueError(f"{folder} holds a run with {text}")
    if different := stored.keys() ^ given.keys():
        raise ValueError(
            f"{folder} holds a run of another method, or of another version of fljax: {min(different)!r} is known of "
            "one of the two only; use another folder"
        )


def append_rows(folder: Path, first: int, metrics: dict[str, np.ndarray]) -> int:
    """Appends the chunk's rounds to metrics.jsonl and its arrays to ``rounds/``; the new length of metrics.jsonl.

    A row has every scalar metric, and the mean over the active participants of the per-participant ones that are
    numbers. NaN (a round that was not tested) is left out. Nothing in it depends on the clock.
    """
    scalars = {name: value for name, value in metrics.items() if value.ndim == 1}
    rows = [
        {"round": first + i} | {name: value[i].item() for name, value in scalars.items() if np.isfinite(value[i])}
        for i in range(len(metrics["ids"]))
    ]
    for i, row in enumerate(rows):
        active = metrics["active"][i] & metrics["ok"][i]
        row["loss"] = float(metrics["loss"][i][active].mean()) if active.any() else None
        row["n_not_finite"] = int((~metrics["ok"][i]).sum())
    folder.joinpath(ROUNDS).mkdir(exist_ok=True)
    save_arrays(folder / ROUNDS / f"{first:08d}.npz", metrics)
    with folder.joinpath(METRICS).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def cut_back(folder: Path, round: int, metrics_bytes: int) -> None:
    """Drops what was written after the checkpoint."""
    path = folder / METRICS
    path.touch()
    os.truncate(path, metrics_bytes)
    for first, part in _chunks(folder, r"\.npz(\.part)?"):
        if part.suffix == ".part" or first >= round:
            part.unlink()


def read_whole(folder: Path, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """`read_rounds` until the checkpoint.

    Raises:
        ValueError: of what was written before the checkpoint something is missing or damaged.
    """
    path = folder / METRICS
    length = path.stat().st_size if path.exists() else 0
    if length < checkpoint.metrics_bytes:
        state = f"has {length} of its first {checkpoint.metrics_bytes} bytes" if path.exists() else "is missing"
        raise ValueError(f"{path} {state}; {_remedy(folder)}")
    return read_rounds(folder, checkpoint.round)


def read_rounds(folder: Path, n_rounds: int | None = None) -> dict[str, np.ndarray]:
    """All metrics of a results folder with their leading axis over rounds: the first ``n_rounds``; None: all.

    Raises:
        ValueError: there are none, or a chunk of them is missing or damaged.
    """
    parts, done = [], 0
    for first, path in _chunks(folder, r"\.npz"):
        if n_rounds is not None and first >= n_rounds:
            break
        if first != done:
            raise _missing(folder, done)
        part = read_arrays(path, _remedy(folder))
        if "ids" not in part or (parts and part.keys() != parts[0].keys()):
            raise ValueError(f"{path} is not of this run; {_remedy(folder)}")
        parts.append(part)
        done += len(part["ids"])
    if not parts and not n_rounds:
        raise ValueError(f"{folder} has no rounds; is it a results folder?")
    if n_rounds is not None and done != n_rounds:
        raise _missing(folder, done)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _chunks(folder: Path, ending: str) -> list[tuple[int, Path]]:
    """The first round and the file of every chunk, in order; what else lies there is nobody's business."""
    found = [(re.fullmatch(rf"(\d{{8,}}){ending}", path.name), path) for path in folder.glob(f"{ROUNDS}/*")]
    return sorted((int(name[1]), path) for name, path in found if name)


def _missing(folder: Path, first: int) -> ValueError:
    return ValueError(f"{folder / ROUNDS / f'{first:08d}.npz'} is missing; {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    return f"put it back from a copy, or delete {folder} to begin again"
