"""A short run that settles a choice before the long one."""

from typing import Any, NamedTuple

from fljax.run.simulate import simulate
from fljax.types import Algorithm, Federation, Key

GAP = "gap_"
"""What the names of separation gaps begin with among a method's metrics."""


def layer_gaps(
    algorithm: Algorithm, hyper: NamedTuple, federation: Federation, key: Key, n_rounds: int = 30
) -> dict[str, float]:
    """The separation gap of every layer (and measure) after ``n_rounds`` rounds without a split.

    The layer of largest gap is the one to compare in the long run; a gap of 0 or less separates nothing. LayerCFL's
    pilot has 30 rounds.

    Args:
        algorithm: a method that reports gaps: `fljax.algorithms.layercfl.layercfl` with its option ``group``.
        hyper: its numbers; ``eps_2`` is replaced by infinity, so that no cluster is split.
        federation: clients of known groups.
        key: of the run.
        n_rounds: rounds before the gaps are read.

    Raises:
        ValueError: the algorithm reports no gaps.
    """
    unsplit: Any = hyper
    unsplit = unsplit._replace(eps_2=float("inf"))
    _, metrics = simulate(algorithm, unsplit, federation, key, n_rounds, evaluate_every=n_rounds)
    found = {name.removeprefix(GAP): float(value[-1]) for name, value in metrics.items() if name.startswith(GAP)}
    if not found:
        raise ValueError("algorithm reports no gaps; make it with the option group, the clients' true groups")
    return found
