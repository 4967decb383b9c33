"""The table of results: a row for a workload, a system and a machine."""

import csv
import datetime
import os
import platform
from pathlib import Path
from typing import NamedTuple

from peers.work import EVERY, WORKLOADS

FILE = Path(__file__).parents[1] / "results" / "peers.csv"


class Row(NamedTuple):
    """What one system reached."""

    workload: str
    system: str
    rounds_per_s: float
    updates_per_s: float  # of clients
    first_s: float
    start_s: float
    memory_mb: float
    accuracy: float
    ratio: float  # fljax's rate over this one's
    turns: str
    version: str


def machine() -> str:
    """What the rows were measured on."""
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def show(rows: list[Row]) -> None:
    """Prints rows of one workload."""
    columns = ("rounds/s", "updates/s", "first s", "start s", "memory MB", "accuracy", "fljax is")
    print(f"{'workload':<15}{'system':<12}" + "".join(f"{column:>11}" for column in columns) + "  turns")
    for row in rows:
        print(
            f"{row.workload:<15}{row.system:<12}{row.rounds_per_s:11.3f}{row.updates_per_s:11.1f}{row.first_s:11.2f}"
            f"{row.start_s:11.1f}{row.memory_mb:11.0f}{row.accuracy:11.3f}{row.ratio:9.2f} x  {row.turns}",
            flush=True,
        )


def store(rows: list[Row]) -> None:
    """Puts rows into the file in place of older ones of the same workload, system and machine."""
    this_machine, today = machine(), datetime.date.today().isoformat()
    new = {(row.workload, row.system, this_machine): [*map(_written, row), this_machine, today] for row in rows}
    header = [*Row._fields, "machine", "date"]
    old: dict[tuple[str, ...], list[str]] = {}
    if FILE.exists():
        with FILE.open(newline="") as file:
            old = {(line[0], line[1], line[-2]): line for line in list(csv.reader(file))[1:]}
    lines = sorted((old | new).values(), key=_place)
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


def _place(line: list[str]) -> tuple[str, int, int]:
    """Machines apart, then the workloads' order, then the systems'."""
    workloads = [*WORKLOADS, "whole"]
    return line[-2], workloads.index(line[0]), EVERY.index(line[1])


def _written(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value
