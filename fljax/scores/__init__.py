"""Scores by name: additional metrics of each client in a test, `fljax.scored(model, "auc")`."""

from collections.abc import Callable

from jax import Array

from fljax.choices import Named
from fljax.scores.classes import balanced_accuracy, top3, top5
from fljax.scores.errors import rmse
from fljax.scores.probabilities import brier, ece
from fljax.scores.ranking import auc, average_precision

SCORES: dict[str, Callable[..., Array]] = Named(
    "score",
    {
        "auc": auc,
        "average_precision": average_precision,
        "balanced_accuracy": balanced_accuracy,
        "brier": brier,
        "ece": ece,
        "rmse": rmse,
        "top3": top3,
        "top5": top5,
    },
)
"""Name -> score, of all of a client's examples or of each example; see `fljax.scored`."""

__all__ = ["SCORES", "auc", "average_precision", "balanced_accuracy", "brier", "ece", "rmse", "top3", "top5"]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
