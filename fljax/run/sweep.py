"""Hyper-parameters x seeds as one compiled program: `simulate` mapped over points."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.run.participation import cohort_size
from fljax.run.simulate import _simulate, as_traced, check_run
from fljax.types import Algorithm, Federation, Key, Metrics


def sweep(
    algorithm: Algorithm,
    hypers: NamedTuple,
    federation: Federation,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    *,
    participation: float = 1.0,
    evaluate_every: int = 1,
    dropout: float | None = None,
    at_once: int | None = None,
) -> Metrics:
    """Every point of ``hypers`` under every seed: metrics with leading axes ``(points, seeds, rounds)``.

    All points share one compilation, one copy of the data, and for each seed the same cohorts, batches and initial
    model (common random numbers). A cell equals the single run with key ``fold_in(key, seed)``, to rounding.

    Args:
        algorithm: from `fljax.algorithms`.
        hypers: the algorithm's Hyper; a field is a number, or an array ``(points,)``.
        federation: the clients and their data.
        key: seed s runs with ``jax.random.fold_in(key, s)``.
        n_seeds: seeds per point.
        n_rounds: rounds of each run.
        participation: as in `fljax.simulate`.
        evaluate_every: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.
        at_once: runs side by side; None: one after another on a CPU, all on an accelerator.

    Raises:
        ValueError: fields of different lengths, no points, or a number out of its range.
    """
    check_run(n_rounds, evaluate_every, dropout)
    n_points = count_points(hypers)
    if n_seeds < 1:
        raise ValueError(f"n_seeds={n_seeds} is not positive; choose n_seeds >= 1")
    size = cohort_size(participation, federation.train.size.shape[0])
    at_once = at_once or (1 if jax.default_backend() == "cpu" else n_points * n_seeds)
    points = jax.tree.map(lambda value: jnp.broadcast_to(jnp.atleast_1d(value), n_points), as_traced(hypers))
    return _sweep(
        algorithm, size, n_rounds, evaluate_every, n_seeds, at_once, points, federation, key, as_traced(dropout)
    )


def count_points(hypers: NamedTuple) -> int:
    """Number of points that the array fields of ``hypers`` stand for; 1 where all are numbers.

    Raises:
        ValueError: array fields of different lengths, empty ones, or ones that are no vector.
    """
    lengths = {}
    for name, value in hypers._asdict().items():
        if value is None or np.ndim(value) == 0:
            continue
        if np.ndim(value) != 1 or np.size(value) == 0:
            raise ValueError(f"{name} has shape {np.shape(value)}; give a number or a vector with a value per point")
        lengths[name] = len(value)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"fields have different numbers of points: {lengths}; give vectors of equal length")
    return next(iter(lengths.values()), 1)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _sweep(
    algorithm: Algorithm,
    size: int,
    n_rounds: int,
    evaluate_every: int,
    n_seeds: int,
    at_once: int,
    points: Any,
    federation: Federation,
    key: Key,
    dropout: Array | None,
) -> Metrics:
    n_points = jax.tree.leaves(points)[0].shape[0]
    keys = jax.vmap(lambda seed: jax.random.fold_in(key, seed))(jnp.arange(n_seeds))

    def run(cell: tuple[Array, Array]) -> Metrics:
        hyper = jax.tree.map(lambda value: value[cell[0]], points)
        return _simulate(algorithm, size, n_rounds, evaluate_every, hyper, federation, keys[cell[1]], dropout)[1]

    point, seed = jnp.divmod(jnp.arange(n_points * n_seeds), n_seeds)
    # A batch of one is a plain loop: lax.map would make it a vmap of length one.
    metrics = lax.map(run, (point, seed), batch_size=None if at_once == 1 else at_once)
    return jax.tree.map(lambda leaf: leaf.reshape(n_points, n_seeds, *leaf.shape[1:]), metrics)
