"""Hyperparameters x seeds as one compiled program: runs are mapped over points, and a diverged run is frozen."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.rounds.round_metrics import check_clusters
from fljax.rounds.sampling import Draw, Sampling, sampling_of
from fljax.run.check import check_count, check_run, fields_of
from fljax.run.check_network import check_outputs, check_subjects
from fljax.run.chunk import put_row, round_cost
from fljax.run.hosts import gathered
from fljax.run.memory import check_traced, n_bytes
from fljax.run.mesh import n_sweep_devices, over_sweep
from fljax.run.one_round import as_traced, due_rounds, first_state, run_round, shapes_of_state
from fljax.run.program_cost import Cost
from fljax.run.programs import Compile, Level, compiler_for, options_of
from fljax.run.sweep import memory as memory_of
from fljax.run.sweep.host_metrics import OF_ROUNDS, host_metrics
from fljax.run.sweep.points import count_points, epsilons_of_points, vectors, with_targets
from fljax.types import Algorithm, Federation, Key, Metrics, State

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


def sweep(
    algorithm: Algorithm,
    hypers: Any,
    federation: Federation,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    *,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    at_once: int | None = None,
    memory: int | None = None,
    compile: Compile = "full",
) -> Metrics:
    """Runs every point of ``hypers`` with every seed; returns metrics with leading axes ``(points, seeds, rounds)``.

    All points share one compilation, one copy of the data, and for each seed the same cohorts, batches and initial
    model (common random numbers). Up to rounding, a run equals the single run with key ``fold_in(key, seed)``, until
    its loss is not finite: after that round ``diverged`` is True, the other metrics are NaN, 0 or False, and the run
    costs no time if runs go one after another. As in `fljax.simulate`, the metrics have ``churn``, ``epsilon`` and
    ``simulated_seconds`` if they apply, except under a trace. Inside a mesh with an axis "sweep" the runs are spread
    over it.

    Args:
        algorithm: from `fljax.algorithms`.
        hypers: the algorithm's Hyper; each field is a number, or a vector or list ``(points,)``, see
            `fljax.run.sweep.points`.
        federation: the clients and their data.
        key: seed s runs with ``jax.random.fold_in(key, s)``.
        n_seeds: seeds per point.
        n_rounds: rounds of each run.
        participation: as in `fljax.simulate`.
        sampling: as in `fljax.simulate`.
        evaluate_every: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.
        at_once: runs side by side; None: one after another on a CPU, as many as fit on an accelerator.
        memory: bytes that the sweep may use on a device; None: the device's memory.
        compile: see `fljax.run.train.train`; levels differ in the last bits.

    Raises:
        ValueError: fields differ in length, there are no points, a number is out of its range, the Hyper belongs to
            another method, or the points do not fit into memory.
        MemoryError: a run needs more memory than there is.
    """
    check_run(n_rounds, evaluate_every, dropout)
    check_subjects(algorithm, federation, key)
    draw = sampling_of(sampling, participation).of(federation.train.n_clients)
    hypers = with_targets(hypers, draw.sampling, algorithm.about.work, int(n_rounds))
    setting, dropout_rate = Setting(algorithm, draw, int(n_rounds), 1), as_traced(dropout)
    cells, due = all_cells(hypers, key, n_seeds), due_rounds(evaluate_every, n_rounds)
    with fields_of(hypers, algorithm):
        check_outputs(algorithm, tree.row(cells.hyper, jnp.int32(0)), federation, key)
        setting = setting._replace(at_once=plan(setting, cells, federation, dropout_rate, at_once, memory).at_once)
        setting = setting._replace(level=level_of(setting, cells, federation, dropout_rate, compile))
        compiled = _whole_runs_at(setting.level)
        metrics = compiled(setting, n_sweep_devices(), cells, federation, dropout_rate, due)
    check_clusters(metrics)
    n_points = count_points(hypers)
    metrics = _by_points(metrics, n_points, int(n_seeds))
    if isinstance(metrics["diverged"], jax.core.Tracer):
        return metrics
    epsilon = epsilons_of_points(hypers, draw.sampling, algorithm.about.work, int(n_rounds))
    round_metrics = gathered({name: metrics[name] for name in OF_ROUNDS if name in metrics})
    added = host_metrics(round_metrics, np.full(n_points, n_rounds), epsilon, draw.sampling, federation)
    return metrics | {name: jnp.asarray(value) for name, value in added.items()}


def all_cells(hypers: Any, key: Key, n_seeds: int) -> Cell:
    """Every point with every seed, at the beginning: leading axis (points * seeds,), the seed changing fastest.

    Raises:
        ValueError: there are no seeds, or as `vectors` and `count_points`.
    """
    check_count("n_seeds", n_seeds)
    hypers = vectors(hypers)
    return _cells(count_points(hypers), int(n_seeds), as_traced(hypers), key)


@partial(jax.jit, static_argnums=(0, 1))
def _cells(n_points: int, n_seeds: int, hypers: Any, key: Key) -> Cell:
    point, seed = jnp.divmod(jnp.arange(n_points * n_seeds, dtype=jnp.int32), jnp.int32(n_seeds))
    hyper = jax.tree.map(lambda value: jnp.broadcast_to(jnp.atleast_1d(value), n_points)[point], hypers)
    keys = jax.vmap(lambda s: jax.random.fold_in(key, s))(seed)
    return Cell(hyper, keys, jnp.full(n_points * n_seeds, GOING_ON, jnp.int32))


@partial(jax.jit, static_argnums=(1, 2))
def _by_points(metrics: Metrics, n_points: int, n_seeds: int) -> Metrics:
    return jax.tree.map(lambda leaf: leaf.reshape(n_points, n_seeds, *leaf.shape[1:]), metrics)


def plan(
    setting: Setting,
    cells: Cell,
    federation: Federation,
    dropout: Array | None,
    at_once: int | None,
    memory: int | None,
) -> memory_of.MemoryPlan:
    """`fljax.run.sweep.memory.plan` of a sweep that keeps the metrics of all runs on the devices."""

    def compile(n: int) -> Any:
        return _mapped.lower(*_arguments_of(n, setting._replace(at_once=n), cells, federation, dropout)).compile()

    n_cells = -(-cells.diverged.shape[0] // n_sweep_devices())
    shapes = shapes_of_metrics(setting, cells, federation, dropout)
    return memory_of.plan(compile, n_bytes(shapes), n_cells, at_once, memory)


def shapes_of_metrics(setting: Setting, cells: Cell, federation: Federation, dropout: Array | None) -> dict[str, Any]:
    """The shapes of a run's metrics, (1, rounds, ...), from its trace.

    Raises:
        MemoryError: a run needs more memory than there is.
    """
    arguments = _arguments_of(1, setting, cells, federation, dropout)
    return check_traced("a run needs at least", _mapped, *arguments, copies=n_sweep_devices())[1]


def _arguments_of(n: int, setting: Setting, cells: Cell, federation: Federation, dropout: Array | None) -> tuple:
    """The arguments for tracing `_mapped` with ``n`` of the cells."""
    first_cell = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), cells)
    state = shapes_of_state(setting.algorithm.init, first_cell.key, first_cell.hyper, federation.train)
    cell = first_cell._replace(state=state)
    some_cells = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape), leaf.dtype), cell)
    n_rounds = setting.n_rounds
    rest = federation, dropout, jnp.ones(n_rounds, bool), jnp.int32(0), jnp.int32(n_rounds)
    return setting, some_cells, *rest


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


@cache
def _whole_runs_at(level: Level) -> Any:
    return jax.jit(_whole_runs, static_argnums=(0, 1), compiler_options=options_of(level) or None)


def level_of(setting: Setting, cells: Cell, federation: Federation, dropout: Array | None, compile: Compile) -> Level:
    """The level at which a sweep is compiled; "auto" weighs compile time against all rounds of all runs on a device."""
    n_cells = cells.diverged.shape[0]
    rounds = setting.n_rounds * -(-n_cells // n_sweep_devices())

    def cost() -> Cost:
        traced = _mapped.trace(*_arguments_of(1, setting, cells, federation, dropout))
        return round_cost(traced.jaxpr, setting.algorithm, federation.train.size)

    return compiler_for(compile, rounds, cost, None).level


def _whole_runs(
    setting: Setting, n_devices: int, cells: Cell, federation: Federation, dropout: Array | None, due: Array
) -> Metrics:
    """The metrics of every cell's run from its beginning to its end, (cells, rounds, ...); no states are kept."""
    n_cells = cells.diverged.shape[0]
    padded = -(-n_cells // n_devices) * n_devices
    position = jnp.arange(padded)
    filled = jax.tree.map(lambda leaf: leaf[jnp.where(position < n_cells, position, 0)], cells)
    # Padding of the last device's share is frozen from the beginning and costs nothing.
    filled = filled._replace(diverged=jnp.where(position < n_cells, filled.diverged, 0))
    rounds = jnp.int32(0), jnp.int32(setting.n_rounds)

    def whole_run(cell: Cell, federation: Federation, *rest: Any) -> Metrics:
        return _run(_of_one(setting), _begun(setting.algorithm, cell, federation), federation, *rest)[1]

    metrics = over_sweep(partial(_map_cells, whole_run, setting.at_once), filled, (federation, dropout, due, *rounds))
    return jax.tree.map(lambda leaf: leaf[:n_cells], metrics)


def _begin(algorithm: Algorithm, at_once: int, cells: Cell, federation: Federation) -> Cell:
    return over_sweep(partial(_map_cells, partial(_begun, algorithm), at_once), cells, (federation,))


def _begun(algorithm: Algorithm, cell: Cell, federation: Federation) -> Cell:
    """The cell with its state, or its first one."""
    if cell.state is not None:
        return cell
    return cell._replace(state=first_state(algorithm.init, cell.key, cell.hyper, federation.train))


def _advance(setting: Setting, n_devices: int, cells: Cell, *rest: Any) -> tuple[Cell, Metrics]:
    advanced, metrics = over_sweep(partial(_mapped, setting), cells, rest)
    return advanced, jax.tree.map(lambda rows: jnp.moveaxis(rows, 0, 1), metrics)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _mapped(setting: Setting, cells: Cell, *rest: Any) -> tuple[Cell, Metrics]:
    """`_run` of every cell of one device."""
    return _map_cells(partial(_run, _of_one(setting)), setting.at_once, cells, *rest)


def _of_one(setting: Setting) -> Setting:
    """The setting as `_run` takes it: what does not affect a run is always the same, so that it is traced only once."""
    return setting._replace(at_once=1, level="full")


def _map_cells(function: Callable[..., Any], at_once: int, cells: Cell, *rest: Any) -> Any:
    """``function(cell, *rest)`` of every cell, ``at_once`` side by side."""
    # A plain loop for a batch of one, for which lax.map would make a vmap of length one.
    return lax.map(lambda cell: function(cell, *rest), cells, batch_size=None if at_once == 1 else at_once)


@partial(jax.jit, static_argnums=0)
def _run(
    setting: Setting,
    cell: Cell,
    federation: Federation,
    dropout: Array | None,
    due: Array,
    first: Array,
    count: Array,
) -> tuple[Cell, Metrics]:
    """One cell's rounds; those of a diverged cell are blank."""

    def going_on(state: State, round: Array) -> tuple[State, Metrics]:
        run = (setting.algorithm, setting.draw, cell.hyper, federation, cell.key, dropout)
        state, row = run_round(*run, state, round, due[round])
        return state, row | {"diverged": ~_is_finite(row, due[round])}

    shapes = jax.eval_shape(going_on, cell.state, first)[1]

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
