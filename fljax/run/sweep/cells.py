"""The cells of a sweep: every point of hyperparameters with every seed."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax.checks.arguments import check_count
from fljax.devices.programs import Level
from fljax.rounds.sampling import Draw
from fljax.run.one_round import as_traced
from fljax.run.sweep.points import count_points, vectors
from fljax.types import Algorithm, Key, State

GOING_ON = -1
"""`Cell.diverged` of a run whose losses were all finite."""


class Setting(NamedTuple):
    """The static arguments of the program, which all runs of a sweep share."""

    algorithm: Algorithm
    draw: Draw  # the sampling of a round
    n_rounds: int  # for whose metrics a call of `advance` has room
    at_once: int  # runs side by side on a device
    level: Level = "full"  # at which the program is compiled


class Cell(NamedTuple):
    """The progress of one run of a sweep, that is a point with a seed; with a leading axis, of several runs."""

    hyper: Any
    key: Key
    diverged: Array  # () int32 the round whose loss was not finite, after which nothing changes; or GOING_ON
    state: State | None = None  # None before `begin`
    there: Array | None = None  # (clients,) bool: who can participate; None: as the federation says


def all_cells(hypers: Any, key: Key, n_seeds: int, there: Array | None = None) -> Cell:
    """Every point with every seed, at the beginning: leading axis (points * seeds,), the seed changing fastest.

    ``there`` (points, clients) has the `Cell.there` of each point.

    Raises:
        ValueError: there are no seeds, or as `vectors` and `count_points`.
    """
    check_count("n_seeds", n_seeds)
    hypers = vectors(hypers)
    return _cells(count_points(hypers), int(n_seeds), as_traced(hypers), key, there)


@partial(jax.jit, static_argnums=(0, 1))
def _cells(n_points: int, n_seeds: int, hypers: Any, key: Key, there: Array | None) -> Cell:
    point, seed = jnp.divmod(jnp.arange(n_points * n_seeds, dtype=jnp.int32), jnp.int32(n_seeds))
    hyper = jax.tree.map(lambda value: jnp.broadcast_to(jnp.atleast_1d(value), n_points)[point], hypers)
    keys = jax.vmap(lambda s: jax.random.fold_in(key, s))(seed)
    diverged = jnp.full(n_points * n_seeds, GOING_ON, jnp.int32)
    return Cell(hyper, keys, diverged, there=None if there is None else there[point])
