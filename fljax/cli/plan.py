"""`fljax plan`: what each method of a job takes on this machine, measured before it is run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fljax.catalogue.parameters import Parameter
from fljax.cli.job import RUN, Job
from fljax.cli.run import carry_out
from fljax.cli.text import table

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
    carry_out("fljax plan", HELP, RUN | PLAN, arguments, execute)


def execute(job: Job) -> None:
    """Plans every method and shows the table."""
    from fljax.cli.assemble import make_model, make_parts, make_sampling
    from fljax.cli.execute import headline
    from fljax.run.sweep.memory import size

    federation, newcomers = make_parts(job)
    model = make_model(job, federation)
    make_sampling(job).of(len(federation.train.size))
    print(headline(job, federation, model, newcomers))
    plans = {name: plan_one(job, name, model, federation) for name in job.methods}
    first = next(iter(plans.values()))
    print(f"{size(first.data)} of data, {size(first.limit)} of memory to use")
    print(table([*HEADER, f"{job.run.rounds}\nrounds"], [row(name, own, job, size) for name, own in plans.items()]))


def plan_one(job: Job, name: str, model: Any, federation: Any) -> Any:
    """The `fljax.run.plan.Plan` of one method of a job."""
    import jax

    from fljax.catalogue.own import find
    from fljax.cli.assemble import split_section
    from fljax.run.plan import plan

    work, hyper, static = split_section(name, job)
    make = partial(find("algorithm", job.methods[name]), model, **static)
    key, memory = jax.random.key(job.run.seed), job.own["memory"]
    return plan(
        make, work, model, hyper, federation, key, participation=job.run.participation, memory=memory and int(memory)
    )


def row(name: str, own: Any, job: Job, size: Callable[[int], str]) -> list[str]:
    """A method's line of the table."""
    measured = ["-", "do not fit", "-"]
    if own.at_once > 0:
        seconds = f"{job.run.rounds / own.rounds_per_second:.3g} s"
        measured = [str(own.at_once), f"{own.rounds_per_second:.3g}", seconds]
    return [name, size(own.state), size(own.per_client), str(own.largest_cohort), f"{own.flops / 1e9:.3g}", *measured]
