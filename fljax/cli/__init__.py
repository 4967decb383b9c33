"""The command line: `fljax run`, `compare`, `show`, `predict`, `sweep`, `plan`, `list` and `data`."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from fljax.cli.interrupts import come_again
from fljax.cli.output import steady

USAGE = """usage: fljax COMMAND [--help] [SETTINGS]
       fljax --version

Functional simulation of federated learning with massively vectorised clients.

commands:
  run      runs methods and compares them; without arguments five clustered methods, FedAvg and local training
  compare  runs several methods under several seeds; reports confidence intervals and p-values of their differences
  show     shows finished runs, alone or several in one table; writes an HTML report of them
  predict  writes the predictions of a run's trained models for each client's examples
  sweep    runs one method with many hyperparameters and seeds in one program, and finds the best point
  plan     reports what a run will need on this machine: memory, arithmetic, rounds per second
  list     lists methods, bricks, partitions, models and the other names, with their settings
  data     lists the data sets found here and how to get the others; draws a partition; prepares a data set
"""
COMMANDS = {
    "run": "fljax.cli.run",
    "compare": "fljax.cli.compare",
    "show": "fljax.cli.show",
    "predict": "fljax.cli.predict",
    "sweep": "fljax.cli.sweep",
    "plan": "fljax.cli.plan",
    "list": "fljax.cli.listing",
    "data": "fljax.cli.data",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit status: 2 after an error that the user can correct, which is one line on
    stderr."""
    if arguments is not None:
        return status_of(arguments)
    try:
        status = status_of(sys.argv[1:])
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)  # an error of the program, shown as Python does
        status = 1
    compile_ahead = sys.modules.get("fljax.run.compile_ahead")
    if status and compile_ahead is not None and compile_ahead.still_compiles():
        for file in filter(None, (sys.stdout, sys.stderr)):
            file.flush()
        os._exit(status)  # a thread in the compiler would abort the process as the interpreter ends
    return status


def status_of(arguments: Sequence[str]) -> int:
    """Carries out a command line and returns its exit status; errors that the user can correct are printed."""
    with come_again(), steady() as output:
        try:
            status = _status_of(arguments)
            output.flush()
        except BrokenPipeError:  # the reader of the output has stopped reading
            output.drop()
            return 1
    if output.error is not None:
        print(f"fljax: standard output cannot be written: {output.error.strerror}", file=sys.stderr)
        return status or 2
    return status


def _status_of(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        print(f"fljax {version('fljax')}")
        return 0
    usual_format, warnings.formatwarning = warnings.formatwarning, in_one_line
    try:
        command(arguments[0])(arguments[1:])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if (message := _user_message(error)) is None:
            raise
        print(f"fljax: {' '.join(map(_shortened, message.split()))}", file=sys.stderr)
        return 2
    finally:
        warnings.formatwarning = usual_format
        if catalogue := sys.modules.get("fljax.catalogue.entries"):
            catalogue.save()
    return 0


def in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as it is shown: a warning of fljax is one line like an error, without its place in the code."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"fljax: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _user_message(error: Exception) -> str | None:
    """The message of an error that the user can correct, with the line if it is in a file of theirs; else None."""
    user_files = sys.modules.get("fljax.catalogue.own")
    if not isinstance(error, ValueError | OSError | OverflowError | MemoryError | RuntimeError):
        return user_files.fault_in_user_file(error) if user_files else None
    message = correctable(error)
    place = user_files.place_of(error) if user_files and message is not None else ""
    return f"{place}: {type(error).__name__}: {message}" if place else message


def _shortened(word: str) -> str:
    """A word of a message, shortened if it is very long, as a path can be."""
    return word if len(word) <= 300 else f"{word[:100]}...{word[-100:]}"


def correctable(error: Exception) -> str | None:
    """The message of an error that other settings avoid; None for any other error."""
    text = str(error)
    is_out_of_memory = isinstance(error, RuntimeError) and ("RESOURCE_EXHAUSTED" in text or "Out of memory" in text)
    if isinstance(error, MemoryError) or is_out_of_memory:
        detail = (
            re.sub("^.*(RESOURCE_EXHAUSTED|INTERNAL): ", "", text, flags=re.DOTALL).partition("\n")[0].rstrip(".")
            or "no memory is left"
        )
        return f"out of memory ({detail}); choose smaller batches, fewer clients or runs at once, or a smaller model"
    if isinstance(error, OverflowError):
        return f"a number is too large ({text}); choose a smaller one"
    if isinstance(error, FileNotFoundError) and error.errno is not None and error.filename is None:  # os.getcwd's
        return "the working directory does not exist any more; change to another"
    return None if isinstance(error, RuntimeError) else text


def command(name: str) -> Callable[[Sequence[str]], None]:
    """The function of a command.

    Raises:
        ValueError: there is no command of that name.
    """
    from fljax.catalogue.words import nearest

    return import_module(COMMANDS[nearest(name, COMMANDS, "command")]).main
