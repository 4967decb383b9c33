"""Timing alternatives in one process: in turn, waited for, compared pair by pair; and their peak memory."""

import argparse
import contextlib
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

from counts import count

Run = Callable[[], Any]
CHECKOUT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """One line on what the figures below it were measured."""
    return f"{len(os.sched_getaffinity(0))} cores, jax {jax.__version__}, devices {jax.devices()}"


def python_path(checkout: Path = CHECKOUT) -> str:
    """A PYTHONPATH by which a child process has the benchmarks and the fljax of a checkout, whatever is installed."""
    return os.pathsep.join(str(path) for path in (checkout / "benchmarks", checkout))


def parser(doc: str | None, choices: Iterable[str], repeats: int = 5, bars: bool = True) -> argparse.ArgumentParser:
    """What every benchmark takes: --only, --repeats and, where it has ``bars``, --check."""
    command_line = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(choices)
    command_line.add_argument("--only", nargs="+", choices=names, default=names)
    command_line.add_argument("--repeats", type=count, default=repeats)
    if bars:
        command_line.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    return command_line


def seconds_of(run: Run, clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    """(seconds until the result is there, the result); with `time.process_time`, those of the processor."""
    began = clock()
    result = jax.block_until_ready(run())
    return clock() - began, result


def rounds_in(seconds: float, run: Callable[[int], Any], most: int) -> int:
    """How many rounds ``run(n)``, compiled before, does in about so many seconds: from one to ``most``."""
    return min(max(int(seconds / seconds_of(lambda: run(1))[0]), 1), most)


def alternate(
    sides: Mapping[str, Run], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every call: each side once, then each again, ``repeats`` times."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(seconds_of(run, clock)[0])
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median of the pairs' ratios, which a machine whose speed drifts leaves alone."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def peak_mib(run: Run) -> float:
    """MiB that one call adds to the resident memory at its highest; NaN where the system does not say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan")

    def kib(field: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field))

    with contextlib.suppress(AttributeError):  # glibc hands back what it keeps for later, which would hide a peak
        ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")  # the high-water mark starts again at what is held now
    held_kib = kib("VmRSS")
    jax.block_until_ready(run())
    return (kib("VmHWM") - held_kib) / 1024


def with_threads(n_threads: int, run: Run) -> Run:
    """``run`` with PyTorch on so many threads."""
    import torch

    def call() -> Any:
        torch.set_num_threads(n_threads)
        return run()

    return call


def fastest(seconds: Mapping[str, list[float]], *names: str) -> list[float]:
    """The fastest of the named sides, turn by turn."""
    return [min(turn) for turn in zip(*(seconds[name] for name in names), strict=True)]
