"""Programs compiled as the work that follows deserves, and kept on disk so that another process need not trace them.

A compiler that takes ten seconds to save one is a bad bargain for a short run and a good one for a long run. Three
levels are offered; ``"auto"`` weighs them by a forecast (`fljax.run.program_cost`) that depends on the program and the
number of rounds alone, so that the same run is compiled in the same way everywhere. Options are given program by
program: a user's own JAX code is compiled as ever.
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

from fljax.run.callbacks import warn_of_callbacks
from fljax.run.memory import host_memory
from fljax.run.program_cost import Cost
from fljax.run.shelf import Shelf, kept_here_alone

Level = Literal["fast", "medium", "full"]
Compile = Literal["auto", "fast", "medium", "full"]
"""How to compile: soonest done, in between, for the quickest rounds, or as the forecast says."""

LEVELS: tuple[Level, ...] = get_args(Level)
COST = "cost"
"""What the numbers of a round's cost are called on the shelf."""

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

# Fitted to whole runs at the three levels on one core: seconds of compiling an equation, and of an element written.
# `benchmarks/compile_levels.py` shows how far off they are.
_SECONDS_PER_EQUATION: dict[Level, float] = {"fast": 0.86e-3, "medium": 1.6e-3, "full": 2.2e-3}
_SECONDS_PER_ELEMENT: dict[Level, float] = {"fast": 5.8e-10, "medium": 0.9e-10, "full": 0.4e-10}
_SECONDS_PER_KERNEL, _SECONDS_PER_FLOP = 5e-8, 6e-12
_RUNS = 4
"""How often a compiled program is run, on average: it is kept, for other seeds and numbers, so that its speed counts
more than once."""


class Program(NamedTuple):
    """A compiled function of the arguments that were not static, and how it came about."""

    call: Callable[..., Any]
    seconds: float  # of tracing and compiling, or of reading it
    was_kept: bool  # whether it came from the disk


class Compiler(NamedTuple):
    """Compiles what one run needs, at one level."""

    level: Level
    shelf: Shelf | None  # None: programs are not kept

    def program(self, name: str, function: Any, static: tuple, *arguments: Any) -> Program:
        """``function``, jitted, compiled for ``static`` and the shapes of ``arguments``.

        Args:
            name: tells the programs of a run apart.
            function: from `jax.jit`; its static arguments are the first.
            static: their values.
            arguments: the others, as arrays or shapes.
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
            # What is compiled before, for constants of the trace or to ask for options, may be in JAX's cache and would
            # count as found there: this compilation alone tells whether the program is new.
            lowered, options = trace().lower(), options_of(self.level)
            with kept_here_alone() as is_new:
                call = lowered.compile(compiler_options=options)
            if is_new():
                shelf.keep_program(label, call)
            return _remember(key, call), False
        return _remember(key, call), True


_MOST = 128
_of_this_process: OrderedDict[Any, Any] = OrderedDict()
_lock = threading.Lock()  # one thread compiles ahead while another lets go


def _compiled(traced: Any, arguments: tuple, level: Level) -> Any:
    """A traced function compiled at a level, once in a process: JAX gives the same jaxpr to equal calls."""
    places = tuple(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    key = traced.jaxpr, traced.in_tree, places, level
    if (call := _remembered(key)) is None:
        call = traced.lower().compile(compiler_options=options_of(level))
    return _remember(key, call)


def _remembered(key: Any) -> Any | None:
    return _of_this_process.get(key)


def _remember(key: Any, call: Any) -> Any:
    with _lock:
        _of_this_process[key] = call
        _of_this_process.move_to_end(key)
        while len(_of_this_process) > _MOST:
            _of_this_process.popitem(last=False)
    return call


def forget() -> None:
    """Lets go of the programs that were compiled in this process, as `jax.clear_caches` does of JAX's own."""
    with _lock:
        _of_this_process.clear()


def let_go() -> None:
    """`forget` and `jax.clear_caches`; what nobody else holds is freed."""
    forget()
    jax.clear_caches()
    gc.collect()
    trim()


