"""Federations that change over the rounds, on real images: what a change costs FedAvg, personal and clustered methods.

    python experiments/drift.py --smoke               # two methods, one drift, eight rounds: a minute or two
    python experiments/drift.py                       # both tables and the figure, smoke scale: digits, 12 clients
    python experiments/drift.py changes --seeds 3
    python experiments/drift.py --scale paper

``changes``: each drift under each method: accuracy before and after the change, regret (what is missing to the accuracy
before it, summed over the rounds that follow), rounds until it is made good, agreement of the clusters with the groups
before, after and at the end; and the accuracy over the rounds as a figure. ``returning``: labels that are swapped and
swapped back, again and again: whether a method remembers what it knew. Half of the clients change.

Smoke: 1,797 digits of 8 x 8 pixels turned in one of three ways, an MLP 64-32-10, 24 rounds of 2 epochs. Paper:
MNIST (FLJAX_DATA names its folder), 20 clients, an MLP 784-64-10, 60 rounds of 5 epochs, 3 seeds.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from lines import keep_numbers
from reporting import Scale, main
from tables import Row, show, spread

import fljax
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.drift import DRIFTS, drifting
from fljax.models import mlp
from fljax.report import plots
from fljax.report.changes import Change, after_changes
from fljax.types import Federation, Model, Work

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "ditto": {},
    "ifca": {"n_clusters": 4},
    "fesem": {"n_clusters": 4},
    "standalone": {},
    "dpsgd": {"graph": "ring"},
}
QUICK = ("fedavg", "ditto", "ifca")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "swap_labels": {"classes": (3, 8)},
    "rotate_images": {"degrees": 90.0},
    "move": {},
    "arrive": {},
    "leave": {},
}
QUICK_KINDS = ("swap_labels", "move", "arrive")
SHARE = 0.5


@cache
def federation(paper: bool, seed: int) -> Federation:
    """Real images turned in one of three ways, a way a group."""
    train, test = load("mnist" if paper else "digits")
    return fljax.PARTITIONS["rotated_groups"](train, test, 20 if paper else 12, n_groups=3, seed=seed)


def network(scale: Scale) -> Model:
    """An MLP for the images."""
    first = federation(scale.paper, 0)
    return mlp(first.train.pool.x.shape[1:], (scale.pick(32, 64),), n_classes(first))


def measured(scale: Scale, name: str, kind: str, schedule: Mapping[str, int]) -> list[Mapping[str, np.ndarray]]:
    """The metrics of one method under one drift, a run a seed; who changes is drawn by the seed."""
    method = fljax.compose(name)
    algorithm = method(network(scale), Work(scale.pick(2, 5), 32), **METHODS[name])
    seed_metrics = []
    for seed in range(scale.n_seeds):
        drift = DRIFTS[kind](**KINDS[kind], **schedule, share=SHARE, seed=seed)
        changing = drifting(federation(scale.paper, seed), drift)
        arguments = (algorithm, method.Hyper(lr=scale.pick(0.3, 0.1)), changing, jax.random.key(seed), n_rounds(scale))
        seed_metrics.append(jax.device_get(fljax.simulate(*arguments)[1]))
    return seed_metrics


def n_rounds(scale: Scale) -> int:
    """Rounds of a run."""
    return scale.rounds or scale.pick(24, 60, brief=8)


def row_of(
    name: str, kind: str, seed_changes: Sequence[Change], seed_metrics: Sequence[Mapping[str, np.ndarray]]
) -> Row:
    """One line of a table: the means over seeds of what one change costs."""
    row: Row = {"drift": kind, "method": name, "change in round": seed_changes[0].round}
    for field in ("before", "after", "regret", "ari_before", "ari_after", "ari_end"):
        if getattr(seed_changes[0], field) is not None:
            row[field.replace("_", " ")] = spread(getattr(change, field) for change in seed_changes)
    recovered = [change.recovered for change in seed_changes if change.recovered is not None]
    row["rounds to recover"] = (
        f"{np.mean(recovered):.1f} ({len(recovered)} of {len(seed_changes)})" if recovered else "-"
    )
    return row | {"end": spread(metrics["accuracy_macro"][-1] for metrics in seed_metrics)}


def keep(scale: Scale, table: str, kind: str, name: str, seed_changes: Sequence[Change]) -> None:
    """A line of results for every number of every seed."""
    fields = ("before", "after", "regret", "ari_before", "ari_after", "ari_end")
    numbers = {
        (name, f"{kind}, round {change.round}", seed, field): float(getattr(change, field))
        for seed, change in enumerate(seed_changes)
        for field in fields
        if getattr(change, field) is not None
    }
    place = ("drift", table, "mnist" if scale.paper else "digits")
    keep_numbers(scale, place, numbers, (n_rounds(scale), scale.pick(24, 60, brief=8)), share=SHARE)


def methods(scale: Scale) -> tuple[str, ...]:
    """Names of the methods that are run at a scale."""
    return scale.pick(QUICK, tuple(METHODS), brief=("fedavg", "ifca"))


def rows_and_curves(
    scale: Scale, table: str, kinds: Sequence[str], schedule: Mapping[str, int]
) -> tuple[list[Row], dict]:
    """A line for every drift, method and change; and the mean accuracy over the rounds of each."""
    rows, curves = [], {}
    change_rounds = tuple(schedule["start"] + schedule.get("every", 1) * c for c in range(schedule.get("changes", 1)))
    for kind in kinds:
        for name in scale.chosen(dict.fromkeys(methods(scale))):
            seed_metrics = measured(scale, name, kind, schedule)
            costs = [after_changes(metrics, change_rounds) for metrics in seed_metrics]
            for seed_changes in zip(*costs, strict=True):
                rows.append(row_of(name, kind, seed_changes, seed_metrics))
                keep(scale, table, kind, name, seed_changes)
            accuracy = np.mean([metrics["accuracy_macro"] for metrics in seed_metrics], axis=0)
            curves[f"{name}, {kind}"] = (np.arange(1, len(accuracy) + 1), accuracy)
    return rows, curves


def changes(scale: Scale) -> None:
    """One change half way, of every kind."""
    rows, curves = rows_and_curves(
        scale, "changes", scale.pick(QUICK_KINDS, tuple(KINDS), brief=QUICK_KINDS[:1]), {"start": n_rounds(scale) // 2}
    )
    figure = plots.learning_curves(curves, "test accuracy")
    show(scale, "changes", "A change half way: half of the clients", rows, figure)


def returning(scale: Scale) -> None:
    """Labels that are swapped and swapped back."""
    period = n_rounds(scale) // 4
    rows, curves = rows_and_curves(
        scale, "returning", ("swap_labels",), {"start": period, "changes": 3, "every": period}
    )
    figure = plots.learning_curves(curves, "test accuracy")
    show(scale, "returning", "Labels swapped, swapped back, and swapped again", rows, figure)


if __name__ == "__main__":
    main(__doc__ or "", {"changes": changes, "returning": returning}, (1, 3), only=methods)
