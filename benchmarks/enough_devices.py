"""Whether a job runs on as many of the CPU's devices as it is worth: whole commands on one and on all, cold.

    python benchmarks/enough_devices.py [--only fedavg fedtsdp dcpfl fedcps] [--repeats 3] [--check]

Each line is a method with a number of rounds, on the digits: wall and processor seconds from process start to end with
an empty cache on one device and on all, what all take of one's wall seconds, and which the forecast takes. ``--check``
fails where the forecast's choice takes more than a fifth longer than the other.
"""

import os
import statistics
import sys
import time
from typing import Any

from first_round import cache, processor
from timing import parser

from fljax.devices.mesh import use_all_cores
from fljax.jobs.assemble import devices_of
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_federation, make_model

ROUNDS = (80, 400, 2000)
LOSS = 1.2


def main() -> None:
    options = parser(__doc__, ("fedavg", "fedtsdp", "dcpfl", "fedcps"), repeats=3).parse_args()
    use_all_cores()
    cores, missed = len(os.sched_getaffinity(0)), []
    print(f"{'method':<10}{'rounds':>7}{'one':>8}{'all':>8}{'processor':>11}{'all':>8}{'all/one':>9}  chosen")
    for method in options.only:
        for n_rounds in ROUNDS:
            command = ["run", "--algorithm", method, "--rounds", str(n_rounds)]
            pairs = [[seconds(command, n) for n in (1, cores)] for _ in range(options.repeats)]
            on_one, on_all = (
                list(map(statistics.median, zip(*measured, strict=True))) for measured in zip(*pairs, strict=True)
            )
            ratio = statistics.median(b[0] / a[0] for a, b in pairs)
            chosen = choice(command[1:])
            line = f"{on_one[0]:>8.2f}{on_all[0]:>8.2f}{on_one[1]:>11.2f}{on_all[1]:>8.2f}{ratio:>9.2f}  {chosen}"
            print(f"{method:<10}{n_rounds:>7}{line}", flush=True)
            loss = 1 / ratio if chosen == "one" else ratio
            missed += [f"{method}, {n_rounds} rounds: {chosen} takes {loss:.2f} of the other"] if loss > LOSS else []
    print("\n".join(missed))
    if options.check and missed:
        sys.exit(1)


def seconds(command: list[str], n_devices: int) -> tuple[float, float]:
    """(wall, processor) seconds of a command with an empty cache."""
    with cache() as environment:
        began = time.perf_counter()
        work, _ = processor(command, environment | {"JAX_NUM_CPU_DEVICES": str(n_devices)})
        return time.perf_counter() - began, work


def choice(arguments: list[str]) -> str:
    """Which devices `fljax run` takes by itself."""
    job = read_job(arguments)
    federation: Any = make_federation(job)
    return "all" if devices_of(job, make_model(job, federation), federation) is None else "one"


if __name__ == "__main__":
    main()
