"""Figures of several methods on the same federation: their curves, their clusters, maps of their models."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fljax import tree
from fljax.run import plots, report


def save_figures(outcomes: Mapping[str, report.Outcome], group: np.ndarray | None, folder: Path) -> None:
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
