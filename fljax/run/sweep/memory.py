"""How many runs fit side by side: bytes per run, read off compiled programs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fljax.run.check import check_count
from fljax.run.memory import host_memory, peak, size

Compile = Callable[[int], Any]
"""``compile(n)``: the compiled program of n runs side by side."""

RESERVE = 0.1
"""Share of the memory that a plan leaves alone: what else runs there, and fragmentation."""


class MemoryPlan(NamedTuple):
    """Bytes of a sweep on one device, and what follows from them."""

    shared: int  # held once, however many runs: the data, and what does not grow with them
    per_run: int  # of each run side by side: model, state, activations
    result: int  # of one run's metrics, kept until the sweep ends
    limit: int  # that the sweep may use
    at_once: int  # runs side by side


def plan(
    compile: Compile, result: int, n_runs: int, at_once: int | None = None, memory: int | None = None
) -> MemoryPlan:
    """How many of ``n_runs`` runs of ``result`` bytes of metrics to put side by side.

    On a CPU that is one, without compiling anything, unless ``at_once`` or ``memory`` is given; elsewhere as many as
    fit beside the data and all results, with a tenth of the memory left alone.

    Args:
        compile: the program of so many runs side by side, for `estimate`.
        result: bytes of one run's metrics.
        n_runs: runs in all, on this device.
        at_once: runs side by side; None: as many as are best.
        memory: bytes that the device has; None: asks it.

    Raises:
        ValueError: ``at_once`` runs, or one, do not fit, or the results do not.
    """
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
    """``(shared, per run)`` bytes: the line through what the compiler says that 2 and 4 runs side by side need."""
    two, four = peak(compile(2)), peak(compile(4))
    per_run = max((four - two) // 2, 1)
    return max(two - 2 * per_run, 0), per_run


def device_memory() -> int:
    """Bytes of the first device; for a CPU its share of the host, which all devices of the mesh have in common."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    n_devices = math.prod(jax.sharding.get_abstract_mesh().shape.values()) // jax.process_count()
    return host_memory().limit // max(n_devices, 1)