def trim() -> None:
    """Gives the system back what was freed in this process: compiling leaves most of it scattered (`malloc_trim`)."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def make_room() -> None:
    """Lets go of the programs of this process where `maps_are_short`, or `memory_is_short`."""
    if maps_are_short() or memory_is_short():
        let_go()
        _held_after[0] = _n_bytes_held()


def memory_is_short() -> bool:
    """Whether less than `_SHARE_OF_MEMORY` is free, and as much has been taken since programs were let go last: what
    did not come back then is not theirs."""
    memory = host_memory()
    enough = _SHARE_OF_MEMORY * memory.limit
    return memory.free < enough and _n_bytes_held() - _held_after[0] > enough / 2


def _n_bytes_held() -> int:
    """Of this process, in memory; 0 where that is not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system
        return 0


_held_after = [0]
_SHARE_OF_MEMORY = 0.25


def maps_are_short() -> bool:
    """Whether the memory maps of this process come near what Linux allows.

    XLA's CPU backend maps memory for each of a program's kernels. Beyond ``vm.max_map_count`` maps, usually 65,530, it
    says "LLVM compilation error: Cannot allocate memory" and the process ends with a segmentation fault.
    """
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
        return Path("/proc/self/maps").read_bytes().count(b"\n") > _SHARE_OF_MAPS * most
    except (OSError, ValueError):  # another system
        return False


_SHARE_OF_MAPS = 0.6


def compiler_for(
    wanted: Compile, n_rounds: int, round_cost: Callable[[], Cost], shelf: Shelf | None, before: str | None = None
) -> Compiler:
    """The compiler of a run; programs of earlier runs are let go where memory, or maps of it, run short.

    Args:
        wanted: a level; "auto": the one that the run began with, or that of least forecast time.
        n_rounds: rounds of the whole run.
        round_cost: traces a round and says what it costs; called where the shelf does not know.
        shelf: where programs are kept.
        before: the level that an earlier part of the run was compiled at.

    Raises:
        ValueError: ``wanted`` is unknown.
    """
    make_room()
    if wanted != "auto":
        check_level(wanted, ("auto", *LEVELS))
        return Compiler(wanted, shelf)
    if before in LEVELS:
        return Compiler(before, shelf)
    if (known := None if shelf is None else shelf.numbers(COST)) is None:
        known = round_cost()
        if shelf is not None:
            shelf.keep_numbers(COST, known)
    return Compiler(level_for(Cost(*known), n_rounds), shelf)


def check_level(wanted: str, known: Sequence[str]) -> None:
    """Raises ValueError where ``wanted`` is none of the levels."""
    if wanted not in known:
        raise ValueError(f"compile={wanted!r} is unknown; choose one of {', '.join(map(repr, known))}")


def options_of(level: Level) -> dict[str, Any]:
    """XLA's options at a level on the default backend, those that this version has: JAX 0.12 dropped one of 0.10."""
    return dict(_known(tuple(OPTIONS.get(jax.default_backend(), {}).get(level, {}).items())))


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """Those of the options that the compiler takes, asked with the smallest program."""
    try:
        jax.jit(lambda x: x).lower(0.0).compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        left = tuple(one for one in options if f"No such compile option: '{one[0]}'" not in str(error))
        return options if left == options else _known(left)  # what else is wrong, the program itself will say
    return options


def level_for(cost: Cost, n_rounds: int) -> Level:
    """The level at which compiling and running ``n_rounds`` rounds of ``cost`` together take least."""
    return min(LEVELS, key=lambda level: forecast(level, cost, n_rounds))


def forecast(level: Level, cost: Cost, n_rounds: int) -> float:
    """Seconds of compiling a round of ``cost``, and of `_RUNS` times ``n_rounds`` of it."""
    compiling, running = seconds_of(level, cost)
    return compiling + _RUNS * n_rounds * running


def seconds_of(level: Level, cost: Cost) -> tuple[float, float]:
    """Seconds of compiling a program of ``cost`` on one core, and of passing through it once."""
    running = _SECONDS_PER_KERNEL * cost.executed + _SECONDS_PER_FLOP * cost.flops
    return _SECONDS_PER_EQUATION[level] * cost.equations, running + _SECONDS_PER_ELEMENT[level] * cost.elements
