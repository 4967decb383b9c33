"""Why a published number is missed or a claim fails, with what shows it: ``causes.csv``, read by pattern."""

import csv
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("causes.csv")
"""Columns: kind ("row", "small" for a row that is run small only, or "claim"), pattern, cause, shown_by. A pattern is
the cell's fields joined by "; ", with ``*`` for anything."""


@cache
def all_causes(file: Path = FILE) -> tuple[tuple[str, str, str], ...]:
    """(kind, pattern, text) of every cause."""
    with file.open(newline="") as lines:
        return tuple(
            (row["kind"], row["pattern"], f"{row['cause']} ({row['shown_by']})") for row in csv.DictReader(lines)
        )


def cause(kind: str, fields: Iterable[str]) -> str:
    """The causes whose pattern fits the fields, joined; "" for none."""
    key = "; ".join(fields)
    return "; ".join(
        text for cause_kind, pattern, text in all_causes() if cause_kind == kind and fnmatchcase(key, pattern)
    )
