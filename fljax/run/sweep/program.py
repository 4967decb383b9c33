"""The rounds of many cells as one compiled program: runs are mapped over cells, and a diverged run is frozen."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.devices.mesh import n_sweep_devices, over_sweep
from fljax.devices.programs import Level, options_of
from fljax.run.chunk import put_row
from fljax.run.one_round import first_state, run_round
from fljax.run.sweep.cells import GOING_ON, Cell, Setting
from fljax.types import Algorithm, Federation, Metrics, State


def begin(setting: Setting, cells: Cell, federation: Federation) -> Cell:
    """The cells, a multiple of the sweep axis of the current mesh, spread over it, with their first states; those that
    have states keep them."""
    return _begin_at(setting.level)(setting.algorithm, setting.at_once, cells, federation)


def advance(
    setting: Setting,
    cells: Cell,
    federation: Federation,
    dropout: Array | None,
    due: Array,
    first: Array,
    count: Array,
) -> tuple[Cell, Metrics]:
    """Rounds ``first`` to ``first + count`` of every cell of `begin`; the cells that are passed are donated.

    The metrics have leading axes (setting.n_rounds, cells); the first ``count`` rounds are filled.
    """
    compiled = _advance_at(setting.level)
    return compiled(setting, n_sweep_devices(), cells, federation, dropout, due, first, count)


@cache
def _begin_at(level: Level) -> Any:
    """`_begin` with its own jit, because compiler options are not arguments of a call."""
    return jax.jit(_begin, static_argnums=(0, 1), compiler_options=options_of(level) or None)


@cache
def _advance_at(level: Level) -> Any:
    return jax.jit(_advance, static_argnums=(0, 1), donate_argnums=2, compiler_options=options_of(level) or None)


def _begin(algorithm: Algorithm, at_once: int, cells: Cell, federation: Federation) -> Cell:
    return over_sweep(partial(map_cells, partial(begun, algorithm), at_once), cells, (federation,))


def begun(algorithm: Algorithm, cell: Cell, federation: Federation) -> Cell:
    """The cell with its state, or its first one."""
    if cell.state is not None:
        return cell
    return cell._replace(state=first_state(algorithm.init, cell.key, cell.hyper, federation.train))


def _advance(setting: Setting, n_devices: int, cells: Cell, *rest: Any) -> tuple[Cell, Metrics]:
    advanced, metrics = over_sweep(partial(mapped, setting), cells, rest)
    return advanced, jax.tree.map(lambda rows: jnp.moveaxis(rows, 0, 1), metrics)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def mapped(setting: Setting, cells: Cell, *rest: Any) -> tuple[Cell, Metrics]:
    """`run_cell` of every cell of one device."""
    return map_cells(partial(run_cell, of_one(setting)), setting.at_once, cells, *rest)


def of_one(setting: Setting) -> Setting:
    """The setting as `run_cell` takes it: what does not affect a run is always the same, so that it is traced once."""
    return setting._replace(at_once=1, level="full")


def map_cells(function: Callable[..., Any], at_once: int, cells: Cell, *rest: Any) -> Any:
    """``function(cell, *rest)`` of every cell, ``at_once`` side by side."""
    # A plain loop for a batch of one, for which lax.map would make a vmap of length one.
    return lax.map(lambda cell: function(cell, *rest), cells, batch_size=None if at_once == 1 else at_once)


@partial(jax.jit, static_argnums=0)
def run_cell(
    setting: Setting,
    cell: Cell,
    federation: Federation,
    dropout: Array | None,
    due: Array,
    first: Array,
    count: Array,
) -> tuple[Cell, Metrics]:
    """One cell's rounds; those of a diverged cell are blank."""
    if cell.there is not None:
        federation = federation._replace(there=cell.there)

    @partial(jax.jit, inline=True)  # so that it is traced once for its shapes and for the loop, as in `run_chunk`
    def going_on(state: State, round: Array) -> tuple[State, Metrics]:
        run = (setting.algorithm, setting.draw, cell.hyper, federation, cell.key, dropout)
        state, row = run_round(*run, state, round, due[round])
        return state, row | {"diverged": ~_is_finite(row, due[round])}

    shapes = jax.eval_shape(lambda state, i: going_on(state, first + i), cell.state, count)[1]

    def frozen(state: State, round: Array) -> tuple[State, Metrics]:
        return state, jax.tree.map(_blank, shapes) | {"diverged": jnp.bool_(True)}

    def step(i: Array, carry: tuple[State, Array, Metrics]) -> tuple[State, Array, Metrics]:
        state, diverged, metrics = carry
        state, row = lax.cond(diverged == GOING_ON, going_on, frozen, state, first + i)
        diverged = jnp.where((diverged == GOING_ON) & row["diverged"], first + i, diverged)
        return state, diverged, jax.tree.map(lambda rows, new: put_row(rows, new, i), metrics, row)

    empty = jax.tree.map(lambda leaf: jnp.zeros((setting.n_rounds, *leaf.shape), leaf.dtype), shapes)
    state, diverged, metrics = lax.fori_loop(0, count, step, (cell.state, cell.diverged, empty))
    return cell._replace(state=state, diverged=diverged), metrics


def _is_finite(row: Metrics, due: Array) -> Array:
    """Whether the participants' losses and, if tested, the test loss are finite, and at least one result is, unless
    nobody participates."""
    counted = row["active"] & row["ok"]
    trained = (counted.any() | ~row["active"].any()) & jnp.isfinite(jnp.where(counted, row["loss"], 0.0)).all()
    return trained & (~due | jnp.isfinite(row["test_loss"]))


def _blank(shape: Any) -> Array:
    """The metrics of a frozen round: NaN, 0 or False."""
    return jnp.full(shape.shape, jnp.nan if jnp.issubdtype(shape.dtype, jnp.floating) else 0, shape.dtype)
