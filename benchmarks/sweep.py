"""A sweep in one program against as many calls of the compiled `simulate`, and against as many processes.

    python benchmarks/sweep.py [--check] [--only mlp cnn] [--repeats 3]
    python benchmarks/sweep.py --curve 1 2 4 8 16 32 64 128 256 [--check]    # for an accelerator

FedProx on a Fashion-MNIST subset (FLJAX_DATA names its folder): 8 learning rates x 8 mu x 3 seeds = 192 runs; 10
clients of 60 training images (Dirichlet 0.2), one epoch in batches of 20. `simulate` and the sweep are compiled
once, outside the timing, and alternated; ratios are medians of pairs. On one device the runs of a sweep go one after
another, so the bar there is only that nothing is lost; "all devices" is the same sweep spread over the CPU's devices,
one a core. Processes start two at a time, compiled programs in a warm cache; a few are timed and 192 extrapolated from
their mean. Every cell must equal its single run to 1e-5.

``--curve`` is points a second of the MLP with so many side by side, on noise of Fashion-MNIST's shape, planning and
compilation apart. Its knee is the least count with nine tenths of the best rate; there the rate must be at least 20
times one point's.

2 cores of an AMD EPYC, nothing else running, jax 0.10.2, 21 November 2026: against calls MLP 0.94 and 1.01 (two runs),
CNN 1.00; spread over both devices 1.18 and 1.22, CNN 1.68; against processes MLP 37 and 33, CNN 15; every cell equals
its single run bit for bit.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import alternate, count, machine, ratio, seconds_of

import fljax
from fljax.algorithms.fedprox import fedprox
from fljax.data.federation import on_host
from fljax.data.partition import PARTITIONS
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.models import MODELS
from fljax.run.simulate import simulate
from fljax.run.sweep import sweep
from fljax.run.sweep.cells import Cell, Setting, all_cells
from fljax.run.sweep.points import grid, log_spaced, point
from fljax.run.sweep.program import advance, begin
from fljax.types import Algorithm, Examples, Federation, Work

N_SEEDS, BARS = 3, {"calls": 0.95, "processes": 10.0}
N_CLIENTS, N_EXAMPLES = 10, 750
KNEE, CURVE_BAR = 0.9, 20.0


class Workload(NamedTuple):
    """One row of the table."""

    model: str
    options: dict[str, Any]
    rounds: int
    process_bar: bool  # whether the bar against processes holds for it


WORKLOADS = {
    "mlp": Workload("mlp", {"hidden": (200,)}, 10, True),
    "cnn": Workload("lenet", {}, 2, False),
}


def fashion_mnist() -> tuple[Examples, Examples]:
    """(some of the training images, all test images)."""
    from fljax.data.datasets import load  # here, for an accelerator's machine may have nothing that reads files

    train, test = load("fashion_mnist")
    rows = np.random.default_rng(0).permutation(len(train.y))[:N_EXAMPLES]
    return on_host(train.x[rows], train.y[rows]), test


def noise() -> tuple[Examples, Examples]:
    """As many images of noise."""
    rng = np.random.default_rng(0)

    def images(n: int) -> Examples:
        return on_host(rng.integers(0, 256, (n, 28, 28, 1), np.uint8), np.arange(n) % 10)

    return images(N_EXAMPLES), images(10_000)


def make(workload: Workload, train: Examples, test: Examples) -> tuple[Algorithm, Federation, Any]:
    """(FedProx, the federation, its 64 points)."""
    federation = PARTITIONS["dirichlet"](train, test, N_CLIENTS, seed=0, beta=0.2, public=False)
    model = MODELS[workload.model](input_shape=(28, 28, 1), n_classes=10, **workload.options)
    hypers = grid(fljax.fedprox.Hyper(), lr=log_spaced(0.005, 0.2, 8), mu=log_spaced(1e-3, 1.0, 8))
    return fedprox(model, Work(epochs=1, batch_size=20)), federation, hypers


def calls(workload: Workload, algorithm: Algorithm, federation: Federation, hypers: Any) -> list[dict]:
    """The 192 runs, one call each, waited for."""
    key, results = jax.random.key(0), []
    for i in range(len(hypers.lr)):
        for seed in range(N_SEEDS):
            run = (point(hypers, i), federation, jax.random.fold_in(key, seed), workload.rounds)
            results.append(jax.block_until_ready(simulate(algorithm, *run, **EVALUATE)[1]))
    return results


EVALUATE = {"evaluate_every": 1000}  # the last round only


def difference(swept: dict, single: list[dict]) -> float:
    """Largest difference between a cell and its single run, relative to 1 or the value, over losses and accuracies."""
    worst = 0.0
    for name in ("loss", "test_loss", "client_loss", "client_accuracy"):
        a = np.asarray(swept[name]).reshape(len(single), -1)[:, :]
        b = np.stack([np.asarray(metrics[name]).reshape(-1) for metrics in single])
        worst = max(worst, float(np.nanmax(np.abs(a - b) / np.maximum(1.0, np.abs(b)))))
    return worst


def against_calls(workload: Workload, repeats: int) -> dict[str, Any]:
    """Seconds of separate calls, and of the sweep on one device and on all."""
    algorithm, federation, hypers = make(workload, *fashion_mnist())
    key = jax.random.key(0)

    def swept(federation: Federation, n_sweep: int) -> Any:
        with over_devices(jax.devices()[:n_sweep], n_sweep):
            return sweep(algorithm, hypers, federation, key, N_SEEDS, workload.rounds, **EVALUATE)

    with over_devices() as mesh:
        spread = replicated(federation, mesh)
    sides = {
        "sweep": lambda: swept(federation, 1),
        "calls": lambda: calls(workload, algorithm, federation, hypers),
        "sweep, all devices": lambda: swept(spread, jax.device_count()),
    }
    first = {name: seconds_of(run) for name, run in sides.items()}  # compiles
    seconds = alternate(sides, repeats)
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": ratio(seconds["calls"], seconds["sweep"]),
        "ratio, all devices": ratio(seconds["calls"], seconds["sweep, all devices"]),
        "difference": difference(first["sweep"][1], first["calls"][1]),
        "first": first["sweep"][0],
    }


def process_seconds(name: str, n_processes: int, rounds: int) -> float:
    """Mean seconds of a process when two run at a time and compiled programs are cached."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, str(Path(__file__)), "--rounds", str(rounds), "--one", name]

        def start(i: int) -> subprocess.Popen:
            return subprocess.Popen([*command, str(i)], env=environment, stdout=subprocess.DEVNULL)

        start(0).wait()

        def pair() -> list[int]:
            return [process.wait() for process in [start(i) for i in range(2)]]

        timed_pairs = [seconds_of(pair) for _ in range(n_processes // 2)]
        if any(any(codes) for _, codes in timed_pairs):
            raise RuntimeError("a process failed")
        return statistics.mean(seconds for seconds, _ in timed_pairs) / 2


def one(workload: Workload, i: int) -> None:
    """What one of the processes does: a run, from reading the data to the accuracy."""
    algorithm, federation, hypers = make(workload, *fashion_mnist())
    key = jax.random.fold_in(jax.random.key(0), i % N_SEEDS)
    _, metrics = simulate(algorithm, point(hypers, i // N_SEEDS), federation, key, workload.rounds, **EVALUATE)
    print(float(metrics["accuracy_macro"][-1]))


def curve(counts: Iterable[int], n_rounds: int) -> Iterator[tuple[int, float]]:
    """(points side by side, points a second), one point first."""
    algorithm, federation, _ = make(WORKLOADS["mlp"], *noise())
    due = np.arange(n_rounds) == n_rounds - 1
    for n in sorted({1, *counts}):
        cells = all_cells(fljax.fedprox.Hyper(lr=jnp.asarray(log_spaced(0.005, 0.2, n))), jax.random.key(0), 1)
        setting = Setting(algorithm, N_CLIENTS, n_rounds, at_once=n)

        def run(setting: Setting = setting, cells: Cell = cells) -> Any:
            begun = begin(setting, cells, federation)
            return advance(setting, begun, federation, None, due, jnp.int32(0), jnp.int32(n_rounds))

        seconds_of(run)
        yield n, n / statistics.median(seconds_of(run)[0] for _ in range(5))


def knee(rates: Mapping[int, float]) -> tuple[int, float]:
    """(the least count near the best rate, that rate over one point's)."""
    n = min(n for n, rate in rates.items() if rate >= KNEE * max(rates.values()))
    return n, rates[n] / rates[1]


def show_curve(counts: list[int], n_rounds: int) -> bool:
    """Prints it; whether its bar is missed."""
    rates: dict[int, float] = {}
    for n, rate in curve(counts, n_rounds):
        rates[n] = rate
        print(f"{n:>5} points side by side {rate:9.2f} points/s {rate / rates[1]:7.2f} x", flush=True)
    n, reached = knee(rates)
    print(f"knee at {n} points: {reached:.2f} times one point's rate (bar {CURVE_BAR:g})")
    return reached < CURVE_BAR


def main() -> int:
    """Prints the table; 1 if ``--check`` and something is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--rounds", type=count, help="of each run, instead of the workload's")
    parser.add_argument("--processes", type=int, default=4, help="how many are timed")
    parser.add_argument("--curve", type=count, nargs="+", metavar="POINTS")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="exit with 1 when something is below its bar")
    options = parser.parse_args()
    if options.processes < 2 or options.processes % 2:
        parser.error(f"--processes {options.processes}: give an even number from 2 on, for two run at a time")
    workloads = {n: w._replace(rounds=options.rounds or w.rounds) for n, w in WORKLOADS.items()}
    if options.one:
        one(workloads[options.one[0]], int(options.one[1]))
        return 0
    use_all_cores()
    print(machine())
    if options.curve:
        missed = show_curve(options.curve, workloads["mlp"].rounds)
        return 1 if options.check and missed else 0
    failed = False
    for name in options.only:
        process_s = process_seconds(name, options.processes, workloads[name].rounds)
        row = against_calls(workloads[name], options.repeats)
        n_runs, seconds = 64 * N_SEEDS, row["seconds"]
        gain = n_runs * process_s / min(seconds["sweep"], seconds["sweep, all devices"])
        print(f"{name}: {n_runs} runs of {workloads[name].rounds} rounds; first sweep, compiling: {row['first']:.1f} s")
        print("  " + ", ".join(f"{side} {value:.2f} s" for side, value in seconds.items()))
        print(
            f"  calls / sweep: {row['ratio']:.2f} (bar {BARS['calls']}); all devices: {row['ratio, all devices']:.2f}"
        )
        print(
            f"  processes / sweep: {gain:.1f} ({process_s:.2f} s each, {n_runs} extrapolated from {options.processes})"
        )
        print(f"  largest difference between a cell and its single run: {row['difference']:.1e}", flush=True)
        failed |= row["ratio"] < BARS["calls"] or row["difference"] > 1e-5
        failed |= WORKLOADS[name].process_bar and gain < BARS["processes"]
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
