"""`fljax run`, and the first steps of all commands: reading the job, its help, and preparing JAX."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fljax.catalogue.job import RUN
from fljax.catalogue.parameters import Section
from fljax.cli.text import show_help
from fljax.jobs.job import Job, read_job

HELP = """Runs methods of federated learning and compares them.

Without arguments, it runs FedTSDP, LayerCFL, DC-PFL, FedCPS, FeSEM, FedAvg and local training on the digits data set
with 12 clients in 4 hidden groups of rotation. Each argument changes one setting. The defaults below are those of the
chosen methods, partition and model (try `fljax run --partition dirichlet --help`). A setting that several methods have
may be written short: --lr 0.1 sets it in every method, --ifca.lr 0.1 in one."""


def main(arguments: Sequence[str]) -> None:
    """Runs the job that ``arguments`` describe, on as many cores as are worthwhile.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    carry_out("fljax run", HELP, RUN, arguments, lambda job: import_module("fljax.cli.execute").execute(job))


def carry_out(command: str, text: str, own: Section, arguments: Sequence[str], execute: Callable[[Job], Any]) -> None:
    """Executes the job of a command line, or shows its help; ``own`` are the command's own settings."""
    arguments, help_asked = asks_help(arguments)
    job = read_job(arguments, own, command.removeprefix("fljax "))
    if help_asked:
        show_help(command, text, job.schema, job.settings)
    else:
        say_unused(job)
        start()
        execute(job)


def say_unused(job: Job) -> None:
    """Prints which settings of a file are not used."""
    if job.unused:
        print(f"fljax: {job.unused}", file=sys.stderr)


def asks_help(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without ``--help`` and ``-h``, and whether one of these was there."""
    rest = [argument for argument in arguments if argument not in ("--help", "-h")]
    return rest, len(rest) < len(arguments)


def start() -> None:
    """Prepares JAX for a command: one device per core, and a cache of compiled programs."""
    from fljax.devices.mesh import use_all_cores

    use_all_cores()
    cache_compilations()


def cache_compilations() -> None:
    """Keeps compiled programs in the user's cache folder: the second run of a job starts at once.

    JAX's own environment variables for its cache take precedence.
    """
    import jax
    import platformdirs

    folder = str(platformdirs.user_cache_path("fljax") / "compiled")
    for name, value in (("jax_compilation_cache_dir", folder), ("jax_persistent_cache_min_compile_time_secs", 0.0)):
        if name.upper() not in os.environ:
            jax.config.update(name, value)
