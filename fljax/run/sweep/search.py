"""The host loop of a sweep: batches of runs with files and resume, halving between them. The only impure part."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.run import hosts
from fljax.run.identity import run_identity
from fljax.run.mesh import Device, n_sweep_devices, over_devices, replicated
from fljax.run.participation import cohort_size
from fljax.run.simulate import as_traced, check_run, is_due
from fljax.run.sweep import parts
from fljax.run.sweep.halving import Rung, rungs, survivors
from fljax.run.sweep.points import count_points, point
from fljax.run.sweep.program import Cell, Setting, advance, all_cells, plan
from fljax.run.sweep.table import LOWER_IS_BETTER
from fljax.types import Algorithm, Federation, Key

RUNS_PER_CALL = 4
"""Runs one after another between two looks at the clock, on a CPU; elsewhere as many as fit are one call."""

Tell = Callable[[int, int], None]
"""``tell(done, n)``: so many of the runs of a stage are done."""


class Found(NamedTuple):
    """What a search leaves."""

    metrics: dict[str, np.ndarray]  # (points, seeds, rounds, ...) as `sweep`'s; NaN, 0 or False in rounds not run
    rounds: np.ndarray  # (points,) rounds run


def search(
    algorithm: Algorithm,
    hypers: Any,
    federation: Federation,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    *,
    halving: int | None = None,
    metric: str = "accuracy_macro",
    folder: str | Path | None = None,
    participation: float = 1.0,
    evaluate_every: int = 1,
    dropout: float | None = None,
    at_once: int | None = None,
    memory: int | None = None,
    devices: Sequence[Device] | None = None,
    tell: Tell | None = None,
) -> Found:
    """`fljax.sweep` in batches of runs, with files, resume and successive halving; runs are spread over the devices.

    The same search again goes on after the last batch that was written. Points that halving keeps have the results of
    the full sweep.

    Args:
        algorithm: from `fljax.algorithms`.
        hypers: the points, as `fljax.sweep` takes them.
        federation: the clients and their data; see `on_validation` for choosing by validation data.
        key: seed s runs with ``jax.random.fold_in(key, s)``.
        n_seeds: seeds per point.
        n_rounds: rounds of each run that is not cut short.
        halving: keep one point in so many at each stage, by the mean over seeds of ``metric``; None: the full sweep.
        metric: of the tests, lower is better for test_loss only.
        folder: where batches are kept; None keeps nothing.
        participation: as in `fljax.simulate`.
        evaluate_every: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.
        at_once: runs side by side on a device; None: as many as are best.
        memory: bytes that the search may use on a device; None: what the device has.
        devices: to spread the runs over; None: all.
        tell: told of every batch.

    Raises:
        ValueError: as `fljax.sweep`, or the folder holds another search.
    """
    check_run(n_rounds, evaluate_every, dropout)
    size = cohort_size(participation, federation.train.size.shape[0])
    stages = rungs(count_points(hypers), n_rounds, halving, evaluate_every)
    cells = all_cells(hypers, key, n_seeds)
    identity = run_identity(algorithm, point(hypers, 0), federation, key, size, evaluate_every, dropout)
    identity |= {f"hyper.{name}": parts.plain(value) for name, value in hypers._asdict().items()}
    identity |= {"n_seeds": n_seeds, "n_rounds": n_rounds, "halving": halving}
    store = parts.Store(None if folder is None else Path(folder), identity)
    store.open()
    n_devices = len(jax.devices() if devices is None else devices)
    with over_devices(devices, n_devices) as mesh:
        federation, lost = replicated((federation, as_traced(dropout)), mesh)
        setting = Setting(algorithm, size, n_rounds, 1)
        setting = setting._replace(at_once=plan(setting, cells, federation, lost, at_once, memory).at_once)
        due = is_due(jnp.arange(n_rounds), evaluate_every, n_rounds)
        stage = _Stage(setting, federation, lost, due, store, tell or (lambda done, n: None))
        return _run_stages(stage, stages, _on_host(cells), metric)


def on_validation(federation: Federation) -> Federation:
    """The federation tested on its validation split: to choose by what the final test has not seen.

    Raises:
        ValueError: it has none.
    """
    if federation.val is None:
        raise ValueError("the federation has no validation split; make it with val_fraction above 0")
    return federation._replace(test=federation.val)


def over_settings(run: Callable[..., Any], say: Callable[[str], None] = print, **choices: Sequence[Any]) -> list:
    """``[(setting, run(**setting)), ...]`` for every combination of static ``choices``: the outer loop of a sweep.

    Each combination is another program: it is compiled once, and ``say`` is told so. Example::

        over_settings(lambda epochs: search(fedavg(model, Work(epochs, 32)), hypers, ...), epochs=(1, 5))

    Raises:
        ValueError: a choice without values.
    """
    settings: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        if not len(values):
            raise ValueError(f"{name}: an empty grid; give at least one value")
        settings = [setting | {name: value} for setting in settings for value in values]
    results = []
    for i, setting in enumerate(settings):
        named = ", ".join(f"{name}={value}" for name, value in setting.items())
        say(f"static setting {i + 1} of {len(settings)}: {named} (a program of its own, compiled once)")
        results.append((setting, run(**setting)))
    return results


def _on_host(cells: Cell) -> Cell:
    """The cells as NumPy arrays, their keys as plain numbers."""
    return jax.device_get(cells._replace(key=jax.random.key_data(cells.key)))


class _Stage(NamedTuple):
    """What the stages of a search share."""

    setting: Setting
    federation: Federation
    dropout: Any
    due: Any
    store: parts.Store
    tell: Tell

    def run(self, stage: int, cells: Cell, todo: np.ndarray, first: int, until: int, keep: bool) -> parts.Part:
        """The cells ``todo`` from round ``first`` to ``until``, batch by batch; those in the store are read there."""
        done = self.store.read(stage)
        known = np.concatenate([part.cells for part in done]) if done else np.zeros(0, int)
        left = np.setdiff1d(todo, known)
        batch = self.setting.at_once * n_sweep_devices() * (RUNS_PER_CALL if self.setting.at_once == 1 else 1)
        self.tell(len(known), len(todo))
        for begin in range(0, len(left), batch):
            chosen = left[begin : begin + batch]
            part = self._batch(cells, chosen, batch, first, until, keep)
            if hosts.writes():
                self.store.write(stage, part)
            done.append(part)
            self.tell(len(known) + begin + len(chosen), len(todo))
        return parts.joined(done)

    def _batch(self, cells: Cell, chosen: np.ndarray, batch: int, first: int, until: int, keep: bool) -> parts.Part:
        # The last batch is filled up with runs that are frozen from the outset: one program for all, at no cost.
        filled = np.concatenate([chosen, np.repeat(chosen[:1], batch - len(chosen))])
        some: Cell = jax.tree.map(lambda leaf: leaf[filled], cells)
        diverged = np.where(np.arange(batch) < len(chosen), some.diverged, 0).astype(np.int32)
        state = None if some.state is None else jax.tree.unflatten(self.structure(some), some.state)
        some = some._replace(key=jax.random.wrap_key_data(some.key), diverged=diverged, state=state)
        n = until - first
        some, metrics = advance(
            self.setting, some, self.federation, self.dropout, self.due, jnp.int32(first), jnp.int32(n)
        )
        state = jax.tree.leaves(some.state) if keep else None
        rows = jax.tree.map(lambda leaf: leaf[: len(chosen)], hosts.gathered((some.diverged, state, metrics)))
        return parts.Part(chosen, rows[0], rows[1], {name: value[:, :n] for name, value in rows[2].items()})

    def structure(self, cells: Cell) -> Any:
        """The tree that a run's state is; files have its leaves alone."""
        init, hyper = self.setting.algorithm.init, jax.tree.map(lambda leaf: leaf[0], cells.hyper)
        return jax.tree.structure(jax.eval_shape(init, jax.random.key(0), hyper, self.federation.train))


