"""Checkpoints, from which an interrupted run resumes bit for bit: the last one, and the one before it as a fallback.

The chunk's rounds are written first, the checkpoint last, under another name and renamed; so a kill at any moment loses
nothing but time. A checkpoint records the lengths and checksums of the files when it was written; a resume cuts off
everything beyond and computes it again. If something before that is damaged, the earlier checkpoint is used.

A state is whole on every device (`fljax.client.map.whole`), so one host has all of it and writes it alone. Orbax, which
writes shards from every host, would serve states that no host can hold. For the present states it gains little: a state
of 20 MB delays the run less but is on the disk later; a state of 0.1 MB is slower in both
(``benchmarks/results/checkpoints.txt``).
"""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from msgpack.exceptions import UnpackException

from fljax.files import DamagedError, checksum, sync_folder, write_atomically
from fljax.folder.round_seconds import Spent, keep
from fljax.folder.rounds import ROUNDS, Written, remedy
from fljax.folder.rounds import read_rounds as read_rounds
from fljax.types import State

FOLDER = "checkpoints"
NAMES = ("last.msgpack", "last-1.msgpack")
"""Names of the checkpoints that are kept, the newest first."""
_CRC_BYTES, _LARGE = 4, 1 << 22

T = TypeVar("T")
Same = Callable[[dict[str, Any], list[dict[str, Any]]], None]


class Checkpoint(NamedTuple):
    """The state of a run after ``round`` rounds, and its record."""

    round: int
    written: Written
    identity: dict[str, Any]  # everything that distinguishes the run from others
    history: list[dict[str, Any]]  # `fljax.folder.surroundings.surroundings`, each with its first ``round``
    state: State


class Saver:
    """Writes a folder's checkpoints while the run continues.

    If the power fails before a checkpoint is on the disk, it or some of its rounds may be missing. The checkpoint
    before it is complete on the disk by then, and the run resumes from that one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(1)
        self._settling: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, spent: Spent | None = None) -> None:
        """Begins to write a checkpoint, and keeps the one before; its arrays may be changed after this call.

        The seconds that its rounds ``spent`` are written, too, unless they are None.

        Raises:
            OSError: the checkpoint before could not be written.
        """
        self.settle()
        self._settling = self._pool.submit(self._write, pack(checkpoint), checkpoint.round, spent)

    def settle(self) -> None:
        """Waits until all of the last checkpoint is on the disk.

        Raises:
            OSError: it cannot be written; the one before is unchanged.
        """
        if self._settling is not None:
            settling, self._settling = self._settling, None
            settling.result()

    def _write(self, content: bytes, round: int, spent: Spent | None) -> None:
        if spent is not None:
            keep(self._folder, round, spent)
        checkpoints = self._folder / FOLDER
        checkpoints.mkdir(exist_ok=True)
        write_atomically(checkpoints / NAMES[0], _with_checksum(content), keep=checkpoints / NAMES[1], durable=False)
        for folder in (self._folder / ROUNDS, checkpoints, self._folder):
            sync_folder(folder)


def pack(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as MessagePack; its last four bytes are reserved for the checksum of all bytes before them."""
    content = {
        "round": checkpoint.round,
        **checkpoint.written._asdict(),
        "identity": json.dumps(checkpoint.identity),
        "history": json.dumps(checkpoint.history),
        "state": serialization.to_state_dict(jax.device_get(jax.tree.map(as_numbers, checkpoint.state))),
        "sum": bytes(_CRC_BYTES),  # the last name, because names are written in alphabetical order
    }
    packed = serialization.msgpack_serialize(content)
    assert packed.endswith(b"sum\xc4\x04" + bytes(_CRC_BYTES)), "the checksum would overwrite something else"
    return packed


def seal(content: bytes) -> bytes:
    """The result of `pack` with its checksum filled in."""
    return b"".join(_with_checksum(content))


def _with_checksum(content: bytes) -> Iterator[bytes | memoryview]:
    """`seal` in two parts: the checksum of a large checkpoint is computed while the first part is written."""
    body = memoryview(content)[:-_CRC_BYTES]
    if len(content) < _LARGE:
        yield body
        yield checksum(body).to_bytes(_CRC_BYTES, "big")
        return
    with ThreadPoolExecutor(1) as pool:
        crc = pool.submit(checksum, body)
        yield body
        yield crc.result().to_bytes(_CRC_BYTES, "big")


