"""The state of every published number: reproduced, off, run small, printable, or out of reach.

    python experiments/reproduction.py                  # how many rows are in which state
    python experiments/reproduction.py --rows           # and every row
    python experiments/reproduction.py --write          # results/reproduction.csv and .md as well

Compared are published.csv and the lines that experiments write into results/. States:

    A  run at the paper's size to the end, within 1.5 points (accuracy; a lead at least half of it) or 10 % (rest)
    T  equal by construction: the number was put in, or follows from what was
    B  run at small scale only, to its end; the note names the images if they are others than the paper's
    C  run at the paper's size, and off; or not to its end, however near it is
    D  an experiment prints it with ``--scale paper``, and no line of results/ has it
    E  data and method are there, nothing sets a number beside it
    F  the data cannot be had here, or the paper does not say what was run
"""

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import marked
import numpy as np
from causes import cause
from derived import Cell, rule
from outcomes import BY_CONSTRUCTION, HERE, RESULTS, file_of, is_complete, is_whole, read
from reach import HOURS, SEEDS, is_fixed, printer, reach

Lines = Callable[[Path], list[dict[str, str]]]
"""`read`, or one that reads each file once."""

STATES = "ATBCDEF"
PUBLISHED = HERE / "published.csv"
KINDS: tuple[str, ...] = ("complete", "partial", "smoke")
"""Of lines: at the paper's size to the end, at its size, small to the end."""

CAUSED = {"row": "C", "small": "B"}
"""Kind of cause -> state of the rows that it is of."""

POINTS, SHARE = 1.5, 0.1
"""Tolerances: accuracy and leads in points, everything else relative."""


class Row(NamedTuple):
    """A published number and where it stands."""

    cell: Cell
    value: str  # as published
    ours: float | None
    state: str
    seeds: int
    note: str


class CellResult(NamedTuple):
    """What the lines of a cell say."""

    ours: float | None
    kind: str  # of `KINDS`, or ""
    seeds: int
    note: str


def published_rows(file: Path = PUBLISHED) -> list[tuple[Cell, str]]:
    """Every published cell and its value."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        ((row["paper"], row["table"], row["dataset"], row["setting"], row["method"], row["metric"]), row["value"])
        for row in rows
    ]


def cell_result(cell: Cell, results: Path, kinds: Sequence[str] = KINDS, lines_of: Lines = read) -> CellResult:
    """The mean over seeds of a cell's lines, of the first kind that there is."""
    paper, table, dataset, setting, method, metric = cell
    columns = {"setting": setting, "method": method, "metric": metric}
    lines = [
        line
        for small in (False, True)
        for line in lines_of(file_of(results, paper, table, dataset, small))
        if columns.items() <= line.items()
    ]
    complete = [line for line in lines if is_complete(line["settings"])]
    partial = [line for line in lines if line not in complete and "scale=paper" in line["settings"]]
    smoke = [line for line in lines if "scale=smoke" in line["settings"] and is_whole(line["settings"])]
    lines_of_kind = dict(zip(KINDS, (complete, partial, smoke), strict=True))
    for kind in kinds:
        chosen = lines_of_kind[kind]
        if chosen:
            notes = [BY_CONSTRUCTION] if all(BY_CONSTRUCTION in line["settings"] for line in chosen) else []
            notes += [f"of {name}" for name in _other_data(chosen, dataset)]
            notes += [f"stopped after {max(int(line['round']) for line in chosen)} rounds"] if kind == "partial" else []
            ours = float(np.mean([float(line["value"]) for line in chosen]))
            return CellResult(ours, kind, len({line["seed"] for line in chosen}), "; ".join(notes))
    return CellResult(None, "", 0, "")


def follows(cell: Cell, results: Path, lines_of: Lines = read) -> CellResult:
    """`cell_result`, or what follows by the cell's rule from others of one scale; its kind is the least of theirs."""
    direct, derivation = cell_result(cell, results, KINDS, lines_of), rule(cell)
    if direct.kind or derivation is None:
        return direct
    for kinds in (KINDS[:-1], KINDS[-1:]):  # a small run and one of the paper's size do not make a difference
        parts = [cell_result(needed, results, kinds, lines_of) for needed in derivation.cells]
        values = [part.ours for part in parts if part.ours is not None]
        if len(values) == len(parts):
            worst = max(parts, key=lambda part: KINDS.index(part.kind))
            note = "; ".join(filter(None, ("from other cells", worst.note)))
            return CellResult(derivation.number(values), worst.kind, min(part.seeds for part in parts), note)
    return direct


def state(cell: Cell, value: str, result: CellResult) -> str:
    """A to F; `STATES`."""
    if is_fixed(cell) or BY_CONSTRUCTION in result.note:
        return "T"
    if result.kind == "complete" and result.ours is not None:
        return "A" if agrees(cell[-1], value, result.ours) else "C"
    if result.kind:
        return {"partial": "C", "smoke": "B"}[result.kind]
    return reach(cell)


