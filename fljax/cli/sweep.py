"""`fljax sweep`: one method under many numbers and seeds, then the table, the best point and the figures."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fljax.cli import asks_help, run
from fljax.cli.axes import NOT_SWEPT, SWEEP, SweepJob, read_sweep
from fljax.cli.text import show_help, table
from fljax.cli.words import words_of

if TYPE_CHECKING:
    from fljax.run.report import Row
    from fljax.run.sweep.search import Found
    from fljax.run.sweep.table import Spread

HELP = """Runs one method under many numbers and seeds, as one compiled program, and finds the best.

Several values of a number are a grid: --lr 0.01 0.1. A range is lin:LOW:HIGH:N or log:LOW:HIGH:N; with --draws N,
lin:LOW:HIGH or log:LOW:HIGH is drawn from. Static settings (what changes the program: epochs, n-clusters, the
model's layers) go to the outer loop, one compilation each: --outer.epochs 1 5, --outer.model.hidden "64" "128 64"."""

SHOWN = 10
"""Points in the table on the screen; all are in table.csv."""
SWEEP_MAY_CHANGE = ("data_folder", "new_client_rounds", "runs_at_once")
"""Settings with which a sweep may be gone on with: its rounds are laid out from the start."""


def main(arguments: Sequence[str]) -> None:
    """Runs the sweep that ``arguments`` describe, on all cores.

    Raises:
        ValueError: in one line, for everything that a user can correct.
    """
    arguments, help_asked = asks_help(arguments)
    sweep = read_sweep(arguments, check=not help_asked)
    if help_asked:
        schema = dict(sweep.job.schema)
        schema[""] = {name: one for name, one in (schema[""] | SWEEP).items() if name not in NOT_SWEPT}
        show_help("fljax sweep", HELP, schema, sweep.job.settings)
        return
    run.start()
    execute(sweep)


def execute(sweep: SweepJob) -> "list[Row]":
    """Makes every run, shows the table and writes the results folder."""
    from fljax.cli import config
    from fljax.cli.execute import say_stopped
    from fljax.run import report
    from fljax.run.sweep.points import count_points
    from fljax.run.sweep.search import over_settings
    from fljax.run.sweep.table import by_point, tidy

    job, own, hypers = sweep.job, sweep.own, sweep.hypers(sweep.job)
    for setting in sweep.outer:
        for value in sweep.outer[setting]:
            sweep.hypers(job.with_setting(setting, value))
    folder = job.folder or config.new_folder()
    if config.has_results(folder) and not own.resume:
        raise ValueError(f"{folder} holds results; add --resume to go on with them, or choose another --folder")
    config.write_document("sweep", as_toml(sweep), job, folder, SWEEP_MAY_CHANGE)
    print(f"{count_points(hypers)} points x {own.seeds} seeds of {sweep.name}")
    values = {label: sweep.outer[full] for label, full in sweep.labels.items()}
    try:
        found = over_settings(
            lambda **setting: _one_setting(sweep, setting, folder), print if values else _nothing, **values
        )
    except KeyboardInterrupt:
        say_stopped(f"sweep --folder {shlex.quote(str(folder))} --resume")
        raise
    rows = [
        row
        for setting, result in found
        for row in tidy(hypers, result.metrics, result.rounds, **{name: str(v) for name, v in setting.items()})
    ]
    report.save_table(folder / "table.csv", rows)
    print(as_table(by_point(rows, own.metric), own.metric))
    save_figures(hypers, own.metric, found, rows, folder / "plots")
    print(verdict(rows, own.metric))
    print(f"results in {folder}: config.toml, table.csv, plots/")
    return rows


def as_toml(sweep: SweepJob) -> dict[str, Any]:
    """The sweep's settings as a TOML document: words of what is varied."""
    from fljax.cli.config import as_toml

    document = as_toml(sweep.job)
    document[sweep.name] |= {name: axis.words for name, axis in sweep.axes.items()}
    outer = {full: [" ".join(words_of(value)) for value in values] for full, values in sweep.outer.items()}
    return document | ({"outer": outer} if outer else {})


def _one_setting(sweep: SweepJob, setting: dict[str, Any], folder: Path) -> "Found":
    """The search under one static setting, into its own part of the folder."""
    import jax
    from rich.progress import Progress

    from fljax.cli.assemble import make_algorithm, make_model, make_parts, make_sampling
    from fljax.cli.execute import headline
    from fljax.run.sweep.search import on_validation, search

    job, own = sweep.job_with(setting), sweep.own
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    algorithm, _ = make_algorithm(sweep.name, job, model)
    if own.judge == "val":
        federation = on_validation(federation)
    print(headline(job, federation, model))
    named = "-".join(f"{name}={value}".replace(" ", "_").replace("/", "_") for name, value in setting.items())
    with Progress() as progress:
        task = progress.add_task("runs", total=None)
        return search(
            algorithm,
            sweep.hypers(job),
            federation,
            jax.random.key(job.run.seed),
            own.seeds,
            job.run.rounds,
            halving=own.halving,
            metric=own.metric,
            folder=folder / (named or "runs"),
            sampling=make_sampling(job),
            evaluate_every=job.run.evaluate_every,
            dropout=job.run.dropout,
            at_once=own.runs_at_once,
            tell=lambda done, n: progress.update(task, completed=done, total=n),
        )


def as_table(spreads: "Sequence[Spread]", metric: str) -> str:
    """The best points, best first, with their intervals."""
    low = metric == "test_loss"

    def rank(spread: "Spread") -> tuple[int, float]:
        lost = spread.mean != spread.mean  # NaN
        return spread.rounds, float("-inf") if lost else -spread.mean if low else spread.mean

    rows = []
    for spread in sorted(spreads, key=rank)[::-1][:SHOWN]:
        numbers = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in spread.point.values()]
        interval = "-" if spread.low != spread.low else f"{spread.low:.4f} to {spread.high:.4f}"
        mean = "-" if spread.mean != spread.mean else f"{spread.mean:.4f}"
        rows.append([*numbers, str(spread.rounds), mean, interval, f"{spread.n_diverged} of {spread.n_seeds}"])
    return table([*spreads[0].point, "rounds", metric, "95 % interval", "diverged"], rows)


def verdict(rows: "Sequence[Row]", metric: str) -> str:
    """The best point in a line."""
    from fljax.run.sweep.table import best

    chosen = best(rows, metric)
    point = ", ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in chosen.point.items())
    seeds = f" (95 % of {chosen.n_seeds} seeds: {chosen.low:.4f} to {chosen.high:.4f})"
    return f"best: {point or 'the only point'}: {metric} {chosen.mean:.4f}{seeds if chosen.low == chosen.low else ''}"


def save_figures(hypers: Any, metric: str, found: Sequence[tuple], rows: "Sequence[Row]", folder: Path) -> None:
    """Curves of the best points of each setting, and how the metric depends on one or two of the numbers."""
    from fljax.run import plots
    from fljax.run.sweep import figures
    from fljax.run.sweep.points import varied

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
