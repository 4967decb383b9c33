"""`fljax predict`: what trained models say of each client's examples, as a table."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from fljax.cli.folders import folders_and_words
from fljax.cli.run import start
from fljax.files import write_atomically

USAGE = """usage: fljax predict FOLDER [--method NAME] [--split test|val|train] [--out FILE]

Writes what the trained models of a finished run say of each client's examples: the label, the predicted one and the
probability of each class. FOLDER is a results folder of fljax run, or a seed of fljax compare; its data is read again.

  --method  one of the run's; all by default
  --split   whose examples; those that clients are tested on by default
  --out     the table, a CSV; FOLDER/predictions_test.csv by default, or of another split
"""


def main(arguments: Sequence[str]) -> None:
    """Writes the table that ``arguments`` ask for.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return
    folders, given = folders_and_words("predict", ("method", "split", "out"), arguments)
    if len(folders) > 1:
        raise ValueError(f"{folders[1]}: fljax predict reads one folder at a time")
    split = given.get("split", "test")
    out = Path(given.get("out", folders[0] / f"predictions_{split}.csv"))
    if out.is_dir() or out.suffix != ".csv":
        raise ValueError(f"--out {out}: give the name of a file, such as predictions.csv")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    start()
    from fljax.jobs.predicted import predicted

    columns = predicted(folders[0], cast(Any, split), [given["method"]] if "method" in given else ())
    write_atomically(out, as_csv(columns).encode())
    print(f"{len(columns['example']):,} predictions written to {out}")


def as_csv(columns: dict[str, Any]) -> str:
    """Columns of one length as CSV: NaN as an empty cell, probabilities (float64) to seven digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    return text.getvalue()


def _cells(column: Any) -> list[Any]:
    if column.dtype.kind != "f":
        return column.tolist()
    shown = "{}".format if column.dtype.itemsize == 4 else "{:.7g}".format  # of float32 what tells it from others
    return ["" if value != value else shown(value) for value in column]
