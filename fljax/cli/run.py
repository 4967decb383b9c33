"""`fljax run`: the methods of a job one after another on the same federation, then the table and the figures."""

import os
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import platformdirs
from flax import serialization
from msgpack.exceptions import UnpackException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fljax import tree
from fljax.cli import config
from fljax.cli.assemble import make_algorithm, make_model, make_parts
from fljax.cli.job import FILES, Job, read_job
from fljax.cli.settings import show_help
from fljax.run import plots, report
from fljax.run.checkpoint import save_arrays
from fljax.run.mesh import over_devices, replicated, use_all_cores
from fljax.run.newcomers import evaluate_new_clients
from fljax.run.progress import BarProgress
from fljax.run.simulate import split_key
from fljax.run.train import train
from fljax.types import Algorithm, Federation, Model, State

HELP = """Runs methods of federated learning and compares them.

Without arguments: FedTSDP, LayerCFL, DC-PFL, FedCPS and FeSEM, FedAvg and training alone on the embedded digits, 12
clients in 4 hidden groups of rotation. Each argument changes one thing; the
defaults below are those of the methods, partition and model named (try `fljax run --partition dirichlet --help`). A
setting of several parts may be written short: --lr 0.1 sets it in every method, --ifca.lr 0.1 in one."""

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


def main(arguments: Sequence[str]) -> None:
    """Runs the job that ``arguments`` describe, on all cores.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    if "--help" in arguments or "-h" in arguments:
        job = read_job([argument for argument in arguments if argument not in ("--help", "-h")])
        schema = job.schema | {"": job.schema[""] | FILES}
        files = {name: parameter.default for name, parameter in FILES.items()}
        show_help("fljax run", HELP, schema, job.settings | {"": job.settings[""] | files})
        return
    use_all_cores()
    cache_compilations()
    execute(read_job(arguments), Console())


def execute(job: Job, console: Console) -> list[report.Row]:
    """Trains every method, shows the table and writes the results folder."""
    federation, newcomers = make_parts(job.settings)
    model = make_model(job.settings, federation)
    methods = {name: make_algorithm(name, job.settings, model) for name in job.settings[""]["algorithm"]}
    folder = job.folder or Path("results") / time.strftime("%Y-%m-%d_%H-%M-%S")
    check_rounds(job, folder)
    config.write(job, folder)
    console.print(headline(job, federation, model, newcomers), highlight=False)
    outcomes = {}
    try:
        for name, (algorithm, hyper) in methods.items():
            outcomes[name], state = run_one(job, name, algorithm, hyper, federation, folder, console)
            if newcomers is not None:
                new = evaluate_newcomers(job, algorithm, hyper, state, newcomers)
                save_arrays(folder / name / "new_clients.npz", new)
                outcomes[name] = outcomes[name]._replace(newcomers=new)
    except KeyboardInterrupt:
        say_stopped(f"run --folder {shlex.quote(str(folder))}", console)
        raise
    group = None if federation.group is None else np.asarray(federation.group)
    rows = report.final_table(outcomes, group)
    console.print(as_table(rows, console.width))
    report.save_table(folder / "summary.csv", rows)
    save_figures(outcomes, group, folder / "plots")
    console.print(f"results in [bold]{folder}[/]: config.toml, summary.csv, plots/, a folder a method", highlight=False)
    return rows


def check_rounds(job: Job, folder: Path) -> None:
    """Raises ValueError where a method has made more rounds than the job has: they cannot be taken back."""
    for name in job.settings[""]["algorithm"]:
        path = folder / name / "checkpoints" / "last.msgpack"
        try:
            done = serialization.msgpack_restore(path.read_bytes())["round"] if path.exists() else 0
        except (ValueError, KeyError, TypeError, UnpackException):
            continue  # the run says what is wrong with it
        if done > (wanted := job.settings[""]["rounds"]):
            raise ValueError(
                f"--rounds {wanted}: {folder} holds {done} rounds of {name}; choose --rounds {done} or another --folder"
            )


def say_stopped(command: str, console: Console) -> None:
    """Says how to go on, in a line that can be copied."""
    text = f"stopped; [bold]fljax {escape(command)}[/] goes on"
    console.print(text, highlight=False, soft_wrap=True)


def run_one(
    job: Job, name: str, algorithm: Algorithm, hyper: Any, federation: Federation, folder: Path, console: Console
) -> tuple[report.Outcome, State]:
    """Trains one method into its folder, going on where an earlier run stopped; its final state too."""
    own, key = job.settings[""], jax.random.key(job.settings[""]["seed"])
    bar = BarProgress(name, console)
    try:
        run = train(
            algorithm,
            hyper,
            federation,
            key,
            own["rounds"],
            folder=folder / name,
            participation=own["participation"],
            evaluate_every=own["evaluate_every"],
            dropout=own["dropout"],
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
    own = job.settings[""]
    with over_devices() as mesh:
        state, newcomers, key = replicated((state, newcomers, jax.random.key(own["seed"])), mesh)
        n_rounds = own["new_client_rounds"]
        metrics = evaluate_new_clients(algorithm, hyper, state, newcomers, key, n_rounds=n_rounds)
    return jax.device_get(metrics if newcomers.group is None else metrics | {"group": newcomers.group})


def cache_compilations() -> None:
    """Keeps compiled programs in the user's cache folder: the second run of a job starts at once.

    What JAX's own environment variables say of its cache stands.
    """
    folder = str(platformdirs.user_cache_path("fljax") / "compiled")
    for name, value in (("jax_compilation_cache_dir", folder), ("jax_persistent_cache_min_compile_time_secs", 0.0)):
        if name.upper() not in os.environ:
            jax.config.update(name, value)


def headline(job: Job, federation: Federation, model: Model, newcomers: Federation | None = None) -> str:
    """The job in two lines."""
    own, size = job.settings[""], np.asarray(federation.train.size)
    n_parameters = tree.size(jax.eval_shape(model.init, jax.random.key(0)))
    groups = "" if federation.group is None else f" in {len(np.unique(federation.group))} groups"
    sizes = f"{size.min()}" if size.min() == size.max() else f"{size.min()} to {size.max()}"
    new = "" if newcomers is None else f"; {len(newcomers.train.size)} new clients at the end"
    devices = f"{jax.device_count()} {jax.default_backend()} device" + "s" * (jax.device_count() > 1)
    return (
        f"{own['dataset']}, {own['partition']}: {len(size)} clients{groups}, {sizes} training examples each{new}\n"
        f"{own['model']} of {n_parameters:,} parameters, {own['rounds']} rounds on {devices}"
    )


def as_table(rows: Sequence[report.Row], width: int) -> Table:
    """The final table for a terminal of ``width`` characters; the best of each accuracy is bold.

    Columns that nobody fills are left out, and of `SPARED` as many as do not fit.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title=TITLE, title_justify="left")
    shown = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    for name in SPARED:
        if sum(map(partial(_column_width, rows), shown)) > width and name in shown:
            shown.remove(name)
    for name in shown:
        table.add_column(COLUMNS[name], justify="left" if name == "algorithm" else "right", no_wrap=True)
    best = {name: max((value for row in rows if isinstance(value := row[name], float)), default=None) for name in SCALE}
    for row in rows:
        cells = (cell(name, row) for name in shown)
        top = (len(rows) > 1 and name in SCALE and row[name] == best[name] for name in shown)
        table.add_row(*(f"[bold]{text}[/]" if bold else text for text, bold in zip(cells, top, strict=True)))
    return table


