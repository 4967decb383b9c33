"""`fljax data`: lists data sets and how to get them; draws a partition; prepares a data set."""

from collections.abc import Sequence
from pathlib import Path

from fljax.catalogue.job import RUN
from fljax.catalogue.parameters import Parameter
from fljax.catalogue.words import nearest
from fljax.cli.run import carry_out
from fljax.cli.text import show
from fljax.jobs.job import Job
from fljax.jobs.main_job import OF_OWN_DATA
from fljax.jobs.settings import of_arguments

USAGE = """usage: fljax data list
       fljax data show [--dataset NAME] [--partition NAME] [--partition.n-clients N ...] [--file PNG]
       fljax data prepare NAME [--folder FOLDER]

  list      lists the data sets: the folder if found on this machine, else how to get it
  show      draws the clients' examples in a partition; `fljax data show --help` has its settings
  prepare   downloads a data set of TensorFlow Datasets; needs the network and the extra 'prepare'
"""
OWN_DATA = ("data", *OF_OWN_DATA)
SHOW = {name: RUN[name] for name in ("dataset", "data_folder", *OWN_DATA, "partition", "common_test", "seed")}
SHOW["file"] = Parameter((("str",),), "partition.png", "file name of the picture")


def main(arguments: Sequence[str]) -> None:
    """Carries out a subcommand; the default is `list`.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    commands = {"list": show_available, "show": show_partition, "prepare": prepare_set}
    if arguments and arguments[0] in ("--help", "-h"):
        print(USAGE, end="")
        return
    name, *rest = arguments or ["list"]
    commands[nearest(name, commands, "subcommand of fljax data")](rest)


def show_available(arguments: Sequence[str]) -> None:
    """Prints every data set with its folder, or with how to get it."""
    if arguments:
        raise ValueError(f"fljax data list takes no settings, not {' '.join(arguments)!r}")
    from fljax.data.datasets import available

    print("datasets")
    show(available(), 24)


def show_partition(arguments: Sequence[str]) -> None:
    """Draws a partition and prints its sizes."""
    carry_out("fljax data show", "Draws the clients' examples in a partition.", SHOW, arguments, draw_partition)


def draw_partition(job: Job) -> None:
    """Makes the partition and draws it."""
    run, file = job.run, job.own["file"]
    if not Path(file).suffix:
        raise ValueError(f"--file {file!r}: give a file name with an ending, such as partition.png")
    import numpy as np

    from fljax.data.draw import draw
    from fljax.jobs.parts import data_name, make_federation

    federation = make_federation(job)
    size = np.asarray(federation.train.size)
    title = f"{data_name(run)}, {run.partition}, {len(size)} clients, seed {run.seed}"
    draw(federation, Path(file), title)
    groups = "" if federation.group is None else f" in {int(federation.group.max()) + 1} groups"
    tests = f", tested on the same {len(federation.test.pool.y)}" if run.common_test else ""
    print(f"{len(size)} clients{groups}, {size.min()} to {size.max()} training examples each{tests}; drawn in {file}")


def prepare_set(arguments: Sequence[str]) -> None:
    """Downloads and prepares a data set."""
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("name a data set: fljax data prepare NAME; fljax data list has the names")
    folder = None
    for name, words in of_arguments(arguments[1:]):
        if name != "folder":
            raise ValueError(f"fljax data prepare takes --folder only, not --{name}")
        folder = RUN["folder"].read(name, words)
    from fljax.data.datasets import prepare

    try:
        print(f"prepared in {prepare(arguments[0], folder)}")
    except ModuleNotFoundError as error:
        raise ValueError(error) from None
