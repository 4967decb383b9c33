"""`fljax show`: finished runs as a table, files for a paper, or an HTML report."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fljax.catalogue.parameters import Parameter
from fljax.cli.folders import folders_and_words
from fljax.jobs.kinds import is_sweep
from fljax.results.comparison import save_comparison, save_report
from fljax.results.finished import compare_runs, run_folders
from fljax.results.run_figures import save_figures_of

USAGE = """usage: fljax show FOLDER [FOLDER ...] [--measure NAME] [--target SCORE] [--baseline METHOD] [--out FOLDER]
                  [--html FILE]

Shows finished runs, one or several in one table. FOLDER is a results folder of fljax run or fljax compare. Runs that
differ only in their seeds, and comparisons with other settings, are compared seed by seed: mean, standard deviation,
paired differences and p-values. Runs on several data sets or partitions get one table for each, after a table of the
methods by data sets with their mean ranks.

  --measure   metric that is compared; default: accuracy_macro, for regression r2_micro. Others are the metrics of a
              round (test_loss, ...), accuracy_worst10 and accuracy_deviation over the clients, megabytes_up and
              megabytes_down since the run began, edge_megabytes_up and edge_megabytes_down of edge servers, rounds, and
              for new clients new_accuracy_macro
  --target    takes the metric in the first round in which accuracy_macro (r2_micro) reaches this value, not at the end;
              --measure is then rounds by default
  --baseline  method that the others are compared with; default: the first
  --out       writes comparison.csv, .md and .tex, report.html, and plots/ as PNG and PDF, into a folder; for one run
              all its figures
  --html      writes a report in one file, for a browser

For folders of fljax sweep it shows the best points, those of several sweeps in one table with a column for each setting
that differs; a sweep may still be running. --measure is then a metric of table.csv, and --out writes the table of all
points and the figures, as PNG and PDF.
"""


def main(arguments: Sequence[str]) -> None:
    """Shows the folders that ``arguments`` name.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return
    folders, options = folders_and_words("show", ("measure", "target", "baseline", "out", "html"), arguments)
    if "html" in options and Path(options["html"]).is_dir():
        raise ValueError(f"--html {options['html']}: it is a folder; give the name of a file, such as report.html")
    if "out" in options and Path(options["out"]).is_file():
        raise ValueError(f"--out {options['out']}: it is a file; give the name of a folder")
    if any(map(is_sweep, folders)):
        from fljax.cli.show_sweeps import show_sweeps  # with JAX

        show_sweeps(folders, options)
        return
    target = Parameter((("float",),), None, "").read("target", [options["target"]]) if "target" in options else None
    runs = run_folders(folders)
    compared = compare_runs(runs, options.get("baseline"), options.get("measure"), target)
    print(compared.text)
    title = ", ".join(folder.name for folder in folders)
    if "out" in options:
        with TemporaryDirectory() as figures:
            try:
                if len(runs) == 1:
                    save_figures_of(runs[0], Path(figures))
            finally:  # the table needs no models; its curves are those of the metric that is compared
                save_comparison(compared, Path(options["out"]), title, Path(figures))
        print(f"written to {options['out']}")
    if "html" in options:
        save_report(compared, Path(options["html"]), title)
        print(f"written to {options['html']}")
