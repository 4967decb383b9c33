"""Which of a run's measures stand at the top of a table: those of a classification, or of a regression."""

from collections.abc import Collection
from typing import NamedTuple

from fljax.run.spread import OF


class Measures(NamedTuple):
    """The measures of a kind of task, more being better."""

    scores: tuple[str, ...]  # the first is the headline
    beside: str  # another measure of the table
    best: str  # what the best round's headline is called
    word: str  # on a progress bar and an axis


CLASSES = Measures(("accuracy_macro", "accuracy_micro", "accuracy_p10"), "f1_macro", "best_accuracy", "accuracy")
NUMBERS = Measures(("r2_micro", "r2_macro", "r2_p10"), "mae_macro", "best_r2", "R2")

WORST = tuple(f"{kind}_worst10" for kind in OF)
HIGHER_IS_BETTER = (*CLASSES.scores, "f1_macro", "f1_micro", *NUMBERS.scores, *WORST, "ari")
LOWER_IS_BETTER = ("test_loss", "mae_macro", "mae_micro", "mse_macro", "mse_micro", "attack_success")
"""Of neither are numbers that tell how a run went, such as ``churn``, and deviations over clients, which are least too
where all fare equally badly."""


def direction(measure: str) -> int:
    """1 where more of a measure is better, -1 where less is; 0 where neither is meant."""
    return (measure in HIGHER_IS_BETTER) - (measure in LOWER_IS_BETTER)


def measures_of(metrics: Collection[str]) -> Measures:
    """The measures that a run with these metrics has."""
    return CLASSES if CLASSES.scores[0] in metrics else NUMBERS
