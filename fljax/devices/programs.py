"""Compiles programs at a level that suits the length of the run, and keeps them on disk for other processes.

Ten seconds of compiling that save one second are bad for a short run and good for a long one. There are three levels;
``"auto"`` chooses by an estimate (`fljax.devices.program_cost`) that depends only on the program and the number of
rounds, so that the same run is compiled in the same way everywhere. Options apply to single programs: a user's own JAX
code is compiled as usual.
"""

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax

from fljax.devices.callbacks import warn_of_callbacks
from fljax.devices.memory import host_memory
from fljax.devices.program_cost import Cost
from fljax.devices.shelf import Shelf, kept_here_alone

Level = Literal["fast", "medium", "full"]
Compile = Literal["auto", "fast", "medium", "full"]
"""The compile mode: starts soonest ("fast"), in between, fastest rounds ("full"), or chosen by an estimate."""

LEVELS: tuple[Level, ...] = get_args(Level)
COST = "cost"
"""Name of a round's cost on the shelf."""

_CPU = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
OPTIONS: dict[str, dict[Level, dict[str, Any]]] = {
    "cpu": {
        "fast": _CPU | {"xla_backend_optimization_level": 0},
        "medium": _CPU | {"xla_backend_optimization_level": 1},
        "full": {},
    },
    "gpu": {"fast": {"xla_gpu_autotune_level": 0}, "medium": {}, "full": {}},
}
"""Backend -> level -> options of XLA; other backends have none."""

# Fitted to whole runs at the three levels on one core: seconds of compiling per equation, and per element written.
# `benchmarks/compile_levels.py` shows their errors.
_SECONDS_PER_EQUATION: dict[Level, float] = {"fast": 0.86e-3, "medium": 1.6e-3, "full": 2.2e-3}
_SECONDS_PER_ELEMENT: dict[Level, float] = {"fast": 5.8e-10, "medium": 0.9e-10, "full": 0.4e-10}
_SECONDS_PER_KERNEL, _SECONDS_PER_FLOP = 5e-8, 6e-12
_RUNS = 4
"""Average number of runs of a compiled program: it is kept for other seeds and hyperparameters, so its speed counts
more than once."""


class Program(NamedTuple):
    """A compiled function of the arguments that were not static, and its origin."""

    call: Callable[..., Any]
    seconds: float  # of tracing and compiling, or of reading it
    was_kept: bool  # whether it was read from the disk


class Compiler(NamedTuple):
    """Compiles the programs of one run, at one level."""

    level: Level
    shelf: Shelf | None  # None: programs are not kept

    def program(self, name: str, function: Any, static: tuple, *arguments: Any) -> Program:
        """``function``, jitted, compiled for ``static`` and the shapes of ``arguments``.

        Args:
            name: distinguishes the programs of a run.
            function: from `jax.jit`; its static arguments come first.
            static: their values.
            arguments: the other arguments, as arrays or shapes.
        """
        began, label = time.perf_counter(), f"{name}-{self.level}"

        def trace() -> Any:
            traced = function.trace(*static, *arguments)
            warn_of_callbacks(traced.jaxpr)
            return traced

        if self.shelf is None:
            call, was_kept = _compiled(trace(), arguments, self.level), False
        else:
            call, was_kept = self._from_shelf(self.shelf, label, trace)
        return Program(call, time.perf_counter() - began, was_kept)

    def _from_shelf(self, shelf: Shelf, label: str, trace: Callable[[], Any]) -> tuple[Any, bool]:
        key = shelf.key, label
        if (call := _remembered(key)) is None and (call := shelf.program(label)) is None:
            # Compilations before this one, for constants of the trace or to test options, may hit JAX's cache and must
            # not count: only this compilation shows whether the program is new.
            lowered, options = trace().lower(), options_of(self.level)
            with kept_here_alone() as is_new:
                call = lowered.compile(compiler_options=options)
            if is_new():
                shelf.keep_program(label, call)
            return _remember(key, call), False
        return _remember(key, call), True


_MOST_PROGRAMS = 128
_programs: OrderedDict[Any, Any] = OrderedDict()
_lock = threading.Lock()  # one thread compiles ahead while another frees programs


