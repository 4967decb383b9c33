"""The runs of a comparison: one program trains several seeds, each into a folder like that of `fljax run`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fljax.catalogue.job import RUN
from fljax.devices.mesh import Device, over_devices, replicated
from fljax.drift.stages import at
from fljax.folder.checkpoint import rounds_done
from fljax.jobs import config
from fljax.jobs.assemble import kept_as, make_algorithm, make_methods, planned, program_text
from fljax.jobs.going_on import check_rounds, check_runs
from fljax.jobs.job import Job
from fljax.jobs.layers import MAY_CHANGE
from fljax.jobs.own_data import Scaling, save_names, scaled, scaling
from fljax.jobs.parts import make_model, plain_model
from fljax.run.compile_ahead import Ahead
from fljax.run.models_on_disk import FILE, save_models
from fljax.run.one_round import as_traced, last_models
from fljax.run.progress import BarProgress
from fljax.run.record import Run
from fljax.run.seeds import Varied
from fljax.run.together import Runs, as_arrays, compile_together, train_together
from fljax.types import Algorithm, Federation, ModelTable


class Seed(NamedTuple):
    """One seed: a run of every method."""

    job: Job
    federation: Federation
    folder: Path
    devices: Sequence[Device] | None = None  # devices over which the clients are spread; None: all


def on_devices(federations: list[Federation], devices: Sequence[Device] | None) -> list[Federation]:
    """The federations, copied to each of ``devices``; an array that several of them share stays one array."""
    with over_devices(devices) as mesh:
        copies = {id(leaf): replicated(leaf, mesh) for leaf in jax.tree.leaves(federations)}
    return jax.tree.map(lambda leaf: copies[id(leaf)], federations)


def alike(seeds: Sequence[Seed]) -> list[list[Seed]]:
    """The seeds in groups that one program can train.

    One group, unless the labels are different tasks, or clients attack, drift or have a clock: the program then differs
    from seed to seed.
    """
    groups: dict[Any, list[Seed]] = {}
    for seed in seeds:
        run = seed.job.run
        is_changed = (run.attack, run.drift, run.clock) != ("none",) * 3
        groups.setdefault((scaling_of(seed).task, is_changed and run.seed), []).append(seed)
    return list(groups.values())


def scaling_of(seed: Seed) -> Scaling:
    """The scaling of a seed's networks."""
    return scaling(seed.federation, seed.job.run.task, seed.job.run.normalize)


def plans(seed: Seed) -> tuple[dict[str, dict[str, Any]], Federation]:
    """The arguments of training of every method on a seed, and the seed's federation with its attackers and drift.

    Raises:
        ValueError: as `fljax.jobs.assemble.make_methods`.
    """
    job = seed.job
    methods, federation = make_methods(job, make_model(job, seed.federation), seed.federation)
    federation = on_devices([federation], seed.devices)[0]
    return {name: planned(job, method, federation, name, seed.devices) for name, method in methods.items()}, federation


def check_going_on(seeds: Sequence[Seed], folder: Path) -> None:
    """Checks that every seed can resume what the comparison's ``folder`` holds of it, before anything is written.

    Raises:
        ValueError: a seed has results of other settings, of further methods or of more rounds.
    """
    for seed in seeds:
        if any(rounds_done(seed.folder / name) for name in seed.job.methods):
            plain = plain_job(seed)
            config.check(config.as_toml(plain), plain, seed.folder, MAY_CHANGE)
            check_rounds(plain, seed.folder)
            check_runs(plain, plans(seed)[0], seed.folder, folder)


def plain_job(seed: Seed) -> Job:
    """The job of `fljax run` that equals a seed."""
    job = seed.job
    settings = job.settings | {"": {name: value for name, value in job.settings[""].items() if name in RUN}}
    return Job(job.schema | {"": RUN}, settings)


