"""Which of a run's measures stand at the top of a table: those of a classification, or of a regression."""

from collections.abc import Collection
from typing import NamedTuple

from fljax.models.scored import CONTRACT
from fljax.rounds.round_metrics import OF_CLIENT
from fljax.run.spread import OF


class Measures(NamedTuple):
    """The measures of a kind of task, more being better."""

    scores: tuple[str, ...]  # the first is the headline
    beside: str  # another measure of the table
    best: str  # what the best round's headline is called
    by_validation: str  # the headline in the round that is best on the validation split
    word: str  # on a progress bar and an axis


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
"""How the names of measures of clients that never took part begin."""
VALIDATION = "val_"
"""How the names of metrics of the validation split begin."""
MEANS = ("macro", "micro")
_AVERAGED = tuple(f"{kind}_{mean}" for kind in OF for mean in MEANS)
_ERRORS = tuple(f"{kind}_{mean}" for kind in ("mae", "mse", "rmse", "brier", "ece") for mean in MEANS)
_BY_VALIDATION = (CLASSES.by_validation, NUMBERS.by_validation)
HIGHER_IS_BETTER = (*_AVERAGED, "accuracy_p10", "r2_p10", *WORST, *_BY_VALIDATION, "ari")
_SPENT = ("rounds", "megabytes_up", "megabytes_down", "simulated_seconds")
LOWER_IS_BETTER = ("test_loss", *_ERRORS, "attack_success", *_SPENT)
"""Of neither are numbers that tell how a run went, such as ``churn``, scores of the user's own, and deviations over
clients, which are least too where all fare equally badly."""


def direction(measure: str) -> int:
    """1 where more of a measure is better, -1 where less is; 0 where neither is meant. A test of new clients is as of
    the others."""
    measure = measure.removeprefix(NEW)
    return (measure in HIGHER_IS_BETTER) - (measure in LOWER_IS_BETTER)


def scores_in(metrics: Collection[str]) -> list[str]:
    """The scores besides the metric contract (`fljax.scored`) that a run with these metrics, or a table's row, has."""
    found = [name.removeprefix(OF_CLIENT) for name in metrics if name.startswith(OF_CLIENT)]
    return [name for name in found if name not in CONTRACT]


def measures_of(metrics: Collection[str]) -> Measures:
    """The measures that a run with these metrics has."""
    return CLASSES if CLASSES.scores[0] in metrics else NUMBERS
