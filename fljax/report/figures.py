"""The figures of a comparison: learning curves, clients, clusters over rounds and by group, maps of models."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fljax import tree
from fljax.metrics.agreement import cross_table
from fljax.metrics.headline import measures_of
from fljax.report import plots, summary

ON_ONE_SET = " on one test set for all"
"""End of an axis's label if all clients are tested on one set."""


def save_figures(
    outcomes: Mapping[str, summary.Outcome],
    group: np.ndarray | None,
    folder: Path,
    *,
    pdf: bool = False,
    common_test: bool = False,
) -> None:
    """Saves learning curves and clients of all methods, and for each method that has them its clusters by group and its
    map of models. With ``common_test`` the axes say that all clients are tested on one set."""
    folder.mkdir(parents=True, exist_ok=True)
    _save_curves(outcomes, folder, pdf, ON_ONE_SET if common_test else "")
    for name, outcome in outcomes.items():
        label = summary.final_label(outcome)
        if label is not None:
            over_time = summary.labels_over_time(outcome)
            plots.save(plots.clusters_over_time(over_time, name), folder / f"clusters_over_time_{name}.png", pdf=pdf)
        if label is not None and group is not None:
            counts = cross_table(label, group)
            plots.save(plots.cluster_table(counts, name), folder / f"clusters_{name}.png", pdf=pdf)
        if tree.n_rows(outcome.deployed.params) > 1 and summary.finite(outcome.deployed):
            figure = model_map(name, outcome, label, group)
            plots.save(figure, folder / f"models_{name}.png", pdf=pdf)


def _save_curves(outcomes: Mapping[str, summary.Outcome], folder: Path, pdf: bool, tests: str) -> None:
    """Saves the figures that show all methods; also over simulated time if clients have a clock. ``tests`` is what they
    are tested on, if not on their own examples."""
    kind = "" if tests else "test "
    metrics = {name: outcome.metrics for name, outcome in outcomes.items()}
    measures = measures_of(next(iter(metrics.values())))
    for name, ylabel, file in (
        (None, f"{kind}{measures.word}{tests}", "learning_curves"),
        ("test_loss", f"{kind}loss{tests}", "losses"),
    ):
        curves = {method: summary.curve(run, name) for method, run in metrics.items()}
        plots.save(plots.learning_curves(curves, ylabel), folder / f"{file}.png", pdf=pdf)
    with_clock = {name: run for name, run in metrics.items() if "simulated_seconds" in run}
    if with_clock:
        curves = {name: summary.curve(run, seconds=True) for name, run in with_clock.items()}
        figure = plots.learning_curves(curves, f"{kind}{measures.word}{tests}", xlabel="simulated seconds")
        plots.save(figure, folder / "simulated_time.png", pdf=pdf)
    client_metric = f"client_{measures.kind}"
    last_tests = {name: np.asarray(run[client_metric][-1]) for name, run in metrics.items()}
    figure = plots.over_clients(last_tests, f"client's {kind}{measures.word}{tests}")
    plots.save(figure, folder / "clients.png", pdf=pdf)


def model_map(name: str, outcome: summary.Outcome, label: np.ndarray | None, group: np.ndarray | None) -> plots.Figure:
    """Deployed models coloured by cluster; by true group for a method without clusters."""
    coordinates, share = summary.principal_components(outcome.deployed)
    title = f"{name}: the clients' models"
    if label is not None:
        return plots.model_map(coordinates, share, label, group, title)
    color = np.full(len(coordinates), -1) if group is None else group
    return plots.model_map(coordinates, share, color, group, title, named="group")
