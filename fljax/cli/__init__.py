"""The command line: `fljax run`, `fljax sweep`, `fljax list`, `fljax data`."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

USAGE = """usage: fljax COMMAND [--help] [SETTINGS]

Functional simulation of federated learning with massively vectorised clients.

commands:
  run    runs methods and compares them; alone: five that find hidden groups of handwriting, and FedAvg
  sweep  runs one method under many numbers and seeds as one program, and finds the best
  plan   what a run will take here: memory, arithmetic, rounds per second
  list   the methods with their numbers, the data sets, the partitions and the models
  data   what data is here and how to get the rest; draws a partition; prepares a data set
"""
COMMANDS = {
    "run": "fljax.cli.run",
    "sweep": "fljax.cli.sweep",
    "plan": "fljax.cli.plan",
    "list": "fljax.cli.listing",
    "data": "fljax.cli.data",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point: the exit status, 2 for what a user can correct, said in one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(USAGE, end="")
        return 0
    try:
        command(arguments[0])(arguments[1:])
    except (ValueError, OSError) as error:
        print(f"fljax: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def command(name: str) -> Callable[[Sequence[str]], None]:
    """The function of a command.

    Raises:
        ValueError: there is none of that name.
    """
    from fljax.cli.settings import nearest

    return import_module(COMMANDS[nearest(name, COMMANDS, "command")]).main
