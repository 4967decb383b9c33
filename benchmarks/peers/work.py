"""What every system does, defined once: data, model, first parameters, work of a client; and how it talks to `run.py`.

Each system runs in an environment of its own, so this needs NumPy alone.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from noisy_images import Set, make_data

FRAMEWORKS = ("fedjax", "pfl", "flower", "fedlab")
EVERY = ("fljax", "torch", *FRAMEWORKS, "naive_vmap")
MARK = "RESULT "
"""Begins a line that is meant for `run.py`; systems print what they like in between."""


class Bar(NamedTuple):
    """fljax must be so many times as fast as a system, or as the fastest of several."""

    against: str  # a system, "best peer" (naive vmap apart: it is no peer's code) or "best framework"
    ratio: float


class Workload(NamedTuple):
    """One local epoch of SGD on every participant, then the mean of their models."""

    model: str  # see `kernel_shapes`
    cohort: int = 10
    ragged: bool = False
    method: str = "fedavg"  # or "ditto" (lambda 1), "ifca" (four models)
    n_clients: int = 100
    samples: int = 100  # examples of a client; of ragged ones see `make_data`
    shape: tuple[int, int, int] = (28, 28, 1)
    n_classes: int = 10
    batch: int = 20
    lr: float = 0.05
    weighting: str = "size"  # of the mean, or "uniform"
    signal: float = 0.1  # see `make_data`: accuracies shall be neither chance nor 1
    rounds: int = 10  # of a timed turn
    systems: tuple[str, ...] = EVERY
    bars: tuple[Bar, ...] = ()
    tolerance: float = 0.04  # of the accuracies: cohorts and batches are drawn by each system itself

    @property
    def n_models(self) -> int:
        """Models that the server holds."""
        return 4 if self.method == "ifca" else 1


LOOPS = ("fljax", "torch")  # the systems in which every method can be written in a few lines
# A convolution under vmap over its kernels takes a minute a round on a CPU.
NO_VMAP = ("fljax", "torch", *FRAMEWORKS)
WORKLOADS = {
    # Enough rounds that a turn is longer than it takes to wake up from the others'.
    "logreg-10": Workload("logistic_regression", rounds=100, bars=(Bar("best peer", 6),)),
    "logreg-100": Workload("logistic_regression", cohort=100, rounds=60, bars=(Bar("best peer", 15),)),
    "ragged-logreg": Workload("logistic_regression", ragged=True, rounds=20),
    "mlp-10": Workload("mlp", rounds=20, bars=(Bar("best peer", 2), Bar("flower", 20))),
    "mlp-100": Workload("mlp", cohort=100, rounds=4, bars=(Bar("best peer", 2.5),)),
    "ragged-mlp": Workload("mlp", ragged=True, rounds=20, bars=(Bar("best peer", 1.7),)),
    "cnn-10": Workload(
        "mnist_cnn", lr=0.01, signal=1.0, rounds=2, systems=NO_VMAP, bars=(Bar("torch", 0.9), Bar("best framework", 1))
    ),
    "cnn-100": Workload("mnist_cnn", cohort=100, lr=0.01, signal=1.0, rounds=2, systems=NO_VMAP),
    "ragged-cnn": Workload(
        "mnist_cnn", ragged=True, lr=0.01, signal=1.0, rounds=2, systems=NO_VMAP, bars=(Bar("torch", 1),)
    ),
    "ditto-mlp": Workload("mlp", method="ditto", rounds=20, systems=LOOPS),
    "ifca-cnn": Workload(
        "mnist_cnn", method="ifca", lr=0.01, signal=1.0, rounds=2, systems=LOOPS, bars=(Bar("torch", 1),), tolerance=0.1
    ),
    # Two public benchmarks at their shapes; 1,500 rounds are a whole one.
    "pfl-cifar10": Workload(
        "dropout_cnn",
        cohort=50,
        n_clients=1000,
        samples=50,
        shape=(32, 32, 3),
        batch=10,
        lr=0.1,
        weighting="uniform",
        signal=1.0,
        rounds=2,
        systems=LOOPS,
        tolerance=0.1,
    ),
    "flute-femnist": Workload(
        "dropout_cnn",
        ragged=True,
        n_clients=3400,
        samples=200,
        n_classes=62,
        lr=0.1,
        signal=1.0,
        rounds=2,
        systems=LOOPS,
        tolerance=0.1,
    ),
}


def data(workload: Workload, seed: int = 0) -> tuple[list[Set], Set]:
    """([training set of each client], test set)."""
    w = workload
    return make_data(w.ragged, w.n_clients, w.samples, seed, w.shape, w.n_classes, w.n_models, w.signal)


def kernel_shapes(workload: Workload) -> list[tuple[int, ...]]:
    """Kernel shape of every layer in forward order: HWIO of a convolution, (in, out) of a dense layer."""
    side, _, channels = workload.shape
    flat, n_classes = side * side * channels, workload.n_classes
    return {
        "logistic_regression": [(flat, n_classes)],
        "mlp": [(flat, 200), (200, n_classes)],
        "mnist_cnn": _convolutions(5, channels, side // 4, n_classes),
        "dropout_cnn": _convolutions(3, channels, (side - 4) // 2, n_classes),
    }[workload.model]


def _convolutions(kernel: int, channels: int, side: int, n_classes: int) -> list[tuple[int, ...]]:
    return [(kernel, kernel, channels, 32), (kernel, kernel, 32, 64), (64 * side**2, 128), (128, n_classes)]


def first_models(workload: Workload, seed: int = 0) -> list[list[dict[str, np.ndarray]]]:
    """Of every model that the server holds, kernel and bias of each layer: Gaussian of variance 1 / fan in, and 0."""
    rng = np.random.default_rng(seed)

    def layer(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        kernel = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[:-1])))
        return {"kernel": kernel, "bias": np.zeros(shape[-1], np.float32)}

    return [[layer(shape) for shape in kernel_shapes(workload)] for _ in range(workload.n_models)]


class Job(NamedTuple):
    """What `run.py` asks of a system."""

    workload: Workload
    turns: list[int]  # rounds of each; the first turn is the first round

    @property
    def n_rounds(self) -> int:
        """Rounds in all turns."""
        return sum(self.turns)


def job(arguments: Sequence[str] | None = None) -> Job:
    """The job that the command line states."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("turns", type=int, nargs="+")
    options = parser.parse_args(arguments)
    return Job(WORKLOADS[options.workload], options.turns)


