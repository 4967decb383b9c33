"""How well `--compile auto` chooses: seconds of compiling and of running at every level, beside the forecast's.

    python benchmarks/compile_levels.py [--only digits size images] [--repeats 1] [--fit]

Each job runs as a command of its own at "fast", "medium" and "full", with an empty cache, on one device. A line has the
measured seconds (compile + run), the forecast's over the measured, and what "auto" takes over the best level's for a
single run. ``--fit`` ends with the constants that these measurements give to `fljax.run.programs`: least squares of the
logarithm of forecast over measured.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from timing import machine, parser

from fljax.run.program_cost import Cost
from fljax.run.programs import COST, LEVELS, Level, level_for, seconds_of
from fljax.sealed import read_sealed

DIGITS = "standalone fedavg fedtsdp layercfl dcpfl fedcps fesem ifca scaffold fedala"
IMAGES = "--dataset fashion_mnist --rounds 3 --model mlp"  # a round of 60,000 images
JOBS = {
    "digits": [f"--algorithm {name} --rounds 80" for name in DIGITS.split()],
    "size": [
        "--algorithm fedavg --rounds 20 --model lenet",
        "--algorithm ifca --rounds 10 --model lenet",
        "--algorithm fedavg --rounds 200 --batch-size 100",
        "--algorithm fedavg --rounds 80 --partition.n-clients 60",
    ],
    "images": [f"--algorithm {name} {IMAGES}" for name in ("fedavg", "dcpfl")],
}


class Measured(NamedTuple):
    """Of one command."""

    compiling: float  # seconds
    running: float  # seconds
    cost: Cost | None  # of a round, where the level was left to the forecast


class Timed(NamedTuple):
    """A job at every level."""

    cost: Cost  # of a round
    n_rounds: int
    compiling: Mapping[str, float]  # level -> seconds
    running: Mapping[str, float]  # level -> seconds

    @property
    def loss(self) -> float:
        """What "auto" takes over the best level."""
        seconds = {level: self.compiling[level] + self.running[level] for level in LEVELS}
        return seconds[level_for(self.cost, self.n_rounds)] / min(seconds.values())


def main() -> None:
    asking = parser(__doc__, tuple(JOBS), repeats=1, bars=False)
    asking.add_argument("--fit", action="store_true", help="print the constants that the measurements give")
    asked = asking.parse_args()
    print(machine())
    print(f"{'measured':>30s}{'forecast / measured':>39s}{'auto / best':>17s}")
    jobs = []
    for name in asked.only:
        for job in JOBS[name]:
            jobs.append(timed(job, asked.repeats))
            print(f"{job}\n  {line(jobs[-1])}", flush=True)
    losses = [job.loss for job in jobs]
    usual, worst = statistics.median(losses), max(losses)
    print(f"auto takes {usual:.2f} times the best level's seconds (median), at worst {worst:.2f}")
    if asked.fit:
        show_fit(jobs)


def timed(job: str, repeats: int) -> Timed:
    """Runs a job at every level."""
    cost = measured(job, "auto").cost
    if cost is None:
        sys.exit(f"{job}: no forecast was kept")
    took = {level: [measured(job, level) for _ in range(repeats)] for level in LEVELS}
    return Timed(
        cost,
        int(job.partition("--rounds ")[2].split()[0]),
        {level: statistics.median(one.compiling for one in runs) for level, runs in took.items()},
        {level: max(statistics.median(one.running for one in runs), 0.01) for level, runs in took.items()},
    )


def line(job: Timed) -> str:
    """Measured seconds by level, the forecast's over them, and what "auto" chooses."""
    took, ratios = [], []
    for level in LEVELS:
        compiling, running = job.compiling[level], job.running[level]
        foreseen = seconds_of(level, job.cost)
        took.append(f"{level} {compiling:.2f} + {running:.2f}")
        ratios.append(f"{foreseen[0] / compiling:.2f} {job.n_rounds * foreseen[1] / running:.2f}")
    return f"{' | '.join([*took, *ratios])} | {level_for(job.cost, job.n_rounds)} {job.loss:.2f}"


def show_fit(jobs: Sequence[Timed]) -> None:
    """Prints the constants of `seconds_of` that come nearest to the measurements."""
    for level in LEVELS:
        of_one = [math.log(job.compiling[level] / job.cost.equations) for job in jobs]
        print(f"seconds of an equation, {level}: {math.exp(statistics.mean(of_one)):.2g}")
    names = [*(f"an element, {level}" for level in LEVELS), "a kernel", "a flop"]
    passed = [
        [
            job.n_rounds * part
            for part in (*(job.cost.elements * (own == level) for own in LEVELS), job.cost.executed, job.cost.flops)
        ]
        for job in jobs
        for level in LEVELS
    ]
    uses, took = np.array(passed), np.log([job.running[level] for job in jobs for level in LEVELS])
    begin = np.full(len(names), np.median(took - np.log(uses.sum(axis=1))))
    found = least_squares(lambda logs: np.log(uses @ np.exp(logs)) - took, begin)
    for name, value in zip(names, np.exp(found.x), strict=True):
        print(f"seconds of {name}: {value:.2g}")


def measured(job: str, level: Level | str) -> Measured:
    """One run of the command, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled",
        }
        command = [sys.executable, "-m", "fljax", "run", *job.split(), "--compile", level, "--folder", f"{folder}/run"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        name = job.split()[1]
        row = next(line.split() for line in reversed(done.stdout.splitlines()) if line.startswith(f"{name} "))
        kept = next(Path(folder, "compiled").rglob(f"*-{COST}"), None)
        cost = None if kept is None else Cost(*json.loads(read_sealed(kept)))
    return Measured(float(row[-1]), float(row[-2]), cost)


if __name__ == "__main__":
    main()
