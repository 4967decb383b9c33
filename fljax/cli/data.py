"""`fljax data`: what data is here and how to get the rest; draws a partition; prepares a data set."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from fljax.cli.assemble import make_federation
from fljax.cli.job import federation_settings
from fljax.cli.listing import datasets
from fljax.cli.parameters import Parameter
from fljax.cli.settings import nearest, show_help, typed, words_of_arguments
from fljax.data.datasets import prepare
from fljax.data.draw import draw

USAGE = """usage: fljax data list
       fljax data show [--dataset NAME] [--partition NAME] [--partition.n-clients N ...] [--file PNG]
       fljax data prepare NAME [--folder FOLDER]

  list      what is found on this machine, where, and how to get the rest
  show      draws who has what in a partition; `fljax data show --help` has its settings
  prepare   downloads a set of TensorFlow Datasets; needs the network and the extra 'prepare'
"""


def main(arguments: Sequence[str]) -> None:
    """Carries out a subcommand; none is `list`.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    commands = {"list": show_available, "show": show_partition, "prepare": prepare_set}
    if arguments and arguments[0] in ("--help", "-h"):
        print(USAGE, end="")
        return
    name, *rest = arguments or ["list"]
    commands[nearest(name, commands, "subcommand of fljax data")](rest)


def show_available(arguments: Sequence[str]) -> None:
    """Prints every data set, where it is or how to get it."""
    if arguments:
        raise ValueError(f"fljax data list takes no settings, not {' '.join(arguments)!r}")
    Console().print(datasets(), highlight=False)


def show_partition(arguments: Sequence[str]) -> None:
    """Draws a partition and says its sizes."""
    file = Parameter(str, "partition.png", "where the picture goes")
    help_asked = "--help" in arguments or "-h" in arguments
    words = words_of_arguments([argument for argument in arguments if argument not in ("--help", "-h")])
    path = Path(typed("file", words.pop("file", [file.default]), str))
    schema, settings = federation_settings(words)
    if help_asked:
        schema, settings = (
            schema | {"": schema[""] | {"file": file}},
            settings | {"": settings[""] | {"file": str(path)}},
        )
        show_help("fljax data show", "Draws who has what in a partition.", schema, settings)
        return
    federation = make_federation(settings)
    own, size = settings[""], np.asarray(federation.train.size)
    draw(federation, path, f"{own['dataset']}, {own['partition']}, {len(size)} clients, seed {own['seed']}")
    groups = "" if federation.group is None else f" in {int(federation.group.max()) + 1} groups"
    print(f"{len(size)} clients{groups}, {size.min()} to {size.max()} training examples each; drawn in {path}")


def prepare_set(arguments: Sequence[str]) -> None:
    """Downloads and prepares a data set."""
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("say which data set: fljax data prepare NAME; fljax data list has the names")
    words = words_of_arguments(arguments[1:])
    folder = typed("folder", words.pop("folder", ["None"]), str | None)
    if words:
        raise ValueError(f"fljax data prepare takes --folder only, not --{next(iter(words))}")
    try:
        print(f"prepared in {prepare(arguments[0], folder)}")
    except ModuleNotFoundError as error:
        raise ValueError(error) from None