def newest(
    folder: Path, like: State, check: Callable[[Checkpoint], T], same: Same = lambda identity, history: None
) -> tuple[Checkpoint, T, Path] | None:
    """The newest undamaged checkpoint whose rounds are undamaged too, the result of ``check``, and its path.

    Each checkpoint is read once. A damaged one is skipped with a warning.

    Args:
        folder: the run's folder.
        like: a state of the expected structure.
        check: raises DamagedError if files that belong to the checkpoint are damaged.
        same: called with a checkpoint's identity and history before its state is read; it raises ValueError for another
            run, with a clearer message than the state would give.

    Returns:
        None if there is no checkpoint.

    Raises:
        ValueError: all checkpoints are damaged, or the newest is of another method or model, or ``check`` or ``same``
            raises it.
    """
    first_error: DamagedError | None = None
    for path in stored(folder):
        try:
            checkpoint = read(path, like, same)
            result = check(checkpoint)
        except DamagedError as error:
            first_error = first_error or error
            continue
        if first_error is not None:
            text = f"{str(first_error).partition(';')[0]}; resuming from {path.name}, after {checkpoint.round} rounds"
            warnings.warn(text, stacklevel=4)
        return checkpoint, result, path
    if first_error is not None:
        raise first_error
    return None


def stored(folder: Path) -> list[Path]:
    """The folder's checkpoints, the newest first."""
    return [path for name in NAMES if (path := folder / FOLDER / name).exists()]


def drop_newer(folder: Path, path: Path) -> None:
    """Deletes the checkpoints that are newer than the one at ``path``."""
    for newer in stored(folder):
        if newer == path:
            return
        newer.unlink()


class Standing(NamedTuple):
    """The progress of a results folder, from the record of its newest undamaged checkpoint."""

    round: int = 0
    identity: dict[str, Any] | None = None  # everything that distinguishes its run; None if it is not known
    history: list[dict[str, Any]] = []  # noqa: RUF012 - versions and devices, each with its first ``round``

    @property
    def level(self) -> str | None:
        """The compile mode of the run so far (`fljax.devices.programs`); None if it has not begun."""
        return self.history[-1].get("compile", "full") if self.history else None

    @property
    def n_devices(self) -> int | None:
        """The number of devices of the run; None if it has not begun."""
        return self.history[-1].get("devices") if self.history else None


def standing_of(folder: Path) -> Standing:
    """The progress of a results folder; round 0 if it has no undamaged checkpoint.

    Entries that cannot be read are left out here; `read` raises an error for them.
    """
    content = _newest_content(folder)
    if content is None:
        return Standing()
    identity, history = (_entry(content, name, kind) for name, kind in (("identity", dict), ("history", list)))
    return Standing(int(content["round"]), identity, history or [])


def rounds_done(folder: Path) -> int:
    """Rounds in the newest undamaged checkpoint of a results folder; 0 if there is none."""
    return standing_of(folder).round


def _entry(content: dict[str, Any], name: str, kind: type) -> Any:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return _json(content[name], kind)


def _newest_content(folder: Path) -> dict[str, Any] | None:
    for path in stored(folder):
        with contextlib.suppress(ValueError):
            return _content(path)
    return None


def read(path: Path, like: State, same: Same = lambda identity, history: None) -> Checkpoint:
    """A checkpoint with a state of the structure of ``like``; ``same`` as of `newest`.

    Raises:
        DamagedError: the file has changed since it was written.
        ValueError: it is one of another method or model.
    """
    content = _content(path)
    with _of_this_method(path):
        identity, history = (_json(content[name], kind) for name, kind in (("identity", dict), ("history", list)))
    same(identity, history)
    with _of_this_method(path):
        state: Any = serialization.from_state_dict(jax.tree.map(as_numbers, like), content["state"])
        state = jax.tree.map(lambda leaf, new: _as_key(leaf, new) if is_key(new) else leaf, state, like)
        written = Written(*(int(content[name]) for name in Written._fields))
        checkpoint = Checkpoint(int(content["round"]), written, identity, history, state)
    differences = [
        f"{jax.tree_util.keystr(where)}: {np.shape(old)} instead of {np.shape(new)}"
        for (where, new), old in zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(state), strict=True)
        if np.shape(old) != np.shape(new)
    ]
    if differences:
        raise ValueError(f"{path} is of another model or federation: state{differences[0]}; use another folder")
    return checkpoint


@contextlib.contextmanager
def _of_this_method(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, UnpackException) as error:
        raise ValueError(f"{path} is not a checkpoint of this method and model ({error}); use another folder") from None


def is_key(leaf: Any) -> bool:
    """Whether a leaf, or its shape, consists of random keys."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_numbers(leaf: Any) -> Any:
    """Random keys as their data, which can be written to files."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _as_key(data: Any, like: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror}); {remedy(path.parents[1])}") from None
    body = memoryview(content)[:-_CRC_BYTES]
    if checksum(body).to_bytes(_CRC_BYTES, "big") != content[-_CRC_BYTES:]:
        raise DamagedError(f"{path} is not a whole checkpoint (its checksum is wrong); {remedy(path.parents[1])}")
    with _of_this_method(path):
        entries: Any = serialization.msgpack_restore(content)
        int(entries["round"])
        return entries


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value
