"""What `fljax sweep` does once it is read: every run, the table, the best point and the figures."""

import shlex
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.progress import Progress

from fljax.catalogue.own import find
from fljax.catalogue.words import words_of, written
from fljax.cli.execute import headline, saying_how_to_go_on
from fljax.jobs import config
from fljax.jobs.assemble import Made, as_clients_are, devices_of, make_algorithm
from fljax.jobs.job import Job, read_job
from fljax.jobs.parts import make_model, make_parts
from fljax.jobs.settings import OUTER, of_toml, path
from fljax.jobs.sweep import SweepJob, folder_of
from fljax.numbers import replace
from fljax.run import report
from fljax.run.clocked import check_alike
from fljax.run.mesh import Device
from fljax.run.privacy import with_target
from fljax.run.report import Row
from fljax.run.sweep.halving import rungs
from fljax.run.sweep.parts import n_devices_of
from fljax.run.sweep.points import count_points
from fljax.run.sweep.points import rows as point_rows
from fljax.run.sweep.search import Found, check_ahead, on_validation, over_settings, search
from fljax.run.sweep.shown import as_table, verdict
from fljax.run.sweep.table import best, by_point, metric_of, of_split, tidy
from fljax.run.writer import only_run
from fljax.types import Federation, Model

MAY_CHANGE = ("data_folder", "new_client_rounds", "runs_at_once", "force_resume")
"""Settings with which a sweep may be gone on with: its rounds are laid out from the start."""


Ready = tuple[Job, Federation, Model, Made]
"""What runs under one static setting."""


def execute(sweep: SweepJob) -> list[Row]:
    """Makes every run, shows the table and writes the results folder."""
    job, own = sweep.job, sweep.own
    values = sweep.settings()
    # What cannot be made is refused before a folder is; the first of the settings is kept, as it comes first.
    ready: list = []
    over_settings(lambda **setting: _check(sweep, setting, ready), lambda text: None, **values)
    folder = job.folder or config.new_folder()
    if config.begun_by(folder) and not own.resume:
        raise ValueError(f"{folder} holds results; add --resume to go on with them, or choose another --folder")
    metric = metric_of(sweep.metric, ready[0][3].algorithm)
    with only_run(folder) as writable:
        may_change = MAY_CHANGE if own.halving else (*MAY_CHANGE, *may_grow(sweep, folder))
        record = cache(partial(config.write, "sweep", as_toml(sweep), job, folder, may_change, writable))
        if config.begun_by(folder):
            config.check(as_toml(sweep), job, folder, may_change)  # written once the search has let these runs go on
        else:
            record()
        return _results(sweep, values, folder, ready, writable, metric, record)


def may_grow(sweep: SweepJob, folder: Path) -> list[str]:
    """The settings of the sweep in ``folder`` that may be other ones, as long as all its runs are among the new ones.

    Of the seeds and the points the search itself sees that none is lacking.
    """
    stored = dict(of_toml(folder / "config.toml")) if config.begun_by(folder) else {}
    taken = {full.rpartition(".")[2] for full in sweep.outer}  # whose folders would be called otherwise
    points = [path(sweep.name, name) for name in sweep.axes if name not in taken]
    outer = {f"{OUTER}.{full}": set(words) for full, words in as_toml(sweep).get(OUTER, {}).items()}
    more = [name for name, words in outer.items() if name in stored and words >= set(stored[name])]
    return ["seeds", "draws", *points, *more]


def _results(
    sweep: SweepJob,
    values: dict[str, Any],
    folder: Path,
    ready: list,
    writable: bool,
    metric: str,
    record: Callable[[], None],
) -> list[Row]:
    own, hypers = sweep.own, sweep.hypers(sweep.job)
    n_points = count_points(hypers)
    print(f"{n_points} point{'s' * (n_points > 1)} x {own.seeds} seed{'s' * (own.seeds > 1)} of {sweep.name}")
    with saying_how_to_go_on("sweep", folder, " --resume"):
        say = print if values else lambda text: None
        found = over_settings(lambda **setting: _one_setting(sweep, setting, folder, ready, record), say, **values)
    rows = [
        row
        for setting, result in found
        for row in tidy(hypers, result.metrics, result.rounds, **{name: str(v) for name, v in setting.items()})
    ]
    print(as_table(by_point(rows, metric), metric, own.judge).text)
    if writable:
        report.save_table(folder / "table.csv", [of_split(row, own.judge) for row in rows], read_again=True)
        from fljax.run.sweep.figures import save_all  # with matplotlib, which nothing before it needs

        save_all(list(point_rows(hypers)), metric, found, rows, folder / "plots", own.judge)
        print(f"results in {folder}: config.toml, table.csv, plots/")
    else:
        print(f"{folder} cannot be written: its table.csv and plots/ are as they were")
    print(verdict(rows, metric, own.judge))  # last: it may refuse, and what was found is kept by then
    if chosen := as_words(sweep, best(rows, metric).point):
        print(f"its settings: {shlex.join(chosen)}")
    if own.judge != "test":
        print("fljax compare with the numbers of the best point gives its test accuracy, over seeds")
    return rows


