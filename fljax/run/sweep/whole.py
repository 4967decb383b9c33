"""A sweep in one call: whole runs of every point, or coalition of clients, with every seed, without files."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import as_array, check_run, fields_of
from fljax.checks.network import check_outputs, check_subjects
from fljax.devices.hosts import gathered
from fljax.devices.mesh import n_sweep_devices, over_sweep
from fljax.devices.programs import Compile, Level, options_of
from fljax.numbers import check_hyper
from fljax.rounds.memory import remembering
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.round_metrics import check_clusters
from fljax.rounds.sampling import Sampling
from fljax.run.one_round import as_traced, due_rounds
from fljax.run.sweep.cells import Cell, Setting, all_cells
from fljax.run.sweep.host_metrics import OF_ROUNDS, host_metrics
from fljax.run.sweep.needs import level_of, plan
from fljax.run.sweep.points import count_points, epsilons_of_points, vectors, with_targets
from fljax.run.sweep.program import begun, map_cells, of_one, run_cell
from fljax.types import Algorithm, AnyArray, Federation, Key, Metrics


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
        compile: see `fljax.run.train.train`; levels differ in the last bits. Under a trace it has no effect.

    Raises:
        ValueError: fields differ in length, there are no points, a number is out of its range, the Hyper belongs to
            another method, or the points do not fit into memory.
        MemoryError: a run needs more memory than there is.
    """
    options = (participation, sampling, evaluate_every, dropout, at_once, memory, compile)
    return _swept(algorithm, hypers, federation, None, key, n_seeds, n_rounds, *options)


@checked_kinds
def coalitions(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    members: AnyArray,
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
    """Runs with parts of the clients only, as one program; metrics with leading axes ``(coalitions, seeds, rounds)``.

    From them follows what a client contributes, see `fljax.report.contributions`. A client that is no member of a
    coalition does not participate in its run, but is tested: what coalitions are worth is measured on the same
    examples. If a round samples some of the clients, non-members are sampled too, and do not come, except by a sampling
    with a memory, which samples them last. All coalitions share one compilation and the data, and for each seed the
    initial model, cohorts and batches. Methods that learn about all clients before the first round, such as PACFL,
    learn about non-members too. ``attack_success`` and ``ari`` are of members alone.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: the algorithm's hyperparameters.
        federation: the clients and their data; it does not change over the rounds.
        members: (coalitions, clients) bool, which clients take part; a coalition may be empty.
        key: seed s runs with ``jax.random.fold_in(key, s)``.
        n_seeds: seeds per coalition.
        n_rounds: rounds of each run.
        participation: as in `fljax.simulate`.
        sampling: as in `fljax.simulate`.
        evaluate_every: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.
        at_once: as in `fljax.sweep`.
        memory: as in `fljax.sweep`.
        compile: as in `fljax.sweep`.

    Raises:
        ValueError: ``members`` is not such a table, the federation changes over the rounds, ``hyper`` has several
            points, or as in `fljax.sweep`.
        MemoryError: a run needs more memory than there is.
    """
    n_clients = federation.train.n_clients
    there = as_array("members", members)
    if there.dtype != bool or there.ndim != 2 or there.shape[1] != n_clients or not len(there):
        fault = f"members is {there.dtype}{[*there.shape]}"
        raise ValueError(f"{fault}; give bool (coalitions, clients), with a column for each of {n_clients} clients")
    if federation.stages is not None or federation.there is not None:
        raise ValueError("the clients of the federation change over the rounds; give one that stays as it is")
    check_hyper(hyper)
    point = vectors(hyper)
    if (n_points := count_points(point)) > 1:
        raise ValueError(f"hyper has {n_points} points; give the numbers of one run")
    hypers = jax.tree.map(lambda number: jnp.broadcast_to(jnp.ravel(number), len(there)), point)
    options = (participation, sampling, evaluate_every, dropout, at_once, memory, compile)
    return _swept(algorithm, hypers, federation, jnp.asarray(there), key, n_seeds, n_rounds, *options)


def _swept(
    algorithm: Algorithm,
    hypers: Any,
    federation: Federation,
    there: Array | None,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    participation: float,
    sampling: Sampling | None,
    evaluate_every: int,
    dropout: float | None,
    at_once: int | None,
    memory: int | None,
    compile: Compile,
) -> Metrics:
    """The metrics of every point with every seed; of a point only the clients ``there`` (points, clients) take part."""
    check_run(n_rounds, evaluate_every, dropout)
    check_subjects(algorithm, federation, key)
    draw = sampling_of(sampling, participation).of(federation.train.n_clients)
    hypers = with_targets(hypers, draw.sampling, algorithm.about.work, int(n_rounds))
    with_memory = remembering(algorithm, draw.sampling.memory)
    setting, dropout_rate = Setting(with_memory, draw, int(n_rounds), 1), as_traced(dropout)
    cells, due = all_cells(hypers, key, n_seeds, there), due_rounds(evaluate_every, n_rounds)
    with fields_of(hypers, algorithm):
        check_outputs(algorithm, tree.row(cells.hyper, jnp.int32(0)), federation, key)
        setting = setting._replace(at_once=plan(setting, cells, federation, dropout_rate, at_once, memory).at_once)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((cells, federation, dropout_rate)))
        level = "full" if traced else level_of(setting, cells, federation, dropout_rate, compile)
        setting = setting._replace(level=level)
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


@cache
def _whole_runs_at(level: Level) -> Any:
    return jax.jit(_whole_runs, static_argnums=(0, 1), compiler_options=options_of(level) or None)


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
        return run_cell(of_one(setting), begun(setting.algorithm, cell, federation), federation, *rest)[1]

    metrics = over_sweep(partial(map_cells, whole_run, setting.at_once), filled, (federation, dropout, due, *rounds))
    return jax.tree.map(lambda leaf: leaf[:n_cells], metrics)


@partial(jax.jit, static_argnums=(1, 2))
def _by_points(metrics: Metrics, n_points: int, n_seeds: int) -> Metrics:
    return jax.tree.map(lambda leaf: leaf.reshape(n_points, n_seeds, *leaf.shape[1:]), metrics)
