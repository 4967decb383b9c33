"""`fljax sweep`: one method with many hyperparameters, static settings and seeds."""

from collections.abc import Sequence
from importlib import import_module

from fljax.cli.run import asks_help, say_unused, start
from fljax.cli.text import show_help
from fljax.jobs.sweep import NOT_SWEPT, read_sweep

HELP = """Runs one method with many hyperparameters and seeds, as one compiled program, and finds the best point.

Several values of a hyperparameter make a grid: --lr 0.01 0.1. A range is lin:LOW:HIGH:N or log:LOW:HIGH:N; with
--draws N, values are drawn at random from lin:LOW:HIGH or log:LOW:HIGH. Static settings, which change the program
(epochs, n-clusters, the model's layers), belong in the outer loop and compile once per value: --outer.epochs 1 5,
--outer.model.hidden "64" "128 64". All seeds share one partition, so the intervals do not show how results vary between
partitions; fljax compare draws one partition per seed."""


def main(arguments: Sequence[str]) -> None:
    """Runs the sweep that ``arguments`` describe, on as many cores as are worthwhile.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    arguments, help_asked = asks_help(arguments)
    sweep = read_sweep(arguments, check=not help_asked)
    if help_asked:
        section = {name: parameter for name, parameter in sweep.job.schema[""].items() if name not in NOT_SWEPT}
        show_help("fljax sweep", HELP, sweep.job.schema | {"": section}, sweep.job.settings)
        return
    say_unused(sweep.job)
    start()
    import_module("fljax.cli.search").execute(sweep)
