"""`fljax sweep`: one method under many numbers and seeds, then the table, the best point and the figures."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fljax.cli import config
from fljax.cli.assemble import make_algorithm, make_model, make_parts
from fljax.cli.axes import SWEEP, SweepJob, read_sweep
from fljax.cli.outer import NOT_SWEPT
from fljax.cli.run import cache_compilations, headline, say_stopped
from fljax.cli.settings import show_help
from fljax.run import plots, report
from fljax.run.mesh import use_all_cores
from fljax.run.sweep import figures
from fljax.run.sweep.points import count_points, varied
from fljax.run.sweep.search import Found, on_validation, over_settings, search
from fljax.run.sweep.table import Spread, best, by_point, tidy

HELP = """Runs one method under many numbers and seeds, as one compiled program, and finds the best.

Several values of a number are a grid: --lr 0.01 0.1. A range is lin:LOW:HIGH:N or log:LOW:HIGH:N; with --draws N,
lin:LOW:HIGH or log:LOW:HIGH is drawn from. Static settings (what changes the program: epochs, n-clusters, the
model's layers) go to the outer loop, one compilation each: --outer.epochs 1 5, --outer.model.hidden "64" "128 64"."""

SHOWN = 10
"""Points in the table on the screen; all are in table.csv."""


def main(arguments: Sequence[str]) -> None:
    """Runs the sweep that ``arguments`` describe, on all cores.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    help_asked = "--help" in arguments or "-h" in arguments
    job = read_sweep([argument for argument in arguments if argument not in ("--help", "-h")], check=not help_asked)
    if help_asked:
        own = {name: parameter.default for name, parameter in SWEEP.items()}
        schema = job.job.schema | {"": job.job.schema[""] | SWEEP}
        schema[""] = {name: parameter for name, parameter in schema[""].items() if name not in NOT_SWEPT}
        show_help("fljax sweep", HELP, schema, job.job.settings | {"": job.job.settings[""] | own})
        return
    use_all_cores()
    cache_compilations()
    execute(job, Console())


def execute(job: SweepJob, console: Console) -> list[report.Row]:
    """Makes every run, shows the table and writes the results folder."""
    folder = job.job.folder or Path("results") / time.strftime("%Y-%m-%d_%H-%M-%S")
    config.write_sweep(job, folder)
    say = lambda text: console.print(text, highlight=False)  # noqa: E731
    hypers = job.hypers(job.job.settings)
    say(f"{count_points(hypers)} points x {job.own['seeds']} seeds of {job.name}")
    try:
        found = over_settings(
            lambda **setting: _one_setting(job, setting, folder, console), say if job.outer else _nothing, **job.outer
        )
    except KeyboardInterrupt:
        say_stopped(f"sweep --folder {shlex.quote(str(folder))} --resume", console)
        raise
    rows = [
        row
        for setting, result in found
        for row in tidy(hypers, result.metrics, result.rounds, **{name: str(v) for name, v in setting.items()})
    ]
    report.save_table(folder / "table.csv", rows)
    spreads = by_point(rows, job.own["metric"])
    console.print(as_table(spreads, job.own["metric"]))
    save_figures(hypers, job.own["metric"], found, rows, folder / "plots")
    say(verdict(rows, job.own["metric"]))
    say(f"results in [bold]{folder}[/]: config.toml, table.csv, plots/")
    return rows


def _one_setting(job: SweepJob, setting: dict[str, Any], folder: Path, console: Console) -> Found:
    """The search under one static setting, into its own part of the folder."""
    settings = job.settings_with(setting)
    federation, _ = make_parts(settings)
    model = make_model(settings, federation)
    algorithm, _ = make_algorithm(job.name, settings, model)
    own, run = job.own, settings[""]
    if own["judge"] == "val":
        federation = on_validation(federation)
    console.print(headline(job.job._replace(settings=settings), federation, model), highlight=False)
    named = "-".join(f"{name}={value}".replace(" ", "_").replace("/", "_") for name, value in setting.items())
    with Progress(console=console) as progress:
        task = progress.add_task("runs", total=None)
        return search(
            algorithm,
            job.hypers(settings),
            federation,
            jax.random.key(run["seed"]),
            own["seeds"],
            run["rounds"],
            halving=own["halving"],
            metric=own["metric"],
            folder=folder / (named or "runs"),
            participation=run["participation"],
            evaluate_every=run["evaluate_every"],
            dropout=run["dropout"],
            at_once=own["runs_at_once"],
            tell=lambda done, n: progress.update(task, completed=done, total=n),
        )


def as_table(spreads: Sequence[Spread], metric: str) -> Table:
    """The best points, best first, with their intervals."""
    low = metric == "test_loss"
    order = sorted(spreads, key=lambda s: (s.rounds, -np.inf if np.isnan(s.mean) else -s.mean if low else s.mean))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (*spreads[0].point, "rounds", metric, "95 % interval", "diverged"):
        table.add_column(name, justify="right")
    for spread in order[::-1][:SHOWN]:
        numbers = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in spread.point.values()]
        interval = "-" if np.isnan(spread.low) else f"{spread.low:.4f} to {spread.high:.4f}"
        mean = "-" if np.isnan(spread.mean) else f"{spread.mean:.4f}"
        table.add_row(*numbers, str(spread.rounds), mean, interval, f"{spread.n_diverged} of {spread.n_seeds}")
    return table


def verdict(rows: Sequence[report.Row], metric: str) -> str:
    """The best point in a line."""
    chosen = best(rows, metric)
    point = ", ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in chosen.point.items())
    interval = (
        "" if np.isnan(chosen.low) else f" (95 % of {chosen.n_seeds} seeds: {chosen.low:.4f} to {chosen.high:.4f})"
    )
    return f"best: {point or 'the only point'}: {metric} {chosen.mean:.4f}{interval}"


def save_figures(hypers: Any, metric: str, found: Sequence[tuple], rows: Sequence[report.Row], folder: Path) -> None:
    """Curves of the best points of each setting, and how the metric depends on one or two of the numbers."""
    folder.mkdir(exist_ok=True)
    names = varied(hypers)
    for i, (setting, result) in enumerate(found):
        end = f"_{i}" if len(found) > 1 else ""
        title = ", ".join(f"{name}={value}" for name, value in setting.items())
        plots.save(figures.curves(hypers, result.metrics, metric), folder / f"curves{end}.png")
        own = [row for row in rows if all(row[name] == str(value) for name, value in setting.items())]
        if len(names) >= 2:
            plots.save(figures.heat_map(own, names[0], names[1], metric, title), folder / f"heat_map{end}.png")
        for name in names:
            plots.save(figures.response(own, name, metric, title), folder / f"{name}{end}.png")


def _nothing(text: str) -> None:
    """Says nothing."""