def turns(job: Job, settings: Sequence[Any] = (None,), choose: Callable[[Any], None] | None = None) -> Iterator[int]:
    """Yields how many rounds to do now, waits for `run.py` in between, and tells it how long they took.

    A turn is dealt out equally over ``settings`` (numbers of threads), each set by ``choose``, and counts at the rate
    of the fastest; the first turn has the first setting alone.
    """
    _tell(ready=True)
    for n_rounds in job.turns:
        sys.stdin.readline()
        turn_settings = settings if n_rounds % len(settings) == 0 else settings[:1]
        seconds = []
        for setting in turn_settings:
            if choose is not None:
                choose(setting)
            began = time.perf_counter()
            yield n_rounds // len(turn_settings)
            seconds.append(time.perf_counter() - began)
        _tell(seconds=min(seconds) * len(turn_settings))


def each_round(job: Job, settings: Sequence[Any] = (None,), choose: Callable[[Any], None] | None = None):
    """`turns` for systems that loop over rounds themselves: to be advanced before the first and after every round."""
    return (None for n_rounds in turns(job, settings, choose) for _ in range(n_rounds))


def finish(version: str, accuracy: float) -> None:
    """The last word of a system."""
    _tell(version=version, accuracy=float(accuracy))


def _tell(**content: Any) -> None:
    print(MARK + json.dumps(content), flush=True)
