"""The headline metrics of a run: those of classification or of regression."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax.metrics.cost import EDGE_TRAFFIC
from fljax.metrics.spread import OF
from fljax.models.scored import CONTRACT
from fljax.rounds.round_metrics import OF_CLIENT


class Measures(NamedTuple):
    """The headline metrics of a task; higher is better."""

    scores: tuple[str, ...]
    beside: str  # a further metric of the table
    best: str  # name of the best round's headline
    by_validation: str  # the headline in the round that is best on the validation split
    word: str  # on a progress bar and an axis

    @property
    def headline(self) -> str:
        """The first of the scores."""
        return self.scores[0]

    @property
    def kind(self) -> str:
        """The metric of a client whose mean the headline is: "accuracy" or "r2"."""
        return self.headline.partition("_")[0]


CLASSES = Measures(
    ("accuracy_macro", "accuracy_micro", "accuracy_p10"),
    "f1_macro",
    "best_accuracy",
    "accuracy_at_best_val",
    "accuracy",
)
NUMBERS = Measures(("r2_micro", "r2_macro", "r2_p10"), "mae_macro", "best_r2", "r2_at_best_val", "R2")

WORST = tuple(f"{kind}_worst10" for kind in OF)
NEW = "new_"
"""Prefix of the metrics of new clients."""
VALIDATION = "val_"
"""Prefix of the metrics of the validation split."""
MEANS = ("macro", "micro")
_AVERAGED = tuple(f"{kind}_{mean}" for kind in OF for mean in MEANS)
_ERRORS = tuple(f"{kind}_{mean}" for kind in ("mae", "mse", "rmse", "brier", "ece") for mean in MEANS)
_BY_VALIDATION = (CLASSES.by_validation, NUMBERS.by_validation)
HIGHER_IS_BETTER = (*_AVERAGED, "accuracy_p10", "r2_p10", *WORST, *_BY_VALIDATION, "ari")
_SPENT = ("rounds", "megabytes_up", "megabytes_down", *EDGE_TRAFFIC, "simulated_seconds")
LOWER_IS_BETTER = ("test_loss", *_ERRORS, "attack_success", *_SPENT)
"""In neither list: descriptive metrics such as ``churn``, a user's own scores, and standard deviations over clients,
which are also small if all clients do equally badly."""


def direction(measure: str) -> int:
    """1 if a higher value of a metric is better, -1 if a lower one is, else 0. A test of new clients, and one of the
    validation split, counts as the same test of the others."""
    measure = measure.removeprefix(NEW).removeprefix(VALIDATION)
    measure = "test_loss" if measure == "loss" else measure  # val_loss
    return (measure in HIGHER_IS_BETTER) - (measure in LOWER_IS_BETTER)


def limits(measure: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have, on any split; infinite if it has no such limit."""
    measure = measure.removeprefix(NEW).removeprefix(VALIDATION)
    kind = measure.partition("_")[0]
    if direction(measure) > 0:
        return {"r2": -math.inf, "ari": -0.5}.get(kind, 0.0), 1.0
    if direction(measure) < 0:
        return 0.0, {"brier": 2.0, "ece": 1.0, "attack": 1.0}.get(kind, math.inf)
    return -math.inf, math.inf


def scores_in(metrics: Collection[str]) -> list[str]:
    """The scores besides the metric contract (`fljax.scored`) that a run with these metrics, or a table's row, has."""
    scores = [name.removeprefix(OF_CLIENT) for name in metrics if name.startswith(OF_CLIENT)]
    return [name for name in scores if name not in CONTRACT]


def measures_of(metrics: Collection[str]) -> Measures:
    """The headline metrics of a run with these metrics."""
    return CLASSES if CLASSES.headline in metrics else NUMBERS


def named_measure(metrics: Mapping[str, Any], measure: str | None) -> str:
    """The name of a metric (rounds,): ``measure``; None: the headline.

    Raises:
        ValueError: the run has no such metric.
    """
    name = measures_of(metrics).headline if measure is None else measure
    if not isinstance(name, str) or name not in metrics or np.ndim(metrics[name]) != 1:
        raise ValueError(f"measure={name!r} is not a metric (rounds,) of the run; choose one such as accuracy_macro")
    return name
