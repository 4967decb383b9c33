"""`fljax show`: finished runs beside each other, as a table, files for a paper, or an HTML report."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fljax.catalogue.parameters import Parameter
from fljax.cli.folders import folders_and_words
from fljax.jobs.comparison_files import save_comparison, save_figures_of, save_report
from fljax.jobs.finished import compare_runs, run_folders
from fljax.jobs.kinds import is_sweep

USAGE = """usage: fljax show FOLDER [FOLDER ...] [--measure NAME] [--target SCORE] [--baseline METHOD] [--out FOLDER]
                  [--html FILE]

Shows finished runs again, or several beside each other. FOLDER is a results folder of fljax run or fljax compare. Runs
that differ in their seeds, and comparisons with other settings, are compared seed by seed: mean, deviation, paired
differences and p-values. Of several data sets or partitions each has a table of its own, and the first table has the
methods by data sets, with their mean ranks.

  --measure   what is compared; accuracy_macro by default, of a regression r2_micro. Others are the numbers of a round
              (test_loss, ...), accuracy_worst10 and accuracy_deviation over the clients, megabytes_up and
              megabytes_down since the run began, rounds, and of new clients new_accuracy_macro
  --target    the measure is taken in the first round with so much accuracy_macro (r2_micro), not at the end; without
              --measure it is rounds
  --baseline  the method that the others are compared with; the first by default
  --out       writes comparison.csv, .md and .tex, report.html, and plots/ as PNG and PDF, into a folder: of one run all
              its figures
  --html      writes a report in one file, for a browser

Of folders of fljax sweep it shows the best points, those of several sweeps in one table: what the sweeps do not have
alike is a column. A sweep may be going on. --measure is a test or score of table.csv; --out writes the table of all
points and the figures, as PNG and PDF.
"""


def main(arguments: Sequence[str]) -> None:
    """Shows the folders that ``arguments`` name.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return
    folders, given = folders_and_words("show", ("measure", "target", "baseline", "out", "html"), arguments)
    if "html" in given and Path(given["html"]).is_dir():
        raise ValueError(f"--html {given['html']}: it is a folder; give the name of a file, such as report.html")
    if "out" in given and Path(given["out"]).is_file():
        raise ValueError(f"--out {given['out']}: it is a file; give the name of a folder")
    if any(map(is_sweep, folders)):
        from fljax.cli.show_sweeps import show_sweeps  # with JAX

        show_sweeps(folders, given)
        return
    target = Parameter((("float",),), None, "").read("target", [given["target"]]) if "target" in given else None
    runs = run_folders(folders)
    compared = compare_runs(runs, given.get("baseline"), given.get("measure"), target)
    print(compared.text)
    title = ", ".join(folder.name for folder in folders)
    if "out" in given:
        with TemporaryDirectory() as drawn:
            try:
                if len(runs) == 1:
                    save_figures_of(runs[0], Path(drawn))
            finally:  # the table needs no models, and its curves are those of the measure that is compared
                save_comparison(compared, Path(given["out"]), title, Path(drawn))
        print(f"written to {given['out']}")
    if "html" in given:
        save_report(compared, Path(given["html"]), title)
        print(f"written to {given['html']}")
