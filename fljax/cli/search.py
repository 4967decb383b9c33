"""Executes `fljax sweep`: every run, the table, the best point and the figures."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
from rich.progress import Progress

from fljax.catalogue.words import in_words
from fljax.cli.interrupts import saying_how_to_go_on
from fljax.folder.writer import only_run
from fljax.jobs import config
from fljax.jobs.remarks import headline
from fljax.jobs.static_setting import Ready, checked, devices_for, ready_for
from fljax.jobs.sweep import SweepJob, folder_of
from fljax.jobs.sweep_settings import MAY_CHANGE, as_toml, as_words, may_grow
from fljax.report.summary import Row, save_table
from fljax.run.sweep.points import count_points
from fljax.run.sweep.points import rows as point_rows
from fljax.run.sweep.search import Found, over_settings, search
from fljax.run.sweep.shown import as_table, verdict_lines, what_to_report
from fljax.run.sweep.table import by_point, metric_of, of_split, tidy


def execute(sweep: SweepJob) -> list[Row]:
    """Carries out every run, prints the table and writes the results folder."""
    job, options, values = sweep.job, sweep.own, sweep.settings()
    ready: list[Ready] = []  # what runs under the first static setting, kept from its check

    def check(**setting: Any) -> None:
        prepared = checked(sweep, setting)
        if not ready:
            ready.append(prepared)

    over_settings(check, lambda text: None, **values)  # an error is raised before a folder is made
    folder = job.folder or config.new_folder()
    if config.begun_by(folder) and not options.resume:
        raise ValueError(f"{folder} holds results; add --resume to resume them, or choose another --folder")
    metric = metric_of(sweep.metric, ready[0].made.algorithm)
    with only_run(folder) as writable:
        may_change = MAY_CHANGE if options.halving else (*MAY_CHANGE, *may_grow(sweep, folder))
        record = cache(partial(config.write, "sweep", as_toml(sweep), job, folder, may_change, writable))
        if config.begun_by(folder):
            config.check(as_toml(sweep), job, folder, may_change)  # written after the search has accepted these runs
        else:
            record()

        def run(**setting: Any) -> Found:
            prepared = ready.pop() if ready else ready_for(sweep, setting)
            return _one_setting(sweep, prepared, folder / folder_of(setting), record)

        n_points, n_seeds = count_points(sweep.hypers(job)), options.seeds
        print(f"{n_points} point{'s' * (n_points > 1)} x {n_seeds} seed{'s' * (n_seeds > 1)} of {sweep.name}")
        with saying_how_to_go_on("sweep", folder, " --resume"):
            results = over_settings(run, print if values else lambda text: None, **values)
        return _results(sweep, results, folder, writable, metric)


def _results(
    sweep: SweepJob, results: Sequence[tuple[dict[str, Any], Found]], folder: Path, writable: bool, metric: str
) -> list[Row]:
    """Prints the ``results`` under each static setting, and writes it if the folder is ``writable``."""
    options, hypers = sweep.own, sweep.hypers(sweep.job)
    results = [({name: in_words(value) for name, value in setting.items()}, result) for setting, result in results]
    rows = [row for setting, result in results for row in tidy(hypers, result.metrics, result.rounds, **setting)]
    print(as_table(by_point(rows, metric), metric, options.judge).text)
    if writable:
        save_table(folder / "table.csv", [of_split(row, options.judge) for row in rows], read_again=True)
        from fljax.run.sweep.figures import save_all  # imports matplotlib, which is needed only here

        save_all(list(point_rows(hypers)), metric, results, rows, folder / "plots", options.judge)
        print(f"results in {folder}: config.toml, table.csv, plots/")
    else:
        print(f"{folder} is not writable: its table.csv and plots/ are unchanged")
    # Last, because it may raise, and the results are saved by then.
    for line in verdict_lines(rows, metric, options.judge, sweep.conditions, partial(as_words, sweep)):
        print(line)
    print(what_to_report(options.judge))
    return rows


def _one_setting(sweep: SweepJob, ready: Ready, folder: Path, record: Callable[[], None]) -> Found:
    """Searches under one static setting, into its own ``folder``; ``record`` writes the settings before the rounds."""
    options, (job, federation, model, (algorithm, _, sampling)) = sweep.own, ready
    devices = devices_for(sweep, ready, folder)
    print(headline(job, federation, model, devices=devices))
    with Progress() as progress:
        task = progress.add_task("rounds", total=None)

        def on_rounds(done: int, n: int) -> None:
            record()
            progress.update(task, completed=done, total=n)

        return search(
            algorithm,
            sweep.hypers(job),
            federation,
            jax.random.key(job.run.seed),
            options.seeds,
            job.run.rounds,
            halving=options.halving,
            metric=sweep.metric,
            folder=folder,
            sampling=sampling,
            evaluate_every=job.run.evaluate_every,
            dropout=job.run.dropout,
            at_once=options.runs_at_once,
            devices=devices,
            compile=job.run.compile,
            on_rounds=on_rounds,
            force_resume=job.run.force_resume,
        )
