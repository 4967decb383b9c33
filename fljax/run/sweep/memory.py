"""The number of runs that fit side by side: bytes per run, read from compiled programs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fljax.checks.arguments import check_count
from fljax.devices.memory import host_memory, peak, size
from fljax.ranges import real

Compile = Callable[[int], Any]
"""``compile(n)``: the compiled program of n runs side by side."""

RESERVE = 0.1
"""Share of the memory that a plan does not use, for other programs and fragmentation."""


class MemoryPlan(NamedTuple):
    """Bytes of a sweep on one device, and the number of runs side by side."""

    shared: int  # independent of the number of runs: the data and so on
    per_run: int  # of each run side by side: model, state, activations
    result: int  # of one run's metrics, kept until the sweep ends
    limit: int  # available to the sweep
    at_once: int  # runs side by side


def plan(
    compile: Compile, result: int, n_runs: int, at_once: int | None = None, memory: int | None = None
) -> MemoryPlan:
    """The number of runs to put side by side, of ``n_runs`` runs with ``result`` bytes of metrics each.

    On a CPU it is one, without compiling anything, unless ``at_once`` or ``memory`` is given; elsewhere as many as fit
    besides the data and all results, with a tenth of the memory unused.

    Args:
        compile: number of runs side by side -> the compiled program, for `estimate`.
        result: bytes of one run's metrics.
        n_runs: total number of runs on this device.
        at_once: runs side by side; None: the best number.
        memory: bytes of the device; None: the device's own.

    Raises:
        ValueError: ``memory`` is not a number of bytes; or ``at_once`` runs, a single one, or the results do not fit.
    """
    if memory is not None and not 0 < real("memory", memory) < math.inf:
        raise ValueError(
            f"memory={memory} is not a number of bytes; choose a positive number, or None for the device's"
        )
    limit = int((1 - RESERVE) * (device_memory() if memory is None else memory))
    if at_once is not None:
        check_count("at_once", at_once)
    if jax.default_backend() == "cpu" and memory is None:
        shared, per_run = 0, 0
    else:
        shared, per_run = estimate(compile)
    free = limit - shared - n_runs * result
    if free < per_run:
        computing = f"{size(shared)} in common, {size(per_run)} to compute and " if per_run else ""
        raise ValueError(
            f"more points than fit: {n_runs} runs need {computing}{size(result)} each for their results, and"
            f" {size(limit)} are free; give fewer points, seeds or rounds"
        )
    fit = n_runs if per_run == 0 else min(n_runs, free // per_run)
    if at_once is not None and min(at_once, n_runs) > fit:
        raise ValueError(f"at_once={at_once}: more points than fit, {size(per_run)} each; choose at_once <= {fit}")
    best = 1 if jax.default_backend() == "cpu" else fit
    return MemoryPlan(shared, per_run, result, limit, min(at_once or best, n_runs))


def estimate(compile: Compile) -> tuple[int, int]:
    """``(shared, per run)`` bytes: the line through the compiler's figures for 2 and 4 runs side by side."""
    two, four = peak(compile(2)), peak(compile(4))
    per_run = max((four - two) // 2, 1)
    return max(two - 2 * per_run, 0), per_run


def device_memory() -> int:
    """Bytes of the first device; for a CPU its share of the host's memory, which all devices of the mesh share."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    n_devices = math.prod(jax.sharding.get_abstract_mesh().shape.values()) // jax.process_count()
    return host_memory().limit // max(n_devices, 1)
