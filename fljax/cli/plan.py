"""`fljax plan`: what each method of a job needs on this machine, measured before it is run."""

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from fljax.catalogue.job import RUN
from fljax.catalogue.parameters import Parameter
from fljax.cli.run import carry_out
from fljax.jobs.job import Job

HELP = """Estimates what a job will need, before it is run; takes the settings of fljax run.

Compiles each method's round, reads the memory from the compiled program, counts the arithmetic of local training, and
runs up to three rounds to measure their speed. On an accelerator, and on a CPU with 256 or more participants, it tries
several numbers of clients side by side; set the fastest with --at-once. Rounds that would take more than 10 s are not
run: their speed, marked ~, is estimated from the arithmetic. "kept" is the memory that server and clients keep between
rounds, "each client" the memory of one participant in a round, "most clients" the number of participants that fit. Each
row is printed as soon as it is known. --quick compiles and runs nothing: the seconds, marked ~, are estimated for a CPU
from the arithmetic, correct to a factor of two or three, and the memory of a round is not reported."""

PLAN = {
    "folder": RUN["folder"]._replace(help="results folder whose settings and devices are used; nothing is written"),
    "quick": Parameter((("bool",),), False, "estimate from the arithmetic, within seconds: compiles and runs nothing"),
    "memory": Parameter((("float",), ("none",)), None, "memory of the device in bytes, such as 80e9; None: its own"),
}
"""Settings besides those of a job, or in place of them."""


def main(arguments: Sequence[str]) -> None:
    """Prints the plan of the job that ``arguments`` describe.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    carry_out("fljax plan", HELP, RUN | PLAN, arguments, execute)


def execute(job: Job) -> None:
    """Plans every method and prints the table."""
    from fljax.jobs.assemble import devices_of, make_methods, planned
    from fljax.jobs.going_on import begun_with
    from fljax.jobs.parts import make_model, make_parts
    from fljax.jobs.remarks import headline
    from fljax.run.arguments import check_ahead
    from fljax.run.plan_table import common, head, line

    federation, newcomers = make_parts(job)
    model = make_model(job, federation)
    methods, changed_federation = make_methods(job, model, federation)
    devices = devices_of(job, model, changed_federation, begun_with(job, [job.folder] if job.folder else []))
    for name, method in methods.items():
        with contextlib.suppress(MemoryError):  # the table shows what does not fit
            check_ahead(**planned(job, method, changed_federation, name, devices))
    print(headline(job, federation, model, newcomers, devices))
    names, n_rounds = list(job.methods), job.run.rounds
    for index, name in enumerate(names):
        if sys.stderr.isatty() and not job.own["quick"]:
            print(f"{name}: compiling", end="\r", file=sys.stderr, flush=True)
        plan = plan_one(job, name, model, federation, devices)
        if index == 0:
            print(f"{common(plan)}\n{head(names, n_rounds)}")
        print(line(name, plan, n_rounds, names), flush=True)


def plan_one(job: Job, name: str, model: Any, federation: Any, devices: Any) -> Any:
    """The `fljax.run.plan.Plan` of one method of a job."""
    import jax

    from fljax.catalogue.own import find
    from fljax.jobs.assemble import Made, as_clients_are, make_sampling, split_section, with_stragglers
    from fljax.run.plan import plan

    work, hyper, static = split_section(name, job)
    factory = partial(find("algorithm", job.methods[name]), model, **static)

    def as_it_runs(work: Any) -> Any:
        """The method, with the job's clock and attackers, and the federation."""
        method = Made(factory(work), hyper, with_stragglers(job, make_sampling(job), work))
        methods, changed_federation = as_clients_are(job, {name: method}, federation)
        return methods[name], changed_federation

    method, changed_federation = as_it_runs(work)
    key, memory = jax.random.key(job.run.seed), job.own["memory"]
    return plan(
        lambda work: as_it_runs(work)[0].algorithm,
        work,
        model,
        hyper,
        changed_federation,
        key,
        n_rounds=job.run.rounds,
        sampling=method.sampling,
        memory=memory and int(memory),
        devices=devices,
        compile=job.run.compile,
        quick=job.own["quick"],
    )
