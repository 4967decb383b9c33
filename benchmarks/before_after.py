"""Steady rounds per second and first-call seconds of this checkout and of another one, in turns on one machine.

    python benchmarks/before_after.py ../older [--only mlp-10 cnn-10] [--repeats 7]

Each checkout runs `peers/fljax_peer.py`'s rounds of a workload in a process of its own, with this Python; both do the
same number of rounds, one after the other, and the median of the repeats counts. "first" is a first call: tracing,
compiling and the rounds, with no compilation cache.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from timing import CHECKOUT, count, python_path

ROUNDS = {"logreg-10": 40, "mlp-10": 20, "ragged-mlp": 20, "cnn-10": 4}
CHILD = """
import sys, time
from peers import work
from peers.fljax_peer import Rounds
try:
    from fljax.devices.mesh import use_all_cores
except ImportError:  # an older checkout
    from fljax.run.mesh import use_all_cores
use_all_cores()
name, n = sys.argv[1], int(sys.argv[2])
rounds = Rounds(work.WORKLOADS[name])
for line in sys.stdin:
    began = time.perf_counter()
    rounds.run(n)
    print(time.perf_counter() - began, flush=True)
"""


class Side:
    """A checkout at work on one workload."""

    def __init__(self, checkout: Path, name: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        command = [sys.executable, "-c", CHILD, name, str(ROUNDS[name])]
        self.process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment | {"PYTHONPATH": python_path(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self) -> float:
        """Seconds of one call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Waits for the process."""
        self.process.communicate()


def main() -> None:
    """Prints a row a workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--only", nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--repeats", type=count, default=7)
    options = parser.parse_args()
    checkouts = options.before.resolve(), CHECKOUT
    print(f"{'workload':<12}{'before/s':>10}{'after/s':>10}{'ratio':>8}{'first before':>14}{'first after':>13}")
    for name in options.only:
        sides = [Side(checkout, name) for checkout in checkouts]
        first = [side.seconds() for side in sides]
        turns = [[side.seconds() for side in sides] for _ in range(options.repeats)]
        before, after = (ROUNDS[name] / statistics.median(side_seconds) for side_seconds in zip(*turns, strict=True))
        ratio = statistics.median(a / b for a, b in turns)
        print(f"{name:<12}{before:10.1f}{after:10.1f}{ratio:8.2f}{first[0]:13.1f}s{first[1]:12.1f}s", flush=True)
        for side in sides:
            side.end()


if __name__ == "__main__":
    main()
