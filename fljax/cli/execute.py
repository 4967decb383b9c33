"""What `fljax run` does once its job is read: trains every method, shows the table, writes the results folder."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fljax import tree
from fljax.cli import config
from fljax.cli.assemble import make_algorithm, make_model, make_parts, make_sampling
from fljax.cli.job import MAY_CHANGE, Job
from fljax.cli.text import table
from fljax.run import report
from fljax.run.checkpoint import rounds_done, save_arrays
from fljax.run.comparison import save_figures
from fljax.run.mesh import over_devices, replicated
from fljax.run.newcomers import evaluate_new_clients
from fljax.run.progress import BarProgress
from fljax.run.simulate import split_key
from fljax.run.train import train
from fljax.types import Algorithm, Federation, Model, State

SCALE = (*report.ACCURACIES, "ari", "new_accuracy_macro", "new_accuracy_p10")
COLUMNS = {
    "algorithm": "algorithm",
    "accuracy_macro": "macro",
    "accuracy_micro": "micro",
    "accuracy_p10": "p10",
    "best_accuracy": "best macro\n(round)",
    "new_accuracy_macro": "new\nmacro",
    "new_accuracy_p10": "new\np10",
    "ari": "ARI",
    "n_clusters": "clusters",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "seconds": "seconds",
}
SPARED = ("best_accuracy", "megabytes_down", "n_clusters", "accuracy_micro", "seconds", "megabytes_up")
"""Columns that a terminal too narrow for all goes without, the first of these first; summary.csv has them."""
TITLE = "Accuracy on the clients' own test examples; megabytes a client"


def execute(job: Job) -> list[report.Row]:
    """Trains every method, shows the table and writes the results folder."""
    federation, newcomers = make_parts(job)
    model, sampling = make_model(job, federation), make_sampling(job)
    sampling.of(len(federation.train.size))
    methods = {name: make_algorithm(name, job, model) for name in job.methods}
    if job.folder is not None:
        check_rounds(job, job.folder)
    folder = job.folder or config.new_folder()
    config.write("run", config.as_toml(job), job, folder, MAY_CHANGE)
    print(headline(job, federation, model, newcomers))
    outcomes = {}
    try:
        for name, (algorithm, hyper) in methods.items():
            outcomes[name], state = run_one(job, name, algorithm, hyper, federation, folder)
            if newcomers is not None:
                new = evaluate_newcomers(job, algorithm, hyper, state, newcomers)
                save_arrays(folder / name / "new_clients.npz", new)
                outcomes[name] = outcomes[name]._replace(newcomers=new)
    except KeyboardInterrupt:
        say_stopped(f"run --folder {shlex.quote(str(folder))}")
        raise
    group = None if federation.group is None else np.asarray(federation.group)
    rows = report.final_table(outcomes, group)
    print(f"{TITLE}\n{as_table(rows, shutil.get_terminal_size().columns)}")
    report.save_table(folder / "summary.csv", rows)
    save_figures(outcomes, group, folder / "plots")
    print(f"results in {folder}: config.toml, summary.csv, plots/, a folder a method")
    return rows


def check_rounds(job: Job, folder: Path) -> None:
    """Raises ValueError where a method has made more rounds than the job has: they cannot be taken back."""
    for name in job.methods:
        if (done := rounds_done(folder / name)) > (wanted := job.run.rounds):
            raise ValueError(
                f"--rounds {wanted}: {folder} holds {done} rounds of {name}; choose --rounds {done} or another --folder"
            )


def say_stopped(command: str) -> None:
    """Says how to go on, in a line that can be copied."""
    print(f"stopped; fljax {command} goes on", flush=True)


def run_one(
    job: Job, name: str, algorithm: Algorithm, hyper: Any, federation: Federation, folder: Path
) -> tuple[report.Outcome, State]:
    """Trains one method into its folder, going on where an earlier run stopped; its final state too."""
    key, bar = jax.random.key(job.run.seed), BarProgress(name)
    try:
        run = train(
            algorithm,
            hyper,
            federation,
            key,
            job.run.rounds,
            folder=folder / name,
            sampling=make_sampling(job),
            evaluate_every=job.run.evaluate_every,
            dropout=job.run.dropout,
            progress=bar,
        )
    except BaseException:
        bar.stop()  # gives the terminal its cursor back
        raise
    deployed = jax.jit(algorithm.deploy)(split_key(key).deploy, hyper, run.state, federation.train)
    return report.Outcome(run.metrics, deployed, run.seconds), run.state


def evaluate_newcomers(
    job: Job, algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation
) -> dict[str, np.ndarray]:
    """Test metrics of clients that meet the trained server for the first time, with their true groups if known."""
    with over_devices() as mesh:
        state, newcomers, key = replicated((state, newcomers, jax.random.key(job.run.seed)), mesh)
        n_rounds = job.run.new_client_rounds
        metrics = evaluate_new_clients(algorithm, hyper, state, newcomers, key, n_rounds=n_rounds)
    return jax.device_get(metrics if newcomers.group is None else metrics | {"group": newcomers.group})


def headline(job: Job, federation: Federation, model: Model, newcomers: Federation | None = None) -> str:
    """The job in two lines."""
    run, size = job.run, np.asarray(federation.train.size)
    n_parameters = tree.size(jax.eval_shape(model.init, jax.random.key(0)))
    groups = "" if federation.group is None else f" in {len(np.unique(federation.group))} groups"
    sizes = f"{size.min()}" if size.min() == size.max() else f"{size.min()} to {size.max()}"
    new = "" if newcomers is None else f"; {len(newcomers.train.size)} new clients at the end"
    devices = f"{jax.device_count()} {jax.default_backend()} device" + "s" * (jax.device_count() > 1)
    return (
        f"{run.dataset}, {run.partition}: {len(size)} clients{groups}, {sizes} training examples each{new}\n"
        f"{run.model} of {n_parameters:,} parameters, {run.rounds} rounds on {devices}"
    )


def as_table(rows: Sequence[report.Row], width: int) -> str:
    """The final table for a terminal of ``width`` characters; the best of each accuracy is bold.

    Columns that nobody fills are left out, and of `SPARED` as many as do not fit.
    """
    shown = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    best = {name: max((value for row in rows if isinstance(value := row[name], float)), default=None) for name in SCALE}

    def drawn(bold: bool) -> str:
        cells = [[cell(name, row) for name in shown] for row in rows]
        scales = [(c, name) for c, name in enumerate(shown) if name in SCALE and bold and len(rows) > 1]
        top = {(r, c) for r, row in enumerate(rows) for c, name in scales if row[name] == best[name]}
        return table([COLUMNS[name] for name in shown], cells, top)

    for name in SPARED:
        if max(map(len, drawn(bold=False).split("\n"))) > width and name in shown:
            shown.remove(name)
    return drawn(bold=True)


def cell(name: str, row: report.Row) -> str:
    """One entry of the table, as text."""
    value = row[name]
    if value is None:
        return "-"
    if name == "best_accuracy":
        return f"{value:.4f} ({row['best_round']})"
    if name in SCALE and name != "ari":
        return f"{value:.4f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
