"""Executes the job of `fljax run`: trains every method, prints the table, writes the results folder."""

import importlib
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fljax.checks.arguments import check_patience
from fljax.cli.interrupts import saying_how_to_go_on
from fljax.devices.mesh import over_devices, replicated
from fljax.drift.stages import at, changes
from fljax.files import save_arrays
from fljax.folder.writer import only_run
from fljax.jobs import config
from fljax.jobs.assemble import devices_of, make_methods, method_named, planned
from fljax.jobs.going_on import begun_with, check_going_on
from fljax.jobs.job import Job
from fljax.jobs.layers import MAY_CHANGE
from fljax.jobs.own_data import client_names, save_names, scaling
from fljax.jobs.parts import make_model, make_parts
from fljax.jobs.remarks import headline, noises
from fljax.metrics.best_round import best_round, judged_by
from fljax.metrics.evaluate import evaluate
from fljax.report import summary
from fljax.report.changes import after_changes, change_rows, changes_table
from fljax.report.comparison import as_table, left_out, title
from fljax.results.result import NEW_TESTS
from fljax.run.arguments import check_ahead
from fljax.run.chunk import spread
from fljax.run.compile_ahead import Ahead
from fljax.run.models_on_disk import FILE, OF_NEW, save_models
from fljax.run.newcomers import new_client_models
from fljax.run.one_round import as_traced, last_models
from fljax.run.progress import BarProgress
from fljax.run.train import Run, train
from fljax.types import Federation, ModelTable, State


def execute(job: Job) -> list[summary.Row]:
    """Trains every method, prints the table and writes the results folder."""
    federation, newcomers = make_parts(job)
    model = make_model(job, federation)
    scales = scaling(federation, job.run.task, job.run.normalize)
    methods, federation = make_methods(job, model, federation)
    check_patience(job.run.patience, federation)
    devices = devices_of(job, model, federation, begun_with(job, [job.folder] if job.folder else []))
    with over_devices(devices) as mesh:
        federation = spread(federation, mesh)
    runs = {name: planned(job, method, federation, name, devices) for name, method in methods.items()}
    check_each(runs)
    folder = job.folder or config.new_folder()
    with only_run(folder) as writable:
        check_going_on(job, runs, folder)
        config.write("run", config.as_toml(job), job, folder, MAY_CHANGE, writable)
        if writable:
            save_names(job, folder, scales)
        print("\n".join([headline(job, federation, model, newcomers, devices), *noises(job, runs)]))
        outcomes = run_all(job, runs, newcomers, folder, writable)
        return show_results(job, outcomes, federation, folder, writable)


def check_each(runs: dict[str, dict[str, Any]]) -> None:
    """Raises ValueError or MemoryError if a method cannot run as planned; of several methods, it is named."""
    for name, run in runs.items():
        with method_named(name, runs):
            check_ahead(**run)


def run_all(
    job: Job, runs: dict[str, dict[str, Any]], newcomers: Federation | None, folder: Path, writable: bool
) -> dict[str, summary.Outcome]:
    """Runs the methods one after another, each into its own part of the folder, and returns their outcomes."""
    runs = {name: run | {"folder": folder / name, "compile": job.run.compile} for name, run in runs.items()}
    outcomes, ahead = {}, Ahead(runs)
    if writable:  # matplotlib is needed at the end; its import takes a second, and Python is idle while XLA compiles
        threading.Thread(target=importlib.import_module, args=("fljax.report.figures",), daemon=True).start()
    with saying_how_to_go_on("run", folder):
        for name, run in runs.items():
            extra_arguments = {"force_resume": job.run.force_resume, "patience": job.run.patience}
            outcomes[name], state = run_one(name, run | extra_arguments, ahead)
            say_where_it_ended(name, outcomes[name], job.run.rounds)
            n_rounds = len(outcomes[name].metrics["loss"])
            if writable:
                save_models(folder / name / FILE, outcomes[name].deployed, n_rounds)
            if newcomers is not None:
                models, new_tests = meet_newcomers(job, run, state, newcomers)
                if writable:
                    save_arrays(folder / name / NEW_TESTS, new_tests)
                    save_models(folder / name / OF_NEW, models, n_rounds)  # last: it holds the number of rounds of both
                outcomes[name] = outcomes[name]._replace(newcomers=new_tests)
    return outcomes


