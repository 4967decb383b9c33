"""fljax beside other systems: the same work, in alternation, in one table.

    python benchmarks/peers/run.py [--check] [--only mlp-10 cnn-10] [--peers torch fedjax] [--turns 5] [--rounds 20]

Every system is a process of its own in an environment of its own, made in ``benchmarks/peers/.env/`` on the first run;
fljax and naive vmap use the environment that this runs in. One that cannot be made is left out, which is said. All are
started, then take turns: so many rounds each, all others waiting, ``--turns`` times. Rates are medians over turns,
ratios medians over the pairs of turns. "first" is the first round with whatever is compiled or started in it, "start"
what comes before (imports, data, model), "memory" the peak of all processes of a system, "accuracy" that after the
last round: it must agree. PyTorch systems take each turn half on one and half on all threads, and the faster counts.
"whole" is another comparison, see `peers.whole`.

Results go to ``benchmarks/results/peers.csv``, one row for a workload, a system and a machine, the latest.
"""

import argparse
import signal
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from peers import table, whole
from peers.environments import python_of
from peers.process import Failed, System
from peers.work import EVERY, FRAMEWORKS, WORKLOADS, Bar, Workload
from timing import count, ratio

Seconds = dict[str, list[float]]
"""Of every turn of each system."""


def started(name: str, workload: Workload, systems: list[str], turns: list[int]) -> dict[str, System]:
    """The systems that could be started, ready for their first turn; says which could not."""
    running = {}
    for system in systems:
        try:
            running[system] = System(system, python_of(system), [name, *map(str, turns)])
        except Failed as failure:
            print(f"{name}: {system} is left out: {failure}", flush=True)
    return running


def alternated(name: str, running: dict[str, System], n_turns: int) -> Seconds:
    """Turn by turn; a system that fails on the way is taken out, which is said."""
    seconds: Seconds = {system: [] for system in running}
    for _ in range(n_turns):
        for system in list(running):
            try:
                seconds[system].append(running[system].turn())
            except Failed as failure:
                print(f"{name}: {system} failed: {failure}", flush=True)
                running.pop(system).end()
    return {system: seconds[system] for system in running}


def last_words(name: str, running: dict[str, System]) -> dict[str, dict[str, Any]]:
    """What each says at its end; a system that fails there is taken out too."""
    answers = {}
    for system in list(running):
        try:
            answers[system] = running[system].finished()
        except Failed as failure:
            print(f"{name}: {system} failed: {failure}", flush=True)
            running.pop(system).end()
    return answers


def measure(name: str, workload: Workload, systems: list[str], n_turns: int) -> tuple[list[table.Row], list[str]]:
    """(a row for each system, the bars missed)."""
    running = started(name, workload, systems, [1, *[workload.rounds] * n_turns])
    try:
        seconds = alternated(name, running, 1 + n_turns)
        answers = last_words(name, running)
    finally:
        for process in running.values():
            process.end()
    steady = {system: seconds[system][1:] for system in running}
    rows = []
    for system, process in running.items():
        rate = workload.rounds / median(steady[system])
        rows.append(
            table.Row(
                workload=name,
                system=system,
                rounds_per_s=rate,
                updates_per_s=rate * workload.cohort,
                first_s=seconds[system][0],
                start_s=process.start_s,
                memory_mb=process.memory_mb,
                accuracy=answers[system]["accuracy"],
                ratio=ratio(steady[system], steady["fljax"]) if "fljax" in steady else float("nan"),
                turns=f"{n_turns} x {workload.rounds}",
                version=answers[system]["version"],
            )
        )
    return rows, missed(name, workload, rows, steady)


def missed(name: str, workload: Workload, rows: list[table.Row], seconds: Seconds) -> list[str]:
    """What fell short, in words."""
    if "fljax" not in seconds:
        return [f"{name}: nothing was compared, fljax did not run to the end"]
    messages = []
    for bar in workload.bars:
        rivals = [system for system in systems_of(bar) if system in seconds]
        if not rivals:
            messages.append(f"{name}: nothing to compare with for {bar.ratio:g} times {bar.against}")
            continue
        fastest = [min(turn) for turn in zip(*(seconds[system] for system in rivals), strict=True)]
        gain = ratio(fastest, seconds["fljax"])
        print(f"{name}: {gain:.2f} times {bar.against} (bar {bar.ratio:g})")
        messages += [f"{name}: {gain:.2f} times {bar.against}, bar {bar.ratio:g}"] if gain < bar.ratio else []
    # A NaN differs too.
    if not np.ptp([row.accuracy for row in rows]) <= workload.tolerance:
        messages.append(f"{name}: accuracies differ by more than {workload.tolerance:g}")
    return messages


def systems_of(bar: Bar) -> tuple[str, ...]:
    """The systems of which the fastest is to be beaten."""
    groups = {"best peer": ("torch", *FRAMEWORKS), "best framework": FRAMEWORKS}
    return groups.get(bar.against, (bar.against,))


def main() -> int:
    """Prints and stores the table; 1 if ``--check`` and a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    all_names = [*WORKLOADS, "whole"]
    default_names = [name for name in all_names if name not in ("pfl-cifar10", "flute-femnist")]
    parser.add_argument(
        "--only", nargs="+", choices=all_names, default=default_names, help="default: all but the public"
    )
    parser.add_argument("--peers", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--turns", type=count, default=5)
    parser.add_argument("--rounds", type=count, help="of a turn, an even number; default: the workload's own")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the systems too
    print(table.machine())
    below = []
    for name in options.only:
        if name == "whole":
            rows, messages = whole.measure(options.turns)
        else:
            workload = WORKLOADS[name]
            workload = workload._replace(rounds=options.rounds or workload.rounds)
            systems = [system for system in workload.systems if system in options.peers]
            rows, messages = measure(name, workload, systems, options.turns)
        table.show(rows)
        table.store(rows)
        below += messages
    if below:
        print("missed:", *below, sep="\n  ")
    return 1 if options.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
