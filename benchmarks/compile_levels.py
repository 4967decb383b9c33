"""How well `--compile auto` chooses: seconds of compiling and of running at every level, beside the forecast's.

    python benchmarks/compile_levels.py [--only digits size images] [--repeats 1]

Each job runs as a command of its own at "fast", "medium" and "full", with an empty cache, on one device. A line has the
measured seconds (compile + run), the forecast's over the measured, and what "auto" takes over the best level's for a
single run. The constants of `fljax.run.programs` are from an earlier run of most of these jobs, by least squares of the
logarithms.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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


def main() -> None:
    asked = parser(__doc__, tuple(JOBS), repeats=1).parse_args()
    print(machine())
    print(f"{'measured':>30s}{'forecast / measured':>39s}{'auto / best':>17s}")
    losses = [line(job, asked.repeats) for name in asked.only for job in JOBS[name]]
    usual, worst = statistics.median(losses), max(losses)
    print(f"auto takes {usual:.2f} times the best level's seconds (median), at worst {worst:.2f}")


def line(job: str, repeats: int) -> float:
    """Shows one job; what "auto" takes over the best level."""
    n_rounds = int(job.partition("--rounds ")[2].split()[0])
    cost = measured(job, "auto").cost
    if cost is None:
        sys.exit(f"{job}: no forecast was kept")
    seconds, parts = {}, []
    for level in LEVELS:
        took = [measured(job, level) for _ in range(repeats)]
        compiling, running = (statistics.median(values) for values in list(zip(*took, strict=True))[:2])
        seconds[level] = compiling + running
        foreseen = seconds_of(level, cost)
        ratio = foreseen[0] / compiling, n_rounds * foreseen[1] / max(running, 0.01)
        parts.append((f"{level} {compiling:.2f} + {running:.2f}", f"{ratio[0]:.2f} {ratio[1]:.2f}"))
    chosen = level_for(cost, n_rounds)
    loss = seconds[chosen] / min(seconds.values())
    print(
        f"{job}\n  {' | '.join(a for a, _ in parts)} | {' | '.join(b for _, b in parts)} | {chosen} {loss:.2f}",
        flush=True,
    )
    return loss


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