def _compiled(traced: Any, arguments: tuple, level: Level) -> Any:
    """A traced function compiled at a level, once per process: JAX returns the same jaxpr for equal calls."""
    places = tuple(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    key = traced.jaxpr, traced.in_tree, places, level
    if (call := _remembered(key)) is None:
        call = traced.lower().compile(compiler_options=options_of(level))
    return _remember(key, call)


def _remembered(key: Any) -> Any | None:
    return _programs.get(key)


def _remember(key: Any, call: Any) -> Any:
    with _lock:
        _programs[key] = call
        _programs.move_to_end(key)
        while len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
    return call


def forget() -> None:
    """Drops the programs that were compiled in this process, as `jax.clear_caches` does for JAX's own."""
    with _lock:
        _programs.clear()


def let_go() -> None:
    """`forget` and `jax.clear_caches`; frees all programs that nothing else references."""
    forget()
    jax.clear_caches()
    gc.collect()
    trim()


def trim() -> None:
    """Returns freed memory to the system (`malloc_trim`): compiling leaves most of it fragmented."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def make_room() -> None:
    """Drops the programs of this process if `maps_are_short` or `memory_is_short`."""
    if maps_are_short() or memory_is_short():
        let_go()
        _bytes_after_drop[0] = _n_bytes_held()


def memory_is_short() -> bool:
    """Whether less than `_SHARE_OF_MEMORY` is free, and this process has grown since programs were last dropped: memory
    that was not freed then does not belong to programs."""
    memory = host_memory()
    enough = _SHARE_OF_MEMORY * memory.limit
    return memory.free < enough and _n_bytes_held() - _bytes_after_drop[0] > enough / 2


def _n_bytes_held() -> int:
    """Resident bytes of this process; 0 if not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system
        return 0


_bytes_after_drop = [0]
_SHARE_OF_MEMORY = 0.25


def maps_are_short() -> bool:
    """Whether the number of memory maps of this process comes near Linux's limit.

    XLA's CPU backend maps memory for each of a program's kernels. Beyond ``vm.max_map_count`` maps, usually 65,530, it
    prints "LLVM compilation error: Cannot allocate memory" and the process ends with a segmentation fault.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        return Path("/proc/self/maps").read_bytes().count(b"\n") > _SHARE_OF_MAPS * limit
    except (OSError, ValueError):  # another system
        return False


_SHARE_OF_MAPS = 0.6


def compiler_for(
    wanted: Compile, n_rounds: int, round_cost: Callable[[], Cost], shelf: Shelf | None, before: str | None = None
) -> Compiler:
    """The compiler of a run; drops programs of earlier runs if memory or memory maps run short.

    Args:
        wanted: a level; "auto": the level with which the run began, or the level with the least estimated time.
        n_rounds: rounds of the whole run.
        round_cost: traces a round and returns its cost; called if the shelf does not have it.
        shelf: where programs are kept.
        before: the level of an earlier part of the run.

    Raises:
        ValueError: ``wanted`` is unknown.
    """
    make_room()
    if wanted != "auto":
        check_level(wanted, ("auto", *LEVELS))
        return Compiler(wanted, shelf)
    if before in LEVELS:
        return Compiler(before, shelf)
    if (cost := None if shelf is None else shelf.numbers(COST)) is None:
        cost = round_cost()
        if shelf is not None:
            shelf.keep_numbers(COST, cost)
    return Compiler(level_for(Cost(*cost), n_rounds), shelf)


def check_level(wanted: str, levels: Sequence[str]) -> None:
    """Raises ValueError if ``wanted`` is not one of the ``levels``."""
    if wanted not in levels:
        raise ValueError(f"compile={wanted!r} is unknown; choose one of {', '.join(map(repr, levels))}")


def options_of(level: Level) -> dict[str, Any]:
    """XLA's options at a level on the default backend, if this version has them: JAX 0.12 dropped one of 0.10."""
    return dict(_accepted_options(tuple(OPTIONS.get(jax.default_backend(), {}).get(level, {}).items())))


@cache
def _accepted_options(options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The options that the compiler accepts, tested with a minimal program."""
    try:
        jax.jit(lambda x: x).lower(0.0).compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        accepted = tuple(option for option in options if f"No such compile option: '{option[0]}'" not in str(error))
        # The program itself will raise any other error.
        return options if accepted == options else _accepted_options(accepted)
    return options


def level_for(cost: Cost, n_rounds: int) -> Level:
    """The level with the least total time of compiling and running ``n_rounds`` rounds of ``cost``."""
    return min(LEVELS, key=lambda level: forecast(level, cost, n_rounds))


def forecast(level: Level, cost: Cost, n_rounds: int) -> float:
    """Estimated seconds of compiling a round of ``cost`` and running `_RUNS` times ``n_rounds`` of it."""
    compiling, running = seconds_of(level, cost)
    return compiling + _RUNS * n_rounds * running


def seconds_of(level: Level, cost: Cost) -> tuple[float, float]:
    """Estimated seconds of compiling a program of ``cost`` on one core, and of executing it once."""
    running = _SECONDS_PER_KERNEL * cost.executed + _SECONDS_PER_FLOP * cost.flops
    return _SECONDS_PER_EQUATION[level] * cost.equations, running + _SECONDS_PER_ELEMENT[level] * cost.elements
