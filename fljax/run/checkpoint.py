"""The state that a stopped run goes on from, bit for bit: the last checkpoint, and the one before it to fall back on.

Order of writing, so that a kill at any moment loses nothing but time: the chunk's rounds first, the checkpoint last,
aside and renamed. A checkpoint says how long the files were when it was written and what their checksums were; whatever
lies beyond is cut off on resume and computed again. Where something before it is damaged, the checkpoint before is
taken.

A state is whole on every device (`fljax.client.map.whole`), so one host has all of it and writes it alone. Orbax, which
writes shards from every host, would serve states that no host can hold. For those that there are it gains little: a
state of 20 MB holds the run up less, and is on the disk later; one of 0.1 MB is slower in both
(``benchmarks/results/checkpoints.txt``).
"""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from msgpack.exceptions import UnpackException

from fljax.files import DamagedError, checksum, sync_folder, write_atomically
from fljax.run.round_seconds import Spent, keep
from fljax.run.rounds import ROUNDS, Written, remedy
from fljax.run.rounds import read_rounds as read_rounds
from fljax.types import State

FOLDER = "checkpoints"
NAMES = ("last.msgpack", "last-1.msgpack")
"""The checkpoints that are kept, the newest first."""
_CRC_BYTES, _MUCH = 4, 1 << 22

T = TypeVar("T")
Same = Callable[[dict[str, Any], list[dict[str, Any]]], None]


class Checkpoint(NamedTuple):
    """Where a run stands after ``round`` rounds."""

    round: int
    written: Written
    identity: dict[str, Any]  # what makes it this run and no other
    history: list[dict[str, Any]]  # `fljax.run.surroundings.surroundings` from which round on
    state: State


class Saver:
    """Writes a folder's checkpoints while the run goes on.

    If the power fails before one is on the disk, it may be missing, or rounds that it speaks of; the one before it is
    on the disk with all of its own by then, and is gone on from.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool, self._settling = folder, ThreadPoolExecutor(1), None

    def save(self, checkpoint: Checkpoint, spent: Spent | None = None) -> None:
        """Begins to write a checkpoint, and keeps the one before; what it holds may change from here on.

        What its rounds ``spent`` lies beside it; None: nothing is said of it.

        Raises:
            OSError: the one before could not be written.
        """
        self.settle()
        self._settling = self._pool.submit(self._write, pack(checkpoint), checkpoint.round, spent)

    def settle(self) -> None:
        """Waits until all of the last checkpoint is on the disk.

        Raises:
            OSError: it cannot be written; the one before is as it was.
        """
        if self._settling is not None:
            settling, self._settling = self._settling, None
            settling.result()

    def _write(self, content: bytes, round: int, spent: Spent | None) -> None:
        if spent is not None:
            keep(self._folder, round, spent)
        place = self._folder / FOLDER
        place.mkdir(exist_ok=True)
        write_atomically(place / NAMES[0], _with_checksum(content), keep=place / NAMES[1], durable=False)
        for place in (self._folder / ROUNDS, self._folder / FOLDER, self._folder):
            sync_folder(place)


def pack(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as MessagePack, whose last four bytes are kept free for the checksum of all before them."""
    content = {
        "round": checkpoint.round,
        **checkpoint.written._asdict(),
        "identity": json.dumps(checkpoint.identity),
        "history": json.dumps(checkpoint.history),
        "state": serialization.to_state_dict(jax.device_get(jax.tree.map(as_numbers, checkpoint.state))),
        "sum": bytes(_CRC_BYTES),  # last of the names, which are written in alphabetical order
    }
    packed = serialization.msgpack_serialize(content)
    assert packed.endswith(b"sum\xc4\x04" + bytes(_CRC_BYTES)), "the checksum would overwrite something else"
    return packed


def seal(content: bytes) -> bytes:
    """What `pack` made, with its checksum filled in."""
    return b"".join(_with_checksum(content))


def _with_checksum(content: bytes) -> Iterator[bytes | memoryview]:
    """`seal` in two parts: the checksum of much is reckoned while the first is being written."""
    body = memoryview(content)[:-_CRC_BYTES]
    if len(content) < _MUCH:
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
    """The newest checkpoint that is whole, as is all that it speaks of, what ``check`` says, and where it lies.

    Each is read once. One that is passed over for its damage is warned of.

    Args:
        folder: the run's.
        like: a state of the structure that is looked for.
        check: raises DamagedError where something is not whole.
        same: is given a checkpoint's identity and history before its state, which says less of another run, is looked
            at.

    Returns:
        None: there is none.

    Raises:
        ValueError: none of them is whole, or the newest is of another method or model, or ``check`` or ``same`` says
            so.
    """
    first: DamagedError | None = None
    for path in stored(folder):
        try:
            found = read(path, like, same)
            result = check(found)
        except DamagedError as error:
            first = first or error
            continue
        if first is not None:
            text = f"{str(first).partition(';')[0]}; going on from {path.name}, after {found.round} rounds"
            warnings.warn(text, stacklevel=4)
        return found, result, path
    if first is not None:
        raise first
    return None


def stored(folder: Path) -> list[Path]:
    """The folder's checkpoints, the newest first."""
    return [path for name in NAMES if (path := folder / FOLDER / name).exists()]


def drop_newer(folder: Path, path: Path) -> None:
    """Deletes the checkpoints that were passed over for the one at ``path``."""
    for newer in stored(folder):
        if newer == path:
            return
        newer.unlink()


class Standing(NamedTuple):
    """Where a results folder stands: what its newest whole checkpoint says of itself."""

    round: int = 0
    identity: dict[str, Any] | None = None  # what makes its run the one that it is; None: it cannot be told
    history: list[dict[str, Any]] = []  # noqa: RUF012 - versions and devices, each with the ``round`` from which on

    @property
    def level(self) -> str | None:
        """How its run was compiled so far (`fljax.run.programs`); None: it has not begun."""
        return self.history[-1].get("compile", "full") if self.history else None

    @property
    def n_devices(self) -> int | None:
        """How many devices its run is on; None: it has not begun."""
        return self.history[-1].get("devices") if self.history else None


def standing_of(folder: Path) -> Standing:
    """Where a results folder stands; at round 0 where it has no whole checkpoint.

    Of what cannot be read in one that is whole nothing is told; `read` says that.
    """
    content = _newest_content(folder)
    if content is None:
        return Standing()
    identity, history = (_told(content, name, kind) for name, kind in (("identity", dict), ("history", list)))
    return Standing(int(content["round"]), identity, history or [])


def rounds_done(folder: Path) -> int:
    """Rounds in the newest whole checkpoint of a results folder; 0 where there is none."""
    return standing_of(folder).round


def _told(content: dict[str, Any], name: str, kind: type) -> Any:
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
        found = Checkpoint(int(content["round"]), written, identity, history, state)
    different = [
        f"{jax.tree_util.keystr(where)}: {np.shape(old)} instead of {np.shape(new)}"
        for (where, new), old in zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(state), strict=True)
        if np.shape(old) != np.shape(new)
    ]
    if different:
        raise ValueError(f"{path} is of another model or federation: state{different[0]}; use another folder")
    return found


@contextlib.contextmanager
def _of_this_method(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, UnpackException) as error:
        raise ValueError(f"{path} is not a checkpoint of this method and model ({error}); use another folder") from None


def is_key(leaf: Any) -> bool:
    """Whether a leaf, or its shape, is of random keys."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_numbers(leaf: Any) -> Any:
    """Random keys as their data, which files know."""
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
        found: Any = serialization.msgpack_restore(content)
        int(found["round"])
        return found


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value
