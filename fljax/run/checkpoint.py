"""A run's files: metrics row by row, arrays chunk by chunk, and a checkpoint that a killed run goes on from.

Order of writing, so that a kill at any moment loses nothing but time: the chunk's rows and arrays first, the checkpoint
last, aside and renamed. A checkpoint says how long the files were when it was written; whatever lies beyond is cut off
on resume and computed again, bit for bit.
"""

import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization
from msgpack.exceptions import UnpackException

from fljax.types import State


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
    except (ValueError, KeyError, TypeError, AttributeError, UnpackException) as error:
        raise ValueError(f"{path} is not a checkpoint of this method and model ({error}); use another folder") from None
    different = [
        f"{jax.tree_util.keystr(where)}: {np.shape(old)} instead of {np.shape(new)}"
        for (where, new), old in zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(state), strict=True)
        if np.shape(old) != np.shape(new)
    ]
    if different:
        raise ValueError(f"{path} is of another model or federation: state{different[0]}; use another folder")
    return Checkpoint(content["round"], content["metrics_bytes"], json.loads(content["identity"]), state)


def check_same_run(folder: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises ValueError where the folder's run differs from the one to be resumed."""
    for name, value in given.items():
        if stored.get(name) != value:
            old = stored.get(name)
            raise ValueError(f"{folder} holds a run with {name}={old!r}, not {value!r}; use another folder or {old!r}")


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
    folder.joinpath("rounds").mkdir(exist_ok=True)
    save_arrays(folder / "rounds" / f"{first:08d}.npz", metrics)
    with folder.joinpath("metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def cut_back(folder: Path, round: int, metrics_bytes: int) -> None:
    """Drops what was written after the checkpoint."""
    path = folder / "metrics.jsonl"
    path.touch()
    os.truncate(path, metrics_bytes)
    for part in folder.glob("rounds/*"):
        if part.suffix == ".part" or int(part.stem) >= round:
            part.unlink()


def read_rounds(folder: Path) -> dict[str, np.ndarray]:
    """All metrics of a results folder with their leading axis over rounds."""
    parts = [np.load(path) for path in sorted(folder.glob("rounds/*.npz"))]
    if not parts:
        raise ValueError(f"{folder} has no rounds; is it a results folder?")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0].files}
