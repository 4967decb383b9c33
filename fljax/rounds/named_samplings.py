"""The samplings by name."""

from collections.abc import Callable

from fljax.rounds.by_loss import power_of_choice
from fljax.rounds.sampling import Sampling, by_size, fixed, poisson, table, uniform

SAMPLINGS: dict[str, Callable[..., Sampling]] = {
    "uniform": uniform,
    "by_size": by_size,
    "power_of_choice": power_of_choice,
    "poisson": poisson,
    "fixed": fixed,
    "table": table,
}
"""Name -> function that makes the sampling."""
