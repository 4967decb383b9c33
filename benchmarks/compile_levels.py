"""How well `--compile auto` chooses: seconds of compiling and of running at every level, beside the forecast's.

    python benchmarks/compile_levels.py [--only digits size images] [--repeats 1] [--fit]

Each job runs as a command of its own at "fast", "medium" and "full", with an empty cache, on one device. A line has the
measured seconds (compile + run), the forecast's over the measured, and what "auto" takes over the best level's for a
single run. ``--fit`` ends with the constants that these measurements give to `fljax.devices.programs`: least squares of
the logarithm of forecast over measured.
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

from fljax.devices.program_cost import Cost
from fljax.devices.programs import COST, LEVELS, Level, level_for, seconds_of
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
    """Seconds and cost of one command."""

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
    command_line = parser(__doc__, tuple(JOBS), repeats=1, bars=False)
    command_line.add_argument("--fit", action="store_true", help="print the constants that the measurements give")
    options = command_line.parse_args()
    print(machine())
    print(f"{'measured':>30s}{'forecast / measured':>39s}{'auto / best':>17s}")
    jobs = []
    for name in options.only:
        for job in JOBS[name]:
            jobs.append(timed(job, options.repeats))
            print(f"{job}\n  {line(jobs[-1])}", flush=True)
    losses = [job.loss for job in jobs]
    typical, worst = statistics.median(losses), max(losses)
    print(f"auto takes {typical:.2f} times the best level's seconds (median), at worst {worst:.2f}")
    if options.fit:
        show_fit(jobs)


def timed(job: str, repeats: int) -> Timed:
    """Runs a job at every level."""
    cost = measured(job, "auto").cost
    if cost is None:
        sys.exit(f"{job}: no forecast was kept")
    runs_of_level = {level: [measured(job, level) for _ in range(repeats)] for level in LEVELS}
    return Timed(
        cost,
        int(job.partition("--rounds ")[2].split()[0]),
        {level: statistics.median(run.compiling for run in runs) for level, runs in runs_of_level.items()},
        {level: max(statistics.median(run.running for run in runs), 0.01) for level, runs in runs_of_level.items()},
    )


def line(job: Timed) -> str:
    """Measured seconds by level, the forecast's over them, and what "auto" chooses."""
    measured_texts, ratios = [], []
    for level in LEVELS:
        compiling, running = job.compiling[level], job.running[level]
        forecast = seconds_of(level, job.cost)
        measured_texts.append(f"{level} {compiling:.2f} + {running:.2f}")
        ratios.append(f"{forecast[0] / compiling:.2f} {job.n_rounds * forecast[1] / running:.2f}")
    return f"{' | '.join([*measured_texts, *ratios])} | {level_for(job.cost, job.n_rounds)} {job.loss:.2f}"


def show_fit(jobs: Sequence[Timed]) -> None:
    """Prints the constants of `seconds_of` that come nearest to the measurements."""
    for level in LEVELS:
        log_seconds = [math.log(job.compiling[level] / job.cost.equations) for job in jobs]
        print(f"seconds of an equation, {level}: {math.exp(statistics.mean(log_seconds)):.2g}")
    names = [*(f"an element, {level}" for level in LEVELS), "a kernel", "a flop"]
    use_rows = [
        [
            job.n_rounds * part
            for part in (
                *(job.cost.elements * (job_level == level) for job_level in LEVELS),
                job.cost.executed,
                job.cost.flops,
            )
        ]
        for job in jobs
        for level in LEVELS
    ]
    uses, log_running = np.array(use_rows), np.log([job.running[level] for job in jobs for level in LEVELS])
    start = np.full(len(names), np.median(log_running - np.log(uses.sum(axis=1))))
    fit = least_squares(lambda logs: np.log(uses @ np.exp(logs)) - log_running, start)
    for name, value in zip(names, np.exp(fit.x), strict=True):
        print(f"seconds of {name}: {value:.2g}")


def measured(job: str, level: Level | str) -> Measured:
    """One run of the command, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled",
        }
        command = [sys.executable, "-m", "fljax", "run", *job.split(), "--compile", level, "--folder", f"{folder}/run"]
        finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if finished.returncode:
            sys.exit(f"{' '.join(command)}: {finished.stderr}")
        name = job.split()[1]
        row = next(line.split() for line in reversed(finished.stdout.splitlines()) if line.startswith(f"{name} "))
        cost_file = next(Path(folder, "compiled").rglob(f"*-{COST}"), None)
        cost = None if cost_file is None else Cost(*json.loads(read_sealed(cost_file)))
    return Measured(float(row[-1]), float(row[-2]), cost)


if __name__ == "__main__":
    main()