def run_seeds(seeds: Sequence[Seed], writable: bool) -> None:
    """Trains every method on `alike` seeds; in folders that are not ``writable`` it only checks that they are
    finished."""
    job = seeds[0].job
    scales = [scaling_of(seed) for seed in seeds]
    for seed, scale in zip(seeds, scales, strict=True):
        plain = plain_job(seed)
        config.write("run", config.as_toml(plain), plain, seed.folder, MAY_CHANGE, writable)
        if writable:
            save_names(seed.job, seed.folder, scale)
    planned_runs, federation = plans(seeds[0])
    if len(seeds) == 1:
        seeds = [seeds[0]._replace(federation=federation)]
    runs = {name: {"runs": together(name, plan, seeds, scales)} for name, plan in planned_runs.items()}
    ahead = Ahead(runs, compile_together)
    for name, arguments in runs.items():
        title = name if len(seeds) > 1 else f"{name}, seed {job.run.seed}"
        finished = _run_method(name, title, arguments["runs"], ahead, job.run.force_resume)
        if writable:
            for seed, models in zip(seeds, _deployed(arguments["runs"], finished), strict=True):
                save_models(seed.folder / name / FILE, models, job.run.rounds)


def together(name: str, plan: dict[str, Any], seeds: Sequence[Seed], scales: Sequence[Scaling]) -> Runs:
    """One method's runs; ``plan`` is that of the first seed."""
    by_seed: dict[str, Any] = {
        "federations": [seed.federation for seed in seeds],
        "keys": [jax.random.key(seed.job.run.seed) for seed in seeds],
        "folders": [seed.folder / name for seed in seeds],
    }
    shared: dict[str, Any] = {field: value for field, value in plan.items() if field not in ("federation", "key")}
    varied: dict[str, Any] = {} if len(set(scales)) == 1 else _varied(name, seeds[0], scales)
    return Runs(**shared, **varied, **by_seed, compile=seeds[0].job.run.compile)


def _varied(name: str, first: Seed, scales: Sequence[Scaling]) -> dict[str, Any]:
    """The differences between the seeds' methods, whose networks scale by each seed's own training examples."""
    job, federation = first.job, first.federation
    fields = [field for field in ("inputs", "targets") if isinstance(getattr(scales[0], field), tuple)]
    plain, n_clients = plain_model(job, federation), len(federation.train.size)

    def make(numbers: dict[str, Any]) -> Algorithm:
        scale: dict[str, Any] = {field: tuple(pair) for field, pair in numbers.items()}
        model = scaled(plain, scales[0]._replace(**scale))
        with jax.ensure_compile_time_eval():  # a factory may compute constants
            return make_algorithm(name, job, model, n_clients).algorithm

    text = kept_as(program_text(name, job, federation), make_algorithm(name, job, plain, n_clients).algorithm)
    program = None if text is None else f"{text} {scales[0].task} by each seed's own {' and '.join(fields)}"
    numbers = [{field: getattr(scale, field) for field in fields} for scale in scales]
    return {"varied": Varied(make, numbers), "program": program}


def _run_method(name: str, title: str, runs: Runs, ahead: Ahead, force_resume: bool) -> list[Run]:
    """Trains one method's runs, with a bar under the ``title``."""
    bar = BarProgress(title)
    try:
        bar.prepare()
        ahead.wait(name)
        return train_together(runs, bar, force_resume)
    except BaseException:
        bar.stop()  # shows the terminal's cursor again
        raise


def _deployed(runs: Runs, finished: Sequence[Run]) -> Iterator[ModelTable]:
    """The models of the clients of each finished run, computed by one program."""
    varied, hyper = runs.varied, as_traced(runs.hyper)

    @jax.jit
    def deploy(numbers: Any, *arguments: Any) -> ModelTable:
        return last_models((runs.algorithm if varied is None else varied.make(numbers)).deploy, *arguments)

    for i, run in enumerate(finished):
        numbers = None if varied is None else as_arrays(varied.numbers[i])
        data = at(runs.federations[i], runs.n_rounds - 1).train
        arguments = numbers, runs.keys[i], hyper, run.state, data
        call = deploy if run.compiler is None else run.compiler.program("deploy", deploy, (), *arguments).call
        yield call(*arguments)
