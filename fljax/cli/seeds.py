"""The runs of a comparison: those of one program together, each into a folder like that of `fljax run`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fljax.catalogue.job import RUN
from fljax.cli import config
from fljax.cli.ahead import Ahead
from fljax.cli.assemble import as_clients_are, make_algorithm, make_model
from fljax.cli.execute import deployed_models, planned
from fljax.cli.job import MAY_CHANGE, Job
from fljax.cli.own_data import save_names, scaling
from fljax.run.mesh import over_devices, replicated
from fljax.run.models_on_disk import FILE, save_models
from fljax.run.progress import BarProgress
from fljax.run.together import Runs, compile_together, train_together
from fljax.types import Federation


class Seed(NamedTuple):
    """One of the runs of every method."""

    job: Job
    federation: Federation
    folder: Path


def on_devices(federations: list[Federation]) -> list[Federation]:
    """The federations whole on every device; an array that several have in common is still one."""
    with over_devices() as mesh:
        known = {id(leaf): replicated(leaf, mesh) for leaf in jax.tree.leaves(federations)}
    return jax.tree.map(lambda leaf: known[id(leaf)], federations)


def alike(seeds: Sequence[Seed]) -> list[list[Seed]]:
    """The seeds in groups that one program can train.

    Those whose networks have other numbers from the training examples are apart, and so is each where clients attack or
    drift or have a clock, for that is decided seed by seed.
    """
    groups: dict[Any, list[Seed]] = {}
    for seed in seeds:
        run = seed.job.run
        scales = scaling(seed.federation, run.task, run.normalize)
        changed = (run.attack, run.drift, run.clock) != ("none",) * 3
        groups.setdefault((scales, changed and run.seed), []).append(seed)
    return list(groups.values())


def plans(seed: Seed) -> tuple[dict[str, dict[str, Any]], Federation]:
    """What every method is trained with on a seed's federation, and that with its attackers and its drift.

    Raises:
        ValueError: a method, an attack, a drift or a clock cannot be so.
    """
    job, model = seed.job, make_model(seed.job, seed.federation)
    methods = {name: make_algorithm(name, job, model) for name in job.methods}
    methods, federation = as_clients_are(job, methods, seed.federation)
    federation = on_devices([federation])[0]
    return {name: planned(job, made, federation, name) for name, made in methods.items()}, federation


def run_seeds(seeds: Sequence[Seed]) -> None:
    """Trains every method on federations that are `alike`."""
    job, federation, _ = seeds[0]
    scales = scaling(federation, job.run.task, job.run.normalize)
    for one, _, folder in seeds:
        settings = one.settings | {"": {name: value for name, value in one.settings[""].items() if name in RUN}}
        plain = Job(one.schema | {"": RUN}, settings)
        config.write("run", config.as_toml(plain), plain, folder, MAY_CHANGE)
        save_names(one, folder, scales)
    planned_runs, federation = plans(seeds[0])
    if len(seeds) == 1:
        seeds = [seeds[0]._replace(federation=federation)]
    runs = {name: {"runs": _together(name, plan, seeds)} for name, plan in planned_runs.items()}
    ahead = Ahead(runs, compile_together)
    for name, one in runs.items():
        _run_method(name, one["runs"], ahead, job.run.force_resume)


def _together(name: str, plan: dict[str, Any], seeds: Sequence[Seed]) -> Runs:
    """One method's runs; ``plan`` is that of the first."""
    own = {
        "federations": [seed.federation for seed in seeds],
        "keys": [jax.random.key(seed.job.run.seed) for seed in seeds],
        "folders": [seed.folder / name for seed in seeds],
    }
    shared = {field: value for field, value in plan.items() if field not in ("federation", "key")}
    return Runs(**shared, **own, compile=seeds[0].job.run.compile)


def _run_method(name: str, runs: Runs, ahead: Ahead, force_resume: bool) -> None:
    """Trains one method's runs and writes the models that their clients end with."""
    bar = BarProgress(name)
    try:
        bar.prepare()
        ahead.wait(name)
        ended = train_together(runs, bar, force_resume)
    except BaseException:
        bar.stop()  # gives the terminal its cursor back
        raise
    for run, federation, key, folder in zip(ended, runs.federations, runs.keys, runs.folders, strict=True):
        plan = {"algorithm": runs.algorithm, "hyper": runs.hyper, "federation": federation, "key": key}
        save_models(folder / FILE, deployed_models(plan | {"n_rounds": runs.n_rounds}, run))