def _run_stages(stage: _Stage, stages: Sequence[Rung], cells: Cell, metric: str) -> Found:
    n_cells, n_rounds = cells.diverged.shape[0], stage.setting.n_rounds
    n_seeds = n_cells // stages[0].n_points
    rounds, first = np.zeros(stages[0].n_points, int), 0
    alive, metrics = np.arange(stages[0].n_points), {}
    for i, rung in enumerate(stages):
        todo = (alive[:, None] * n_seeds + np.arange(n_seeds)).reshape(-1)
        part = stage.run(i, cells, todo, first, rung.until, keep=i + 1 < len(stages))
        if not metrics:
            metrics = {
                name: np.full((n_cells, n_rounds, *value.shape[2:]), parts.blank(value.dtype), value.dtype)
                for name, value in part.metrics.items()
            }
        for name, value in part.metrics.items():
            metrics[name][part.cells, first : rung.until] = value
        rounds[alive], first = rung.until, rung.until
        if i + 1 < len(stages):
            score = part.metrics[metric][:, -1].reshape(len(alive), n_seeds).mean(axis=1)
            alive = alive[survivors(-score if metric in LOWER_IS_BETTER else score, stages[i + 1].n_points)]
            cells = parts.put(cells, part)
    return Found({n: v.reshape(len(rounds), n_seeds, *v.shape[1:]) for n, v in metrics.items()}, rounds)