def as_words(sweep: SweepJob, point: Row, said: Collection[str] = ()) -> list[str]:
    """A point as `fljax run` and `fljax compare` take it, every digit of its numbers: what one sweep hands on.

    With it stand the method's other settings that these commands would not have of themselves, and those ``said``.
    """
    words: list[str] = []
    usual = read_job(["--algorithm", *sweep.job.run.algorithm]).settings.get(sweep.name, {})
    for name, value in sweep.job.settings[sweep.name].items():
        full = path(sweep.name, name)
        is_said = name in said or value != usual.get(name, value)
        if name not in sweep.axes and full not in sweep.outer and is_said:
            words += [f"--{written(full)}", *words_of(value)]
    for label, value in point.items():
        if (full := sweep.labels.get(label)) is None:
            full, value = path(sweep.name, label), float(str(np.float32(str(value))))
        else:
            value = next(one for one in sweep.outer[full] if str(one) == str(value))
        words += [f"--{written(full)}", *words_of(value)]
    return words


def as_toml(sweep: SweepJob) -> dict[str, Any]:
    """The sweep's settings as a TOML document: words of what is varied."""
    document = config.as_toml(sweep.job)
    document[sweep.name] |= {name: axis.words for name, axis in sweep.axes.items()}
    outer = {full: [" ".join(words_of(value)) for value in values] for full, values in sweep.outer.items()}
    return document | ({"outer": outer} if outer else {})


def _made(sweep: SweepJob, setting: dict[str, Any]) -> Ready:
    """What runs under one static setting."""
    job = sweep.job_with(setting)
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    federation = on_validation(federation) if sweep.own.judge == "val" else federation
    _check_clock(sweep, job, model, federation)
    made, federation = as_clients_are(job, {sweep.name: make_algorithm(sweep.name, job, model)}, federation)
    return job, federation, model, made[sweep.name]


def _check_clock(sweep: SweepJob, job: Job, model: Model, federation: Federation) -> None:
    """Raises ValueError where rounds under a clock do not last alike at all points of the search."""
    if job.run.clock == "none":
        return
    hypers = sweep.hypers(job)
    swept = {name: np.asarray(getattr(hypers, name)) for name in sweep.axes}
    algorithm, hyper, sampling = make_algorithm(sweep.name, job, model)
    work, rounds = algorithm.about.work, job.run.rounds
    ends = {
        name: [with_target(replace(hyper, **{name: float(end)}), sampling, work, rounds) for end in (v.min(), v.max())]
        for name, v in swept.items()
    }
    check_alike(algorithm, ends, sampling, find("clock", job.run.clock)(**job.settings["clock"]), federation)


def _check(sweep: SweepJob, setting: dict[str, Any], ready: list) -> None:
    """Raises ValueError or MemoryError where the search under one static setting cannot be made."""
    made = job, federation, _, (algorithm, _, sampling) = _made(sweep, setting)
    key, draw = jax.random.key(job.run.seed), sampling.of(len(federation.train.size))
    hypers, own = sweep.hypers(job), sweep.own
    metric_of(sweep.metric, algorithm)
    rungs(count_points(hypers), job.run.rounds, own.halving, job.run.evaluate_every)
    devices = _devices(sweep, made, None)
    check_ahead(algorithm, hypers, federation, key, own.seeds, job.run.rounds, draw, own.runs_at_once, devices)
    if not ready:
        ready.append(made)


def _devices(sweep: SweepJob, made: Ready, folder: Path | None) -> Sequence[Device] | None:
    """The devices that the search under one static setting runs on, in its ``folder``; None: all."""
    job, federation, model, _ = made
    begun = [] if folder is None else [n_devices_of(folder)]
    return devices_of(job, model, federation, begun, count_points(sweep.hypers(job)) * sweep.own.seeds)


def _one_setting(
    sweep: SweepJob, setting: dict[str, Any], folder: Path, ready: list, record: Callable[[], None]
) -> Found:
    """The search under one static setting, into its own part of the folder; what runs may be ``ready``.

    ``record`` writes the settings, and is called before the first batch.
    """
    made = job, federation, model, (algorithm, _, sampling) = ready.pop() if ready else _made(sweep, setting)
    own, folder = sweep.own, folder / folder_of(setting)
    devices = _devices(sweep, made, folder)
    print(headline(job, federation, model, devices=devices))
    with Progress() as progress:
        task = progress.add_task("runs", total=None)

        def tell(done: int, n: int) -> None:
            record()
            progress.update(task, completed=done, total=n)

        return search(
            algorithm,
            sweep.hypers(job),
            federation,
            jax.random.key(job.run.seed),
            own.seeds,
            job.run.rounds,
            halving=own.halving,
            metric=sweep.metric,
            folder=folder,
            sampling=sampling,
            evaluate_every=job.run.evaluate_every,
            dropout=job.run.dropout,
            at_once=own.runs_at_once,
            devices=devices,
            compile=job.run.compile,
            tell=tell,
            force_resume=job.run.force_resume,
        )
