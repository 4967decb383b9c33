"""Steady rounds per second of FedAvg against a plain PyTorch loop over the same clients, alternated in one process.

    python benchmarks/rounds_per_second.py --against torch [--check] [--only mlp cnn]

100 clients, 10 a round, 100 examples each (ragged: log-normal sizes 20 to 400), 28x28x1 images in 10 classes, batch 20,
one local epoch, SGD 0.05. Compilation is timed apart; every figure is the median of `--repeats` alternations. PyTorch
runs with one and with all threads, and the faster of the two counts. Both sides get the same examples, and their
accuracies after the same number of rounds are printed: they must agree up to the order of batches. "useful" is the
share of the executed local steps that clients need, over all clients at once: the rest is waiting for longer ones.
"""

import argparse
import os
import statistics
import sys
import time
from functools import partial
from typing import NamedTuple

from peers import work
from peers.fljax_peer import Rounds
from peers.torch_loop import Loop
from timing import alternate, count, fastest, machine, ratio, with_threads

from fljax.devices.mesh import use_all_cores


class Row(NamedTuple):
    """One row of the table."""

    workload: work.Workload
    rounds: int  # a timed sample
    bar: float  # least ratio of fljax's rate to PyTorch's


WORKLOADS = {
    "logreg": Row(work.WORKLOADS["logreg-10"], 40, 6.0),
    "mlp": Row(work.WORKLOADS["mlp-10"], 20, 2.5),
    "ragged-mlp": Row(work.WORKLOADS["ragged-mlp"], 20, 2.0),
    "cnn": Row(work.WORKLOADS["cnn-10"], 4, 0.8),
}


def measure(name: str, row: Row, repeats: int) -> dict:
    """One row: rates of both sides, their ratio, first-call time and accuracies."""
    ours, theirs = Rounds(row.workload), Loop(row.workload, *work.data(row.workload))
    began = time.perf_counter()
    ours.run(row.rounds)
    first = time.perf_counter() - began
    n_cores = len(os.sched_getaffinity(0))
    loops = {f"torch {n}": with_threads(n, partial(theirs.run, row.rounds)) for n in {1, n_cores}}
    alternate(loops, 1)  # PyTorch's first call imports and starts threads
    seconds = alternate({"fljax": partial(ours.run, row.rounds)} | loops, repeats)
    best = fastest(seconds, *loops)
    # As many rounds as the other side has done, which took each turn with every number of threads.
    ours.run(row.rounds * (repeats + 1) * (len(loops) - 1))
    return {
        "workload": name,
        "fljax": row.rounds / statistics.median(seconds["fljax"]),
        "torch": row.rounds / statistics.median(best),
        "ratio": ratio(best, seconds["fljax"]),
        "bar": row.bar,
        "useful": ours.useful(),
        "first": first,
        "accuracy": (ours.accuracy(), theirs.accuracy()),
    }


def main() -> int:
    """Prints the table; 1 if ``--check`` and a ratio is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["torch"], default="torch")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=count, default=7)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a ratio is below its bar")
    options = parser.parse_args()
    use_all_cores()
    print(machine())
    print(
        f"{'workload':<12}{'fljax/s':>9}{'torch/s':>9}{'ratio':>7}{'bar':>6}{'useful':>8}{'first call':>12}"
        "  accuracy fljax, torch"
    )
    below = []
    for name in options.only:
        row = measure(name, WORKLOADS[name], options.repeats)
        below += [name] if row["ratio"] < row["bar"] else []
        print(
            f"{row['workload']:<12}{row['fljax']:9.1f}{row['torch']:9.1f}{row['ratio']:7.2f}{row['bar']:6.1f}{row['useful']:8.2f}"
            f"{row['first']:11.1f}s  {row['accuracy'][0]:.3f}, {row['accuracy'][1]:.3f}",
            flush=True,
        )
    if below:
        print("below the bar:", ", ".join(below))
    return 1 if options.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