def show_results(
    job: Job, outcomes: dict[str, summary.Outcome], federation: Federation, folder: Path, writable: bool
) -> list[summary.Row]:
    """Prints the table, and writes it and the figures if the folder is ``writable``."""
    rounds, federation = changes(federation), at(federation, job.run.rounds - 1)
    group = None if federation.group is None else np.asarray(federation.group)
    rows = summary.final_table(outcomes, group)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a file has no width
    notes = left_out({name: [outcome.metrics] for name, outcome in outcomes.items()})
    print("\n".join([title(rows, job.run.common_test), as_table(rows, width), *notes]))
    costs = {name: after_changes(outcome.metrics, rounds) for name, outcome in outcomes.items()}
    if any(costs.values()):
        print(f"\nCost of the changes\n{changes_table(costs)}")
    if not writable:
        print(f"{folder} is not writable: its summary.csv and plots/ are unchanged")
        return rows
    summary.save_table(folder / "summary.csv", rows, read_again=True)
    if any(costs.values()):
        summary.save_table(folder / "changes.csv", change_rows(costs))
    clients = summary.client_table(outcomes, federation, client_names(job).training)
    summary.save_table(folder / "clients.csv", clients, read_again=True)
    from fljax.report.figures import save_figures  # already imported in the background, see `run_all`

    save_figures(outcomes, group, folder / "plots", common_test=job.run.common_test)
    print(f"results in {folder}: config.toml, summary.csv, clients.csv, plots/, one folder per method")
    return rows


def run_one(name: str, planned: dict[str, Any], ahead: Ahead) -> tuple[summary.Outcome, State]:
    """Trains one method into its folder, resuming an interrupted run; returns the outcome and the final state."""
    bar = BarProgress(name)
    try:
        bar.prepare()
        compiled = ahead.wait(name)
        run = train(**planned, progress=bar, compiled_ahead=compiled)
    except BaseException:
        bar.stop()  # shows the terminal's cursor again
        raise
    models = deployed_models(planned, run)
    return summary.Outcome(run.metrics, models, run.seconds, run.compile_seconds), run.state


def say_where_it_ended(name: str, outcome: summary.Outcome, n_rounds: int) -> None:
    """Prints, for a run that early stopping ended, its best round."""
    n_rounds_made, best = len(outcome.metrics["loss"]), best_round(outcome.metrics)
    if n_rounds_made < n_rounds:
        reason = "no test was finite" if best is None else f"{judged_by(outcome.metrics)} was best after {best + 1}"
        print(f"{name} ended after {n_rounds_made} of {n_rounds} rounds: {reason}")


def deployed_models(planned: dict[str, Any], run: Run) -> ModelTable:
    """The models of the clients at the end of a run."""
    data = at(planned["federation"], len(run.metrics["loss"]) - 1).train
    deploy, arguments = planned["algorithm"].deploy, (planned["key"], as_traced(planned["hyper"]), run.state, data)
    if run.compiler is None:
        return last_models(deploy, *arguments)
    return run.compiler.program("deploy", last_models, (deploy,), *arguments).call(*arguments)


def meet_newcomers(
    job: Job, planned: dict[str, Any], state: State, newcomers: Federation
) -> tuple[ModelTable, dict[str, np.ndarray]]:
    """The models of new clients, and their test metrics, with their true groups if known."""
    with over_devices(planned["devices"]) as mesh:
        state, newcomers, key = replicated((state, newcomers, jax.random.key(job.run.seed)), mesh)
        algorithm, hyper, n_rounds = planned["algorithm"], planned["hyper"], job.run.new_client_rounds
        models = new_client_models(algorithm, hyper, state, newcomers, key, n_rounds=n_rounds)
        metrics = evaluate(algorithm.predict, models, newcomers.test, algorithm.loss)
    return models, jax.device_get(metrics if newcomers.group is None else metrics | {"group": newcomers.group})
