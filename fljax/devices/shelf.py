"""Compiled programs on disk, found without tracing by a description of everything on which they depend.

JAX's own cache saves the compiler's work but needs the program first, and tracing and lowering it takes seconds. The
key of a `Shelf` is a text that names the method, its static choices, its network and local work; the sources of fljax,
versions, devices and the shapes of the arguments are added here. The text must describe the program completely, so only
the command line uses it, for the library's own methods and parts.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable

import fljax
from fljax.sealed import DamagedError, read_sealed, write_sealed

MOST_BYTES = 1 << 30
"""Size limit in bytes; the least recently used programs are removed first."""


class Shelf(NamedTuple):
    """The programs of one run."""

    folder: Path
    key: str

    def program(self, name: str) -> Any | None:
        """The compiled program, or None if there is none that can be read here."""
        path = self._path(name)
        try:
            stored = zlib.decompress(read_sealed(path))
            if b"lapack_" in stored:
                _load_lapack()
            ids, *content = pickle.loads(stored)
            devices = [device for device in jax.devices() if device.id in ids]
            program = serialize_executable.deserialize_and_load(*content, execution_devices=devices)
        except FileNotFoundError:
            return None
        except (DamagedError, OSError):
            return None  # it will be written again
        except Exception as error:  # any error of the runtime, for example for a program of another machine
            text = str(error).partition("\n")[0][:200]
            warnings.warn(f"a kept program cannot be used here and is compiled again ({text})", stacklevel=2)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def keep_program(self, name: str, program: Any) -> None:
        """Keeps a compiled program, if it can be serialised."""
        try:
            ids = {device.id for sharding in jax.tree.leaves(program.input_shardings) for device in sharding.device_set}
            content = zlib.compress(pickle.dumps((ids, *serialize_executable.serialize(program))), 1)
        except (ValueError, TypeError, AttributeError, RuntimeError, pickle.PicklingError):
            return  # the backend cannot serialise it
        self._write(name, content)

    def numbers(self, name: str) -> list[float] | None:
        """The numbers that were kept; None if there are none."""
        try:
            return json.loads(read_sealed(self._path(name)))
        except (DamagedError, OSError, ValueError):
            return None

    def keep_numbers(self, name: str, numbers: Sequence[float]) -> None:
        """Keeps a few numbers."""
        self._write(name, json.dumps([float(number) for number in numbers]).encode())

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.key}-{name}"

    def _write(self, name: str, content: bytes) -> None:
        with contextlib.suppress(OSError):  # a run can do without a cache
            self.folder.mkdir(parents=True, exist_ok=True)
            _make_room(self.folder, len(content))
            write_sealed(self._path(name), content)


def shelf_for(text: str, *arguments: Any) -> Shelf | None:
    """The shelf for the programs of ``text`` with such ``arguments``, beside JAX's own cache; None if that is off.

    Args:
        text: names everything that is static: equal texts promise equal programs.
        arguments: pytrees of arrays; their structure, shapes, types and shardings count, their values do not.
    """
    folder = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    if not folder or jax.process_count() > 1:
        return None
    leaves, structure = jax.tree.flatten(arguments)
    shapes = [(leaf.shape, str(leaf.dtype), str(getattr(leaf, "sharding", ""))) for leaf in leaves]
    description = repr((text, str(structure), shapes, _surroundings()))
    return Shelf(Path(folder) / "fljax", hashlib.sha256(description.encode()).hexdigest()[:32])


_lock, _n_inside = threading.Lock(), 0
_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"


@contextlib.contextmanager
def kept_here_alone() -> Iterator[Callable[[], bool]]:
    """Keeps JAX's own cache from storing programs in the block; yields a function that tells whether this thread
    compiled a new program.

    A program that JAX has read from its cache cannot be serialised again: XLA's CPU backend leaves its code out.
    """
    global _n_inside
    with _lock:
        _listen()
        _n_inside += 1
        if _n_inside == 1:
            _former_limits.append(getattr(jax.config, _LEAST_SECONDS))
            jax.config.update(_LEAST_SECONDS, float("inf"))
    counts_before = _thread_counts.requests, _thread_counts.hits
    try:
        yield lambda: _thread_counts.requests > counts_before[0] and _thread_counts.hits == counts_before[1]
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                jax.config.update(_LEAST_SECONDS, _former_limits.pop())


_former_limits: list[float] = []


class _Counts(threading.local):
    """For each thread, the numbers of JAX's cache requests and hits."""

    requests = 0
    hits = 0


_thread_counts = _Counts()


@cache
def _listen() -> None:
    def count(event: str, **_: Any) -> None:
        _thread_counts.requests += event == "/jax/compilation_cache/compile_requests_use_cache"
        _thread_counts.hits += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_listener(count)


def _surroundings() -> tuple[Any, ...]:
    """Everything else on which a program depends: sources, versions, flags, JAX's settings, devices."""
    settings = sorted((name, repr(value)) for name, value in jax.config.values.items() if _affects_programs(name))
    devices = [(device.id, device.device_kind) for device in jax.devices()]
    variables = tuple(os.environ.get(name, "") for name in ("XLA_FLAGS", "FLJAX_CONV", "FLJAX_WINOGRAD"))
    return _sources(), _versions(), _cpu(), variables, settings, devices


def _affects_programs(setting: str) -> bool:
    return not any(word in setting for word in ("cache", "log", "dump", "debug", "traceback", "explain"))


@cache
def _load_lapack() -> None:
    """Lets programs that were read from disk call LAPACK on a CPU.

    JAX loads the LAPACK functions when it lowers the first call of one; before that, such a call crashes the process.
    """
    matrix = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    jax.jit(jax.lax.linalg.cholesky).trace(matrix).lower(lowering_platforms=("cpu",))


@cache
def _sources() -> str:
    """A checksum of the package's source files (times and sizes)."""
    digest = hashlib.sha256()
    for path in sorted(Path(fljax.__path__[0]).rglob("*.py")):
        stat = path.stat()
        digest.update(repr((str(path), stat.st_mtime_ns, stat.st_size)).encode())
    return digest.hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    packages = ("jax", "jaxlib", "numpy", "optax", "flax")
    return (platform.python_version(), *(importlib.metadata.version(package) for package in packages))


@cache
def _cpu() -> str:
    """The processor, because code compiled for one may not run on another."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return repr(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
    return repr(platform.uname())


def _make_room(folder: Path, n_bytes: int) -> None:
    """Removes the least recently used files until ``n_bytes`` more fit."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has just removed or renamed it
            stat = path.stat()
            files.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in files) + n_bytes
    for _, size, path in sorted(files):
        if total <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