def _column_width(rows: Sequence[report.Row], name: str) -> int:
    return 1 + max(map(len, (*COLUMNS[name].split("\n"), *(cell(name, row) for row in rows))))


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


def save_figures(outcomes: dict[str, report.Outcome], group: np.ndarray | None, folder: Path) -> None:
    """Learning curves of all methods; clusters by group and the map of models of each that has them."""
    folder.mkdir(exist_ok=True)
    curves = {name: report.curve(outcome.metrics) for name, outcome in outcomes.items()}
    plots.save(plots.learning_curves(curves), folder / "learning_curves.png")
    for name, outcome in outcomes.items():
        label = report.final_label(outcome)
        if label is not None and group is not None:
            plots.save(plots.cluster_table(report.cross_table(label, group), name), folder / f"clusters_{name}.png")
        if tree.n_rows(outcome.deployed.params) > 1 and report.finite(outcome.deployed):
            figure = model_map(name, outcome, label, group)
            plots.save(figure, folder / f"models_{name}.png")


def model_map(name: str, outcome: report.Outcome, label: np.ndarray | None, group: np.ndarray | None) -> plots.Figure:
    """Deployed models coloured by cluster; by true group for a method without clusters."""
    coordinates, share = report.principal_components(outcome.deployed)
    title = f"{name}: the clients' models"
    if label is not None:
        return plots.model_map(coordinates, share, label, group, title)
    color = np.full(len(coordinates), -1) if group is None else group
    return plots.model_map(coordinates, share, color, group, title, named="group")
