"""One writer per results folder: a lock that ends with its process, and a separate folder for every run.

The lock is `flock` on the file ``.lock`` in the folder. The kernel releases it however the process ends, so there is
never a stale lock; two calls in one process exclude each other too, unlike with the other kind of POSIX lock; and Linux
passes it on to the server of an NFS share, so that hosts see each other's locks. If a mount keeps locks local, or has
none, the folder is rejected.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from pathlib import Path

from fljax.devices import hosts

LOCK = ".lock"
_MOUNTS = Path("/proc/self/mounts")
_LOCAL = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}
"""Mount options of network file systems with which other hosts do not see a lock."""
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[bool]:
    """Makes this process the only writer of ``folder``, which must exist; a nested call does nothing.

    Yields:
        True; False if the folder is not writable, as on a read-only disk.

    Raises:
        ValueError: the folder has another writer, which the message names, or it cannot be locked.
    """
    resolved = folder.resolve()
    if resolved in _HELD.get():
        yield True
        return
    handle = _locked(folder)
    if handle is None:
        yield False
        return
    token = _HELD.set(_HELD.get() | {resolved})
    try:
        yield True
    finally:
        _HELD.reset(token)
        os.close(handle)


@contextlib.contextmanager
def only_run(folder: Path | None) -> Iterator[bool]:
    """`only_writer` for a folder that all hosts see, created if it does not exist: host 0 locks it for all of them.

    All hosts must enter it. None, for a run without files, yields False.

    Raises:
        ValueError: as `only_writer`, on every host, or the folder cannot be made.
    """
    if folder is None:
        yield False
        return
    with contextlib.ExitStack() as stack:
        state, refusal = 0, ValueError(f"host 0 could not lock {folder}; see its own message")
        if hosts.writes():
            try:
                make_folder(folder)
                state = 1 + stack.enter_context(only_writer(folder))
            except ValueError as error:
                refusal = error
        (state,) = hosts.agreed(state)
        if not state:
            raise refusal
        yield state == 2


def new_folder(root: Path, name: str) -> Path:
    """Creates and returns ``root/name``, or ``root/name-2``, ``-3`` and so on if it exists already.

    However many processes call it at once, each gets its own folder.

    Raises:
        ValueError: ``root`` cannot be created or is not writable.
    """
    make_folder(root)
    for i in count(1):
        path = root / (name if i == 1 else f"{name}-{i}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_created(path, error) from None
        return path
    raise AssertionError("never reached")


def make_folder(folder: Path) -> None:
    """Creates ``folder`` and its parents if they are missing.

    Raises:
        ValueError: it cannot be created; the message has the reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_created(folder, error) from None


def _not_created(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"{folder} cannot be created ({error.strerror}); choose a folder that is writable")


def _locked(folder: Path) -> int | None:
    """The open lock file; None if it is not writable."""
    path = folder / LOCK
    if option := _local_lock_option(folder):
        raise ValueError(
            f"{folder} is on a network disk mounted with {option}, so a second writer on another host would not be "
            "noticed; choose a folder on another disk"
        )
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return None
        raise ValueError(f"{path} cannot be opened ({error.strerror}); choose another folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(handle)
        os.close(handle)
        raise _refused(folder, holder, error) from None
    with contextlib.suppress(OSError):  # a full disk: the lock holds, without a name in it
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
    return handle


def _refused(folder: Path, holder: str, error: OSError) -> ValueError:
    if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
        return ValueError(f"{folder} is being written by {holder}; wait for it or end it, or choose another folder")
    return ValueError(
        f"{folder} is on a file system that cannot lock files ({error.strerror}), so a second writer would not be "
        "noticed; choose a folder on another disk"
    )


def _holder(handle: int) -> str:
    """The process named in the lock file, in words; a process that has just locked it gets a moment to write."""
    for _ in range(50):
        text = os.pread(handle, 300, 0).decode(errors="replace")
        if match := re.fullmatch(r"(\d+) (\S+) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\n", text):
            return f"process {match[1]} on {match[2]} since {match[3]}"
        time.sleep(0.01)
    return "another process"  # on a full disk


def _local_lock_option(folder: Path) -> str | None:
    """The mount option that keeps locks of ``folder`` local to this host; None if there is none."""
    if not _MOUNTS.exists():
        return None
    resolved, best = folder.resolve(), ("", "", "")
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        _, mount_point, kind, options, *_ = line.split(" ")
        mount_point = mount_point.replace("\\040", " ")
        if resolved.is_relative_to(mount_point) and len(mount_point) >= len(best[0]):
            best = (mount_point, kind, options)
    network = best[1].startswith("nfs") or best[1] == "lustre"
    return min(_LOCAL.intersection(best[2].split(",")), default=None) if network else None
