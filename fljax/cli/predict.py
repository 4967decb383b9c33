"""`fljax predict`: the predictions of trained models for each client's examples, or for new ones, as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fljax.cli.folders import folders_and_words
from fljax.cli.run import start
from fljax.data.own.file_kinds import stem_of
from fljax.files import write_atomically

USAGE = """usage: fljax predict FOLDER [--method NAME] [--split test|val|train|new] [--out FILE]
       fljax predict FOLDER --data FILE [--client NAME] [--join FILE [--rounds N]] [--method NAME] [--out FILE]

Writes the predictions of a finished run's trained models for each client's examples: the label, the predicted label and
the probability of each class. FOLDER is a results folder of fljax run, or a seed of fljax compare; its data is read
again.

  --method  one method of the run; default: all
  --split   the examples; default: test. new: the test examples of the clients that --new-clients held out, predicted by
            the models that these clients got
  --data    new examples instead, with or without labels: a .csv, .csv.gz, .tsv, .tsv.gz, .parquet or .npz file with
            the run's columns or arrays, or a folder of images
  --client  the client whose model predicts all new examples; default: the client that the file names for each example,
            or the model that all clients share
  --join    labelled examples, in such a file, of clients that did not participate in the run: each gets a model as a
            new client does
  --rounds  rounds of work of the clients that join, in methods that keep something per client; default: the run's
            --new-client-rounds
  --out     CSV file of the table; default: FOLDER/predictions_SPLIT.csv, or FOLDER/predictions_of_FILE.csv; with
            --method, and --client, their names are appended: predictions_test_ditto.csv
"""


OPTIONS = ("method", "split", "data", "client", "join", "rounds", "out")


def main(arguments: Sequence[str]) -> None:
    """Writes the table that ``arguments`` describe.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return
    folders, options = folders_and_words("predict", OPTIONS, arguments)
    if len(folders) > 1:
        raise ValueError(f"{folders[1]}: fljax predict reads one folder at a time; leave it out")
    if not folders[0].is_dir():
        raise ValueError(f"there is no folder {folders[0]}; results are in results/")
    examples = f"of_{stem_of(Path(options['data']))}" if "data" in options else options.get("split", "test")
    parts = [examples, *(options[name].replace("/", "-") for name in ("method", "client") if name in options)]
    out = Path(options.get("out", folders[0] / f"predictions_{'_'.join(parts)}.csv"))
    if out.is_dir() or out.suffix != ".csv":
        raise ValueError(f"--out {out}: give the name of a file, such as predictions.csv")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}; make it first, or give another name")
    columns = _predicted(folders[0], options)
    from fljax.results.predicted_columns import as_csv  # with JAX, which has been prepared

    replaced = ", in place of those that were there" * out.exists()
    write_atomically(out, as_csv(columns).encode())
    print(f"{len(columns['example']):,} predictions written to {out}{replaced}")


def _predicted(folder: Path, options: Mapping[str, str]) -> Mapping[str, Any]:
    """The table's columns."""
    methods = [options["method"]] if "method" in options else ()
    if "data" not in options:
        for name in ("client", "join", "rounds"):
            if name in options:
                raise ValueError(f"--{name} {options[name]}: it is for new examples; give --data FILE, too")
        start()
        from fljax.results.predicted import predicted

        return predicted(folder, cast(Any, options.get("split", "test")), methods)
    if "split" in options:
        raise ValueError(f"--split {options['split']}: it selects examples of the run; leave --split or --data out")
    n_rounds = _n_rounds(options)
    start()
    from fljax.results.predicted import predicted_of_new

    return predicted_of_new(folder, options["data"], options.get("client"), methods, options.get("join"), n_rounds)


def _n_rounds(options: Mapping[str, str]) -> int | None:
    """The number of rounds of the clients that join; None if it is not given."""
    if (word := options.get("rounds")) is None:
        return None
    if "join" not in options:
        raise ValueError(f"--rounds {word}: it is for clients that join; give --join FILE, too")
    if not word.isdecimal():
        raise ValueError(f"--rounds {word}: give a whole number, 0 or more")
    return int(word)
