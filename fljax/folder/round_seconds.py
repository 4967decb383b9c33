"""The time that a run's rounds took, in a separate file, because checkpoints must not depend on the clock."""

import json
import math
from pathlib import Path
from typing import NamedTuple

from fljax.files import write_atomically
from fljax.sealed import checksum_of

FILE = "spent.json"
_N_ENTRIES = 3
"""Number of entries: for the next checkpoint, and for the two before it."""


class Spent(NamedTuple):
    """The time of a run's rounds, over all calls that made them; NaN if the folder does not record it."""

    seconds: float = 0.0
    compile_seconds: float = 0.0  # of tracing and compiling before them, or of reading kept programs


def keep(folder: Path, round: int, spent: Spent) -> None:
    """Writes the time of the rounds before ``round``, besides those of the checkpoints before.

    Raises:
        OSError: it cannot be written; the file is unchanged.
    """
    earlier = [entry for entry in _entries(folder) if entry[0] < round]
    entries = [*earlier, (round, *spent)][-_N_ENTRIES:]
    content = json.dumps({"rounds": entries, "checksum": checksum_of(entries)})
    write_atomically(folder / FILE, content.encode(), durable=False)


def spent_of(folder: Path, round: int) -> Spent:
    """The seconds of the rounds before ``round``, from the folder; NaN if its file lacks them or is damaged."""
    entry = next((entry for entry in _entries(folder) if entry[0] == round), (round, math.nan, math.nan))
    return Spent(*entry[1:])


def _entries(folder: Path) -> list[tuple[int, float, float]]:
    try:
        content = json.loads((folder / FILE).read_bytes())
        if content["checksum"] != checksum_of(content["rounds"]):
            return []
        return [(int(round), float(seconds), float(compiling)) for round, seconds, compiling in content["rounds"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
