"""`fljax plan`: what each method of a job takes on this machine, measured before it is run."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fljax.cli import asks_help, run
from fljax.cli.job import RUN, Job, read_job
from fljax.cli.schema import Parameter
from fljax.cli.text import show_help, table

if TYPE_CHECKING:
    from fljax.run.plan import Plan
    from fljax.types import Federation, Model

HELP = """Says what a job will take before it is run: takes the settings of fljax run.

Compiles each method's round for a few participants, reads the memory off the compiled program, counts the arithmetic of
local training, and runs three rounds to measure their speed; on an accelerator with several numbers of clients side by
side, of which --at-once then sets the fastest. "kept" is what server and clients keep between rounds, "each client"
what a participant of a round takes, "most clients" how many participants fit."""

PLAN = {"memory": Parameter((("float",), ("none",)), None, "bytes of the device, as 80e9; None: asks it")}
"""What the command line has beyond a job's settings."""
HEADER = ["algorithm", "kept", "each\nclient", "most\nclients", "GFLOP\na round", "side\nby side", "rounds/s"]


def main(arguments: Sequence[str]) -> None:
    """Prints the plan of the job that ``arguments`` describe.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    arguments, help_asked = asks_help(arguments)
    job = read_job(arguments, RUN | PLAN)
    if help_asked:
        show_help("fljax plan", HELP, job.schema, job.settings)
        return
    run.start()
    execute(job)


def execute(job: Job) -> "dict[str, Plan]":
    """Plans every method and shows the table."""
    from fljax.cli.assemble import make_model, make_parts
    from fljax.cli.execute import headline
    from fljax.run.sweep.memory import size

    federation, newcomers = make_parts(job)
    model = make_model(job, federation)
    print(headline(job, federation, model, newcomers))
    plans = {name: plan_one(job, name, model, federation) for name in job.methods}
    first = next(iter(plans.values()))
    print(f"{size(first.data)} of data, {size(first.limit)} of memory to use")
    print(table([*HEADER, f"{job.run.rounds}\nrounds"], [row(name, own, job) for name, own in plans.items()]))
    return plans


def plan_one(job: Job, name: str, model: "Model", federation: "Federation") -> "Plan":
    """The plan of one method of a job."""
    import jax

    from fljax.cli.assemble import make_sampling, split_section
    from fljax.cli.plugins import find
    from fljax.run.plan import plan

    work, hyper, static = split_section(name, job)
    make = partial(find("algorithm", job.methods[name]), model, **static)
    key, memory = jax.random.key(job.run.seed), job.own["memory"]
    make_sampling(job).of(len(federation.train.size))
    return plan(
        make,
        work,
        model,
        hyper,
        federation,
        key,
        participation=job.run.participation,
        memory=None if memory is None else int(memory),
    )


def row(name: str, own: "Plan", job: Job) -> list[str]:
    """A method's line of the table."""
    from fljax.run.sweep.memory import size

    measured = ["-", "do not fit", "-"]
    if own.at_once > 0:
        seconds = f"{job.run.rounds / own.rounds_per_second:.3g} s"
        measured = [str(own.at_once), f"{own.rounds_per_second:.3g}", seconds]
    return [name, size(own.state), size(own.per_client), str(own.largest_cohort), f"{own.flops / 1e9:.3g}", *measured]
