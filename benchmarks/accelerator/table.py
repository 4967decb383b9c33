"""Lines of the table: what was measured, what was not, and the file that keeps them."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FIELDS: Sequence[str] = ("what", "value", "unit", "bar", "matrix_percent", "copy_percent", "note", "machine", "date")
LATE = "no time left"


def row(what: str, value: float, unit: str, note: str = "", bar: float | None = None, **shares: float) -> Row:
    """A line of the table; a negative bar is a most."""
    return {"what": what, "value": value, "unit": unit, "note": note, "bar": bar, **shares}


def not_measured(what: str, unit: str, reason: str, bar: float | None = None) -> Row:
    """A line that says so."""
    return row(what, math.nan, unit, f"not measured: {reason}", bar)


def is_missed(line: Row) -> bool:
    """Whether a line was not measured or is on the wrong side of its bar."""
    bar, value = line["bar"], line["value"]
    if math.isnan(value):
        return True
    return bar is not None and (value < bar if bar > 0 else value > -bar)


def show(line: Row) -> None:
    """Prints one line."""
    bar = "" if line["bar"] is None else f" (bar {abs(line['bar']):g}{', missed' if is_missed(line) else ''})"
    limits = [name for name in ("matrix", "copy") if f"{name}_percent" in line]
    shares = ", ".join(f"{line[f'{name}_percent']:.1f} % of the {name} rate" for name in limits)
    print(f"{line['what']:<58}{line['value']:>10.4g} {line['unit']:<9}{shares}{line['note']}{bar}", flush=True)


def store(rows: dict[str, Row], path: Path) -> None:
    """The table as it stands, put in the place of the file at once."""
    aside = path.with_suffix(".new")
    with aside.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    aside.replace(path)


def stored(path: Path | None) -> dict[str, Row]:
    """The rows of earlier runs by name."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="") as file:
        return {line["what"]: line for line in csv.DictReader(file)}
