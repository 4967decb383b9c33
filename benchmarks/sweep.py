"""A sweep in one program against as many calls of the compiled `simulate`, and against as many processes.

    python benchmarks/sweep.py [--check] [--only mlp cnn] [--repeats 3]
    python benchmarks/sweep.py --curve 1 2 4 8 16 32 64 128 256    # points a second, side by side: for an accelerator

FedProx on a Fashion-MNIST subset (FLJAX_DATA names its folder): 8 learning rates x 8 mu x 3 seeds = 192 runs; 10
clients of 60 training images (Dirichlet 0.2), one epoch in batches of 20. `simulate` and the sweep are compiled
once, outside the timing, and alternated; ratios are medians of pairs. On one device the runs of a sweep go one after
another, so the bar there is only that nothing is lost; "all devices" is the same sweep spread over the CPU's devices,
one a core. Processes start two at a time, compiled programs in a warm cache; a few are timed and 192 extrapolated from
their mean. Every cell must equal its single run to 1e-5.

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
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import alternate, machine, ratio, seconds_of

from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.data.datasets import load
from fljax.data.federation import on_host
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS
from fljax.run.mesh import over_devices, replicated, use_all_cores
from fljax.run.simulate import simulate
from fljax.run.sweep import sweep
from fljax.run.sweep.points import grid, log_spaced, point
from fljax.types import Algorithm, Federation, Work

N_SEEDS, BARS = 3, {"calls": 0.95, "processes": 10.0}


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


def make(workload: Workload) -> tuple[Algorithm, Federation, Any]:
    """(FedProx, the federation, its 64 points)."""
    train, test = load("fashion_mnist")
    rows = np.random.default_rng(0).permutation(len(train.y))[:750]
    some = on_host(train.x[rows], train.y[rows])
    federation = PARTITIONS["dirichlet"](some, test, 10, seed=0, beta=0.2, public=False)
    model = MODELS[workload.model](input_shape=(28, 28, 1), n_classes=10, **workload.options)
    hypers = grid(FedProxHyper(), lr=log_spaced(0.005, 0.2, 8), mu=log_spaced(1e-3, 1.0, 8))
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
    algorithm, federation, hypers = make(workload)
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

        taken = [seconds_of(pair) for _ in range(n_processes // 2)]
        if any(any(codes) for _, codes in taken):
            raise RuntimeError("a process failed")
        return statistics.mean(seconds for seconds, _ in taken) / 2


def one(workload: Workload, i: int) -> None:
    """What one of the processes does: a run, from reading the data to the accuracy."""
    algorithm, federation, hypers = make(workload)
    key = jax.random.fold_in(jax.random.key(0), i % N_SEEDS)
    _, metrics = simulate(algorithm, point(hypers, i // N_SEEDS), federation, key, workload.rounds, **EVALUATE)
    print(float(metrics["accuracy_macro"][-1]))


def curve(counts: list[int]) -> None:
    """Points a second against points side by side."""
    workload = WORKLOADS["mlp"]
    algorithm, federation, _ = make(workload)
    rates: dict[int, float] = {}
    for n in counts:
        hypers = FedProxHyper(lr=jnp.asarray(log_spaced(0.005, 0.2, n)))
        run = lambda h=hypers, n=n: sweep(  # noqa: E731
            algorithm, h, federation, jax.random.key(0), 1, workload.rounds, at_once=n, **EVALUATE
        )
        seconds_of(run)
        rates[n] = n / statistics.median(seconds_of(run)[0] for _ in range(3))
        print(f"{n:>5} points side by side {rates[n]:9.2f} points/s {rates[n] / rates[counts[0]]:7.2f} x", flush=True)


def main() -> int:
    """Prints the table; 1 if ``--check`` and something is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="of each run, instead of the workload's")
    parser.add_argument("--processes", type=int, default=4, help="how many are timed")
    parser.add_argument("--curve", type=int, nargs="+", metavar="POINTS")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="exit with 1 when something is below its bar")
    options = parser.parse_args()
    workloads = {n: w._replace(rounds=options.rounds or w.rounds) for n, w in WORKLOADS.items()}
    if options.one:
        one(workloads[options.one[0]], int(options.one[1]))
        return 0
    use_all_cores()
    print(machine())
    if options.curve:
        curve(options.curve)
        return 0
    failed = False
    for name in options.only:
        each = process_seconds(name, options.processes, workloads[name].rounds)
        row = against_calls(workloads[name], options.repeats)
        n_runs, seconds = 64 * N_SEEDS, row["seconds"]
        gain = n_runs * each / min(seconds["sweep"], seconds["sweep, all devices"])
        print(f"{name}: {n_runs} runs of {workloads[name].rounds} rounds; first sweep, compiling: {row['first']:.1f} s")
        print("  " + ", ".join(f"{side} {value:.2f} s" for side, value in seconds.items()))
        print(
            f"  calls / sweep: {row['ratio']:.2f} (bar {BARS['calls']}); all devices: {row['ratio, all devices']:.2f}"
        )
        print(f"  processes / sweep: {gain:.1f} ({each:.2f} s each, {n_runs} extrapolated from {options.processes})")
        print(f"  largest difference between a cell and its single run: {row['difference']:.1e}", flush=True)
        failed |= row["ratio"] < BARS["calls"] or row["difference"] > 1e-5
        failed |= WORKLOADS[name].process_bar and gain < BARS["processes"]
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