def agrees(metric: str, value: str, ours: float) -> bool:
    """Whether our number is within the tolerance of the published one, which may be a range such as "5-6".

    A lead or a loss of accuracy must be at least half of the published one too: 0.1 points do not show a lead of 1. Of
    an upper bound less is as good.
    """
    (low, high), words = _bounds(value), metric.split("_")
    if metric == "clustering_iterations_to_converge_max":
        return ours <= high + SHARE * abs(high)
    if "acc" not in words or words[-1] == "pm":  # the deviation over seeds is itself a few tenths of a point
        return low - SHARE * abs(low) <= ours <= high + SHARE * abs(high)
    if {"gain", "drop"} & set(words) and ours * np.sign(low) < abs(low) / 2:
        return False
    points = POINTS / 100 if metric == "final_acc" else POINTS
    return low - points - 1e-9 <= ours <= high + points + 1e-9


def all_rows(results: Path = RESULTS) -> list[Row]:
    """Every published number with its state."""
    rows, lines_of = [], cache(read)
    for cell, value in published_rows():
        result = follows(cell, results, lines_of)
        row_state = state(cell, value, result)
        notes = [
            result.note,
            printer(cell) if row_state == "D" else "",
            *(cause(kind, cell) for kind, caused_state in CAUSED.items() if row_state == caused_state),
        ]
        note = "; ".join(filter(None, notes))
        rows.append(Row(cell, value, result.ours, row_state, result.seeds, note))
    return rows


def summary(rows: Iterable[Row], depth: int = 2) -> str:
    """A table in Markdown: a line a paper and table (``depth`` 1: a paper), a column a state."""
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.cell[:depth], Counter())[row.state] += 1
    total, names = sum(counts.values(), Counter()), ("paper", "table")[:depth]
    lines: list[str] = [" | ".join(("| " + names[0], *names[1:], *STATES, "rows |"))]
    lines.append("|".join(("", *["---"] * depth, *["--:"] * (len(STATES) + 1), "")))
    for cell, row_counts in [*counts.items(), (("all", "")[:depth], total)]:
        numbers = [str(row_counts[letter] or "") for letter in STATES]
        lines.append(" | ".join(("| " + cell[0], *cell[1:], *numbers, f"{sum(row_counts.values())} |")))
    return "\n".join(lines)


def commands(rows: Iterable[Row]) -> str:
    """What prints the rows in state D, and how long that takes."""
    counts = Counter(command for row in rows if row.state == "D" for command in row.note.split(", "))
    lines = ["| command | rows | hours |", "|---|--:|--:|"]
    for command in sorted(counts, key=lambda name: HOURS[name]):
        lines.append(
            f"| python experiments/{command} --scale paper --seeds {SEEDS.get(command, 1)} | {counts[command]} "
            f"| {SEEDS.get(command, 1) * HOURS[command]:g} |"
        )
    return "\n".join(lines)


def write(rows: Sequence[Row], folder: Path) -> None:
    """``reproduction.csv``, a line a row; ``reproduction.md``, the summary; ``commands.md``, what is left to run."""
    folder.mkdir(parents=True, exist_ok=True)
    header = ("paper", "table", "dataset", "setting", "method", "metric", "published", "ours", "seeds", "state", "note")
    with (folder / "reproduction.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows((*row.cell, row.value, _short(row.ours), row.seeds or "", row.state, row.note) for row in rows)
    (folder / "reproduction.md").write_text(summary(rows) + "\n")
    (folder / "commands.md").write_text(commands(rows) + "\n")


def _other_data(lines: Iterable[dict[str, str]], dataset: str) -> list[str]:
    """The data that small runs say they are of, where it is not the paper's."""
    fields = (
        part.partition("=")
        for line in lines
        if "scale=smoke" in line["settings"]
        for part in line["settings"].split("; ")
    )
    return sorted({value for name, _, value in fields if name == "data" and value != dataset})


def _short(ours: float | None) -> str:
    return "" if ours is None else f"{ours:.5g}"


def _bounds(value: str) -> tuple[float, float]:
    low, dash, high = value[1:].partition("-")  # a leading minus is a sign
    return (float(value[:1] + low), float(high)) if dash else (float(value), float(value))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--commands", action="store_true", help="print what prints the rows in state D, with hours")
    parser.add_argument("--write", action="store_true", help="write reproduction.csv and .md among the results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the experiments' lines")
    arguments = parser.parse_args()
    rows = all_rows(arguments.results)
    if arguments.rows:
        for row in rows:
            print(
                row.state,
                "; ".join(row.cell),
                f"published {row.value}",
                f"ours {_short(row.ours)}",
                row.note,
                sep=" | ",
            )
    print(commands(rows) if arguments.commands else summary(rows))
    if arguments.write:
        write(rows, arguments.results)
    if arguments.write and arguments.results == RESULTS:
        marked.show("experiments/reproduction.py", summary(rows, depth=1))


if __name__ == "__main__":
    main()
