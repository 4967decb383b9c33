"""Several methods on the same federation beside each other: the table, learning curves, clusters, maps of models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fljax import tree
from fljax.run import plots, report
from fljax.run.columns import table
from fljax.run.headline import CLASSES, NUMBERS, measures_of

SCALE = (*CLASSES.scores, *NUMBERS.scores, "ari", "new_accuracy_macro", "new_accuracy_p10", "new_r2_micro")
COLUMNS = {
    "algorithm": "algorithm",
    "accuracy_macro": "macro",
    "accuracy_micro": "micro",
    "accuracy_p10": "p10",
    "r2_micro": "R2",
    "r2_macro": "mean R2",
    "r2_p10": "p10",
    "mae_macro": "mean\nabs. error",
    "best_accuracy": "best macro\n(round)",
    "best_r2": "best R2\n(round)",
    "new_accuracy_macro": "new\nmacro",
    "new_accuracy_p10": "new\np10",
    "new_r2_micro": "new R2",
    "ari": "ARI",
    "n_clusters": "clusters",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "simulated_seconds": "simulated\nseconds",
    "seconds": "run s",
    "compile_seconds": "compile s",
}
SPARED = (
    "best_accuracy",
    "best_r2",
    "megabytes_down",
    "n_clusters",
    "accuracy_micro",
    "compile_seconds",
    "seconds",
    "megabytes_up",
)
"""Columns that a terminal too narrow for all goes without, the first of these first; summary.csv has them."""
TITLE = "Accuracy (of a regression R2) on the clients' own test examples; megabytes a client"


def as_table(rows: Sequence[report.Row], width: int) -> str:
    """The final table for a terminal of ``width`` characters; the best of each accuracy is bold.

    Columns that nobody fills are left out, and of `SPARED` as many as do not fit.
    """
    shown = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    best = {
        name: max((value for row in rows if isinstance(value := row.get(name), float)), default=None) for name in SCALE
    }

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
    value = row.get(name)
    if value is None:
        return "-"
    if name in (CLASSES.best, NUMBERS.best):
        return f"{value:.4f} ({row['best_round']})"
    if name in SCALE and name != "ari":
        return f"{value:.4f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def save_figures(outcomes: Mapping[str, report.Outcome], group: np.ndarray | None, folder: Path) -> None:
    """Learning curves of all methods, over simulated time too where clients have a clock; clusters by group and the map
    of models of each that has them."""
    folder.mkdir(exist_ok=True)
    metrics = {name: outcome.metrics for name, outcome in outcomes.items()}
    measures = measures_of(next(iter(metrics.values())))
    for name, ylabel, file in (
        (None, f"test {measures.word}", "learning_curves"),
        ("test_loss", "test loss", "losses"),
    ):
        curves = {method: report.curve(own, name) for method, own in metrics.items()}
        plots.save(plots.learning_curves(curves, ylabel), folder / f"{file}.png", pdf=True)
    timed = {name: own for name, own in metrics.items() if "simulated_seconds" in own}
    if timed:
        curves = {name: report.curve(own, seconds=True) for name, own in timed.items()}
        figure = plots.learning_curves(curves, f"test {measures.word}", xlabel="simulated seconds")
        plots.save(figure, folder / "simulated_time.png", pdf=True)
    of_clients = f"client_{measures.scores[0].partition('_')[0]}"
    spread = {name: np.asarray(own[of_clients][-1]) for name, own in metrics.items()}
    plots.save(plots.over_clients(spread, f"client's test {measures.word}"), folder / "clients.png", pdf=True)
    for name, outcome in outcomes.items():
        label = report.final_label(outcome)
        if label is not None:
            over_time = report.labels_over_time(outcome)
            plots.save(plots.clusters_over_time(over_time, name), folder / f"clusters_over_time_{name}.png")
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
