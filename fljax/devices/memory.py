"""The memory that this process may still use, and the memory that a program needs, checked before it is allocated.

An operating system without free memory kills the process without a message; XLA reports it late or not at all. So the
need is estimated: from shapes within a second (`least`), then from the compiled program itself (`check_compiled`).
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc")
_STORED = ("scan", "while", "dot_general", "conv_general_dilated")
"""Operations whose results XLA stores in memory; those of others it may fuse away."""


class Memory(NamedTuple):
    """Bytes of the host that this process may use."""

    limit: int  # in total
    free: int  # not in use now


def host_memory() -> Memory:
    """The minimum of the machine's memory, the cgroups' limits (versions 1 and 2) and this process's own limits."""
    limits = [_machine_memory(), *_cgroup_memory(), *_process_memory()]
    return Memory(min(memory.limit for memory in limits), max(min(memory.free for memory in limits), 0))


def _machine_memory() -> Memory:
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Memory(limit, _numbers(_PROC / "meminfo").get("MemAvailable:", limit // 1024) * 1024)


def _cgroup_memory() -> Iterator[Memory]:
    """The limits of every group of this process, from its own up to the root of the mount."""
    for folder, usage_file, limit_file, inactive in _groups():
        limit = _number(folder / limit_file)
        if limit is not None and limit < 2**60:  # version 1 writes about 2**63 for no limit
            used = (_number(folder / usage_file) or 0) - _numbers(folder / "memory.stat").get(inactive, 0)
            yield Memory(limit, limit - max(used, 0))  # inactive pages of files are given back on demand


def _groups() -> Iterator[tuple[Path, str, str, str]]:
    """The folder of each group, and the file names of its usage, its limit and its reclaimable pages."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = (_CGROUPS, _CGROUPS / "unified")
            usage_file, limit_file, inactive = "memory.current", "memory.max", "inactive_file"
        elif "memory" in controllers.split(","):
            roots = (_CGROUPS / "memory",)
            usage_file, limit_file, inactive = "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"
        else:
            continue
        for root in roots:
            # In a container the path may be that of the host, and the mount its end.
            deepest = root / path.lstrip("/")
            for folder in (deepest, *deepest.parents):
                if folder.is_relative_to(root) and (folder / limit_file).exists():
                    yield folder, usage_file, limit_file, inactive


def _process_memory() -> Iterator[Memory]:
    """The limits of ``ulimit -v`` and ``ulimit -d``."""
    pages = _lines(_PROC / "self" / "statm")
    if not pages:
        return
    total, *_, data, _ = map(int, pages[0].split())
    for kind, used in ((resource.RLIMIT_AS, total), (resource.RLIMIT_DATA, data)):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield Memory(limit, limit - used * os.sysconf("SC_PAGE_SIZE"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    return next((int(line) for line in _lines(path) if line.isdigit()), None)


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line by its name."""
    parts = (line.split() for line in _lines(path))
    return {part[0]: int(part[1]) for part in parts if len(part) > 1 and part[1].isdigit()}


def check_fits(what: str, need: int) -> None:
    """Checks that ``need`` further bytes fit: ``check_fits("two copies of the model need", 10**9)``.

    Raises:
        MemoryError: the host has less memory free for this process.
    """
    memory = host_memory()
    if need > memory.free:
        of_limit = "" if memory.free == memory.limit else f" of {size(memory.limit)}"
        raise MemoryError(f"{what} {size(need)}, but {size(memory.free)}{of_limit} are free")


def check_compiled(what: str, compiled: Any) -> None:
    """Checks before a call that a compiled program fits; its arguments are in memory already.

    On an accelerator XLA itself checks the device's memory before a program begins, so nothing is done there.

    Raises:
        MemoryError: its further need, on all devices that share this host's memory, is more than is free.
    """
    if jax.default_backend() == "cpu" and (analysis := compiled.memory_analysis()) is not None:
        check_fits(what, (_peak(analysis) - analysis.argument_size_in_bytes) * n_host_devices())


def check_traced(what: str, program: Any, *arguments: Any, copies: int = 1) -> Any:
    """Traces ``program``, a jitted function, and returns the shapes of its results; a later call does not trace again.
    ``copies`` of it run side by side.

    Raises:
        MemoryError: its least need besides its arguments is more than is free.
    """
    traced = program.trace(*arguments)
    if jax.default_backend() == "cpu":
        check_fits(what, copies * least(traced))
    return traced.out_info


def n_host_devices() -> int:
    """Devices of the current mesh that share this host's memory; 1 outside any."""
    if jax.default_backend() != "cpu":
        return 0
    return max(jax.sharding.get_abstract_mesh().size // jax.process_count(), 1)


def least(traced: Any) -> int:
    """The least number of bytes that a traced program (``jitted.trace(...)``) needs besides its arguments.

    It is the largest of the results that XLA must store; the compiled program shows the rest.
    """
    return max([n_bytes(traced.out_info), *_stored_bytes(traced.jaxpr.jaxpr, 1)])


def _stored_bytes(jaxpr: Any, copies: int) -> Iterator[int]:
    for equation in jaxpr.eqns:
        if equation.primitive.name in _STORED:
            yield copies * n_bytes([var.aval for var in equation.outvars])
        inner_copies = copies
        if equation.primitive.name == "shard_map":
            inner_copies = copies * equation.params["mesh"].size
        for inner in jaxprs_in_params(equation.params):
            yield from _stored_bytes(inner, inner_copies)


def peak(compiled: Any) -> int:
    """Bytes of a compiled program's arguments, results and temporaries."""
    return _peak(compiled.memory_analysis())


def _peak(memory: Any) -> int:
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def n_bytes(shapes: Any) -> int:
    """Bytes of a pytree of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def size(n: int) -> str:
    """A number of bytes in a readable unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"
