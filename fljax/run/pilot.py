"""Short runs before a long one, to choose the layers to compare or the number of clusters."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import check_count, check_key, whole
from fljax.data.holdout import clients_of
from fljax.drift.stages import at
from fljax.metrics.evaluate import evaluate
from fljax.metrics.headline import measures_of
from fljax.ranges import said
from fljax.run.one_round import split_key
from fljax.run.simulate import simulate
from fljax.types import Algorithm, Federation, Key

SCORES = ("accuracy", "distance")
"""Scores by which pilots of different K can be compared."""


class ChoiceOfK(NamedTuple):
    """The result of `choose_k`."""

    n_clusters: int
    scores: dict[int, float]  # candidate -> its score


@checked_kinds
def choose_k(
    make: Callable[[int], Algorithm],
    hyper: Any,
    federation: Federation,
    key: Key,
    candidates: Sequence[int] = (2, 3, 4),
    *,
    n_clients: int = 100,
    n_rounds: int = 3,
    score: str = "accuracy",
) -> ChoiceOfK:
    """The number of clusters with the best score in short runs on some of the clients, as FeSEM (Long et al.) chooses
    K.

    All pilots have the same clients, sampled at random, and the same run key.

    Args:
        make: ``K -> method`` with K clusters, such as ``partial(fesem, model, work)``.
        hyper: its hyperparameters.
        federation: the clients from which some are sampled.
        key: for the sampling, and for the key of every pilot.
        candidates: the values of K to try.
        n_clients: clients in a pilot, or all if there are fewer; the paper has 100.
        n_rounds: rounds of a pilot; the paper has 3.
        score: "accuracy": the highest accuracy_macro of the deployed models on the clients' validation split, or on
            their training split if there is no other; the least of equal K. "distance": the elbow of the method's
            metric ``distance``, the sum of squared distances of models to their centers. It always falls with K, so the
            chosen K lies farthest below the line from the least candidate to the largest.

    Raises:
        ValueError: there is no candidate, or one below 1 or above the number of clients; there are fewer than three
            candidates for an elbow; the method lacks the metric; a number is below 1; a pilot's score is not finite.
    """
    check_key(key)
    if isinstance(candidates, str | bytes) or not np.iterable(candidates):
        raise ValueError(f"{said('candidates', candidates)} is not a sequence; give several numbers of clusters")
    check_count("n_clients", n_clients)
    candidates = sorted({whole("a number of candidates", k) for k in candidates})
    n_clients = min(int(n_clients), federation.train.n_clients)
    _check_pilots(candidates, n_clients, score)
    key_sample, key_run = jax.random.split(key)
    n_available = federation.train.n_clients
    pilot = clients_of(federation, jnp.sort(jax.random.permutation(key_sample, n_available)[:n_clients]))
    scores = {k: _pilot_score(make(k), hyper, pilot, key_run, n_rounds, score) for k in candidates}
    values = np.asarray(list(scores.values()))
    if failed := [k for k, value in scores.items() if not np.isfinite(value)]:
        raise ValueError(f"the pilots of K={failed} have no finite {score}: training diverged; choose a smaller lr")
    best = int(np.argmax(values)) if score == "accuracy" else elbow(np.asarray(candidates), values)
    return ChoiceOfK(candidates[best], scores)


def elbow(x: np.ndarray, y: np.ndarray) -> int:
    """The index of the point farthest below the line from the first point to the last; the first of equal ones."""
    line = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0])
    return int(np.argmax(line - y))


def _pilot_score(
    algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, n_rounds: int, score: str
) -> float:
    state, metrics = simulate(algorithm, hyper, federation, key, n_rounds, evaluate_every=n_rounds)
    if score != "accuracy":
        if score not in metrics:
            raise ValueError(f"score={score!r} but the method reports no such metric; choose 'accuracy'")
        return float(metrics[score][-1])
    federation = at(federation, n_rounds - 1)
    models = algorithm.deploy(split_key(key).deploy, hyper, state, federation.train)
    validation = federation.train if federation.val is None else federation.val
    metrics = evaluate(algorithm.predict, models, validation, algorithm.loss)
    return float(metrics[measures_of(metrics).headline])


def _check_pilots(candidates: Sequence[int], n_clients: int, score: str) -> None:
    if score not in SCORES:
        raise ValueError(f"score={score!r} is unknown; choose one of {SCORES}")
    if not candidates or candidates[0] < 1 or candidates[-1] > n_clients:
        raise ValueError(f"candidates={tuple(candidates)}: give numbers of clusters from 1 to the {n_clients} clients")
    if score == "distance" and len(candidates) < 3:
        raise ValueError(f"candidates={tuple(candidates)} have no elbow; give three or more, or choose 'accuracy'")


GAP = "gap_"
"""Prefix of the separation gaps among a method's metrics."""


def layer_gaps(
    algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, n_rounds: int = 30
) -> dict[str, float]:
    """The separation gap of every layer (and measure) that a method reports after ``n_rounds`` rounds.

    Compare the layer with the largest gap in the long run; a gap of 0 or less separates nothing. All clients should
    still be in one cluster when the gaps are read, so choose hyperparameters with which the method never splits. The
    pilot of LayerCFL's paper has 30 rounds::

        algorithm = fljax.layercfl(model, work, layers="all", group=groups)
        gaps = layer_gaps(algorithm, fljax.layercfl.Hyper(lr=0.1, eps_2=float("inf")), federation, key)

    Args:
        algorithm: a method with metrics ``gap_<name>``, such as LayerCFL with the option ``group``.
        hyper: its hyperparameters.
        federation: clients with known groups.
        key: the run's key.
        n_rounds: rounds before the gaps are read.

    Raises:
        ValueError: the algorithm reports no gaps.
    """
    _, metrics = simulate(algorithm, hyper, federation, key, n_rounds, evaluate_every=n_rounds)
    gaps = {name.removeprefix(GAP): float(value[-1]) for name, value in metrics.items() if name.startswith(GAP)}
    if not gaps:
        raise ValueError("algorithm reports no gaps; make it with the option group, the clients' true groups")
    return gaps
