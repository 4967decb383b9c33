"""`fljax plan`: what each method of a job takes on this machine, measured before it is run."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from fljax.algorithms import method_named
from fljax.cli import run as running
from fljax.cli.assemble import make_model, make_parts, split_section
from fljax.cli.job import Job, job_of, read_layers
from fljax.cli.parameters import Parameter, Section
from fljax.cli.run import headline
from fljax.cli.settings import show_help, typed
from fljax.run.mesh import use_all_cores
from fljax.run.plan import Plan, plan
from fljax.run.sweep.memory import size
from fljax.types import Federation, Model

HELP = """Says what a job will take before it is run: takes the settings of fljax run.

Compiles each method's round for a few participants, reads the memory off the compiled program, counts the arithmetic of
local training, and runs three rounds to measure their speed; on an accelerator with several numbers of clients side by
side, of which --at-once then sets the fastest. "kept" is what server and clients keep between rounds, "each client"
what a participant of a round takes, "most clients" how many participants fit."""

PLAN: Section = {"memory": Parameter(float | None, None, "bytes of the device, as 80e9; None: asks it")}
"""What the command line has beyond a job's settings."""


def main(arguments: Sequence[str]) -> None:
    """Prints the plan of the job that ``arguments`` describe.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    layers, folder = read_layers([argument for argument in arguments if argument not in ("--help", "-h")])
    own = {name: typed(name, layers[-1].pop(name, ["None"]), PLAN[name].kind) for name in PLAN}
    job = job_of(layers, folder)
    if "--help" in arguments or "-h" in arguments:
        schema = job.schema | {"": job.schema[""] | PLAN}
        show_help("fljax plan", HELP, schema, job.settings | {"": job.settings[""] | own})
        return
    if own["memory"] is not None and not math.isfinite(own["memory"]):
        raise ValueError(f"--memory {own['memory']}: give the bytes of the device, as 80e9")
    use_all_cores()
    running.cache_compilations()
    execute(job, None if own["memory"] is None else int(own["memory"]), Console())


def execute(job: Job, memory: int | None, console: Console) -> dict[str, Plan]:
    """Plans every method and shows the table."""
    federation, newcomers = make_parts(job.settings)
    model = make_model(job.settings, federation)
    console.print(headline(job, federation, model, newcomers), highlight=False)
    names = job.settings[""]["algorithm"]
    plans = {name: plan_one(job.settings, name, model, federation, memory) for name in names}
    console.print(as_table(plans, job.settings[""]["rounds"]))
    return plans


def plan_one(settings: Any, name: str, model: Model, federation: Federation, memory: int | None) -> Plan:
    """The plan of one method of a job."""
    work, hyper, static = split_section(name, settings)
    make = partial(_make, name, model, static)
    key, participation = jax.random.key(settings[""]["seed"]), settings[""]["participation"]
    return plan(make, work, model, hyper, federation, key, participation=participation, memory=memory)


def _make(name: str, model: Model, static: dict, work: Any) -> Any:
    return method_named(name).factory(model, work, **static)


def as_table(plans: dict[str, Plan], n_rounds: int) -> Table:
    """A row a method."""
    first = next(iter(plans.values()))
    title = f"{size(first.data)} of data, {size(first.limit)} of memory to use"
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title=title, title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    for column in (
        "kept",
        "each\nclient",
        "most\nclients",
        "GFLOP\na round",
        "side\nby side",
        "rounds/s",
        f"{n_rounds}\nrounds",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for name, own in plans.items():
        runs = own.at_once > 0
        table.add_row(
            name,
            size(own.state),
            size(own.per_client),
            str(own.largest_cohort),
            f"{own.flops / 1e9:.3g}",
            str(own.at_once) if runs else "-",
            f"{own.rounds_per_second:.3g}" if runs else "do not fit",
            f"{n_rounds / own.rounds_per_second:.3g} s" if runs else "-",
        )
    return table
