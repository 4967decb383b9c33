"""`fljax predict`: what trained models say of each client's examples, or of new ones, as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fljax.cli.folders import folders_and_words
from fljax.cli.run import start
from fljax.files import write_atomically

USAGE = """usage: fljax predict FOLDER [--method NAME] [--split test|val|train|new] [--out FILE]
       fljax predict FOLDER --data FILE [--client NAME] [--join FILE [--rounds N]] [--method NAME] [--out FILE]

Writes what the trained models of a finished run say of each client's examples: the label, the predicted one and the
probability of each class. FOLDER is a results folder of fljax run, or a seed of fljax compare; its data is read again.

  --method  one of the run's; all by default
  --split   whose examples; those that clients are tested on by default; new: those of the clients that --new-clients
            held out, by the models that they got
  --data    new examples in their place, with labels or without: a .csv, .tsv, .parquet or .npz file with the run's
            columns or arrays, or a folder of images
  --client  whose model tells all new examples; by default that of the client which the file names for each, or the
            model that all clients share
  --join    labelled examples of clients that took no part, in such a file: each gets a model as a new client does
  --rounds  of work of those that join, in methods that keep something per client; the run's --new-client-rounds by
            default
  --out     the table, a CSV; FOLDER/predictions_test.csv by default, or of another split; of --data FILE
            FOLDER/predictions_of_FILE.csv
"""


OPTIONS = ("method", "split", "data", "client", "join", "rounds", "out")


def main(arguments: Sequence[str]) -> None:
    """Writes the table that ``arguments`` ask for.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return
    folders, given = folders_and_words("predict", OPTIONS, arguments)
    if len(folders) > 1:
        raise ValueError(f"{folders[1]}: fljax predict reads one folder at a time")
    if not folders[0].is_dir():
        raise ValueError(f"there is no folder {folders[0]}; results are in results/")
    of = f"of_{Path(given['data']).stem}" if "data" in given else given.get("split", "test")
    out = Path(given.get("out", folders[0] / f"predictions_{of}.csv"))
    if out.is_dir() or out.suffix != ".csv":
        raise ValueError(f"--out {out}: give the name of a file, such as predictions.csv")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    columns = _predicted(folders[0], given)
    from fljax.jobs.predicted_columns import as_csv  # with JAX, which has been prepared

    write_atomically(out, as_csv(columns).encode())
    print(f"{len(columns['example']):,} predictions written to {out}")


def _predicted(folder: Path, given: Mapping[str, str]) -> Mapping[str, Any]:
    """The table's columns."""
    methods = [given["method"]] if "method" in given else ()
    if "data" not in given:
        for name, what in (("client", "tells"), ("join", "is for"), ("rounds", "is for clients that join, and for")):
            if name in given:
                raise ValueError(f"--{name} {given[name]}: it {what} new examples; give them by --data FILE, too")
        start()
        from fljax.jobs.predicted import predicted

        return predicted(folder, cast(Any, given.get("split", "test")), methods)
    if "split" in given:
        raise ValueError(f"--split {given['split']}: it is of the run's own examples; leave it out, or --data")
    n_rounds = _rounds(given)
    start()
    from fljax.jobs.predicted import predicted_of_new

    return predicted_of_new(folder, given["data"], given.get("client"), methods, given.get("join"), n_rounds)


def _rounds(given: Mapping[str, str]) -> int | None:
    """How many rounds clients that join have; None: nobody says it."""
    if (word := given.get("rounds")) is None:
        return None
    if "join" not in given:
        raise ValueError(f"--rounds {word}: it is for clients that join; give them by --join FILE, too")
    if not word.isdecimal():
        raise ValueError(f"--rounds {word}: give a whole number, 0 or more")
    return int(word)
