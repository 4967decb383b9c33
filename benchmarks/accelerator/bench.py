"""What the parts of `gpu.py` share: the amount of work, the time that is left, the data, the limits."""

import math
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from accelerator.table import LATE, Row, not_measured
from jax.typing import DTypeLike
from noisy_images import Set
from peers.fljax_peer import Rounds, federation_of, model_of
from peers.work import WORKLOADS, Workload, data

from fljax.types import Federation

PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
REPEATS, COMPILERS, SPARE = 5, 8, 40.0


class Size(NamedTuple):
    """How much work the run does."""

    workloads: dict[str, Workload]
    side: int  # of the square matrices
    clients: int  # in the convolutions
    whole: int  # rounds of a public benchmark
    seconds: float  # of a timed sample
    counts: tuple[int, ...]  # points side by side
    sweep_rounds: int


def few(workload: Workload) -> Workload:
    """The workload with a few small clients."""
    return workload._replace(n_clients=8, cohort=2, samples=20)


FULL = Size(WORKLOADS, 8192, 64, 1500, 0.25, (1, 4, 16, 64, 128, 256), 10)
TINY = Size({name: few(workload) for name, workload in WORKLOADS.items()}, 256, 2, 3, 0.0, (1, 2), 1)


class Bench:
    """What the parts share."""

    def __init__(self, size: Size, seconds: float) -> None:
        self.size, self.ends = size, time.perf_counter() + seconds
        self.matrix_rate: dict[str, float] = {}  # FLOP/s by precision
        self.copy_rate = math.nan  # bytes/s
        self.sets: dict[str, tuple[list[Set], Set]] = {}  # of a workload's clients, to test on
        self.federations: dict[str, Federation] = {}  # the same on the device

    def is_late(self, spare: float = 0.0) -> bool:
        """Whether no more than ``spare`` seconds are left."""
        return time.perf_counter() > self.ends - spare

    def drawn(self, name: str) -> tuple[list[Set], Set]:
        """The images of a workload."""
        if name not in self.sets:
            self.sets[name] = data(self.size.workloads[name])
        return self.sets[name]

    def rounds(self, name: str, dtype: DTypeLike | None = None) -> Rounds:
        """Rounds of a workload, its federation made once; with a ``dtype``, of a network that computes in it."""
        workload = self.size.workloads[name]
        if name not in self.federations:
            self.federations[name] = federation_of(workload, self.drawn(name)[0])
        runner = Rounds(workload, self.federations[name], None if dtype is None else model_of(workload, dtype))
        self.federations[name] = runner.federation
        return runner

    def attempt(self, job: Callable[[], Any]) -> Any:
        """What the job returns, or in a line why it could not: one failure must not cost the rest of the table."""
        if self.is_late():
            return LATE
        try:
            return job()
        except Exception as error:
            traceback.print_exc()
            return str(error).partition("\n")[0] or type(error).__name__

    def compile(self, jobs: Iterable[Callable[[], Any]]) -> list[Any]:
        """`attempt` of every job, several at a time, while there is time left to run what comes of it."""
        with ThreadPoolExecutor(COMPILERS) as pool:
            return list(pool.map(lambda job: LATE if self.is_late(SPARE) else self.attempt(job), jobs))

    def line(self, what: str, unit: str, job: Callable[[], Row | str], bar: float | None = None) -> Row:
        """The line that the job makes, or one that says why there is none."""
        result = self.attempt(job)
        return not_measured(what, unit, result, bar) if isinstance(result, str) else result


def precisely(precision: str) -> AbstractContextManager:
    """Float32 products in it; of bfloat16, the type of the operands says it."""
    return jax.default_matmul_precision({"float32": "highest", "bfloat16": None}.get(precision, precision))


def dtype_of(precision: str) -> DTypeLike:
    """What a model computes in."""
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32
