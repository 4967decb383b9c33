"""The stages of a search: its batches of runs, and the choice of points for the next stage."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.folder.checkpoint import as_numbers, is_key
from fljax.metrics.agreement import Truth, ari_of_rounds
from fljax.metrics.headline import LOWER_IS_BETTER
from fljax.metrics.spread import measured
from fljax.run.loop import Loop
from fljax.run.sweep import parts
from fljax.run.sweep.batch import BatchProgress, BatchRecord, OnRounds, places_of
from fljax.run.sweep.cells import Cell, Setting
from fljax.run.sweep.halving import Rung, survivors
from fljax.run.sweep.program import advance, begin
from fljax.run.sweep.table import AGREEMENT
from fljax.run.termination import Termination
from fljax.shown import repr_with_shapes
from fljax.types import Federation, Metrics

SECONDS_PER_CHUNK = 1.0
"""About how long the rounds of a batch go on between two calls of ``on_rounds``."""
RUNS_PER_CALL = 4
"""Default number of runs in a batch on a CPU, one after another; elsewhere a batch has as many runs as fit."""


class Found(NamedTuple):
    """The result of a search."""

    metrics: dict[str, np.ndarray]  # (points, seeds, rounds, ...) as from `sweep`; NaN, 0 or False in rounds not run
    rounds: np.ndarray  # (points,) rounds run

    __repr__ = repr_with_shapes


class Stage(NamedTuple):
    """The data that the stages of a search share."""

    setting: Setting
    federation: Federation
    dropout: Any
    due: Any
    store: parts.Store
    on_rounds: OnRounds
    implementation: Any  # of the keys, whose plain data is in the cells
    batch: int  # runs of a batch, of all devices
    seconds_per_checkpoint: float
    asked: Termination | None = None

    def run(self, stage: int, cells: Cell, todo: np.ndarray, first: int, until: int, keep: bool) -> parts.Part:
        """Runs the cells ``todo`` from round ``first`` to ``until``, batch by batch; what was saved is read from the
        store."""
        n_rounds = until - first
        done = self.store.read(stage, todo, n_rounds)
        done_cells = np.concatenate([part.cells for part in done]) if done else np.zeros(0, int)
        missing = np.setdiff1d(todo, done_cells)
        begun = self.store.read_begun(stage, missing, n_rounds)
        if begun is not None and len(begun.cells) > self.batch:
            begun = None  # fewer runs fit into a batch than before
        if len(missing):
            self.store.go_on()
        n_done, n = len(done_cells) * n_rounds, len(todo) * n_rounds
        self.on_rounds(n_done + (0 if begun is None else len(begun.cells) * begun.n_rounds), n)
        n_clients = self.batch * self.federation.train.n_clients
        for chosen in self._batches(missing, begun):
            places = places_of(len(chosen), self.batch)
            record = BatchRecord(self.store, stage, chosen, places, first, until, n_clients, keep, begun)
            progress = BatchProgress(self.on_rounds, len(chosen), first, n_done, n)
            loop = Loop(record, SECONDS_PER_CHUNK, self.seconds_per_checkpoint, progress, self.asked)
            batch_cells = begin(self.setting, self._of_batch(cells, chosen, begun), self.federation)
            done.append(loop.run(self._advance, batch_cells, until))
            n_done, begun = n_done + len(chosen) * n_rounds, None
        return parts.joined(done)

    def _batches(self, missing: np.ndarray, begun: parts.Part | None) -> list[np.ndarray]:
        """The ``missing`` cells batch by batch, one that is ``begun`` first."""
        rest = missing if begun is None else np.setdiff1d(missing, begun.cells)
        batches = [rest[i : i + self.batch] for i in range(0, len(rest), self.batch)]
        return batches if begun is None else [begun.cells, *batches]

    def _advance(self, cells: Cell, first: Array, count: Array) -> tuple[Cell, Metrics]:
        return advance(self.setting, cells, self.federation, self.dropout, self.due, first, count)

    def _of_batch(self, cells: Cell, chosen: np.ndarray, begun: parts.Part | None) -> Cell:
        """The cells ``chosen``, as they are or as an interrupted batch has ``begun`` them."""
        # The last batch is padded with frozen runs, which cost nothing, so that all batches use one program.
        rows, is_run = np.zeros(self.batch, int), np.zeros(self.batch, bool)
        places = places_of(len(chosen), self.batch)
        rows[places], is_run[places] = np.arange(len(chosen)), True
        batch_cells: Cell = jax.tree.map(lambda leaf: leaf[chosen[rows]], cells)
        diverged, state = batch_cells.diverged, batch_cells.state
        if begun is not None:
            diverged, state = begun.diverged[rows], [leaf[rows] for leaf in begun.state or ()]
        key = jax.random.wrap_key_data(batch_cells.key, impl=self.implementation)
        diverged = np.where(is_run, diverged, 0).astype(np.int32)
        state = None if state is None else self._from_leaves(list(state), cells)
        return batch_cells._replace(key=key, diverged=diverged, state=state)  # pyrefly: ignore[bad-argument-type]

    def _from_leaves(self, leaves: Sequence[np.ndarray], cells: Cell) -> Any:
        like = self.shapes(cells)
        expected = jax.tree.leaves(jax.eval_shape(partial(jax.tree.map, as_numbers), like))
        if [leaf.shape[1:] for leaf in leaves] != [leaf.shape for leaf in expected]:
            raise ValueError(f"{self.store.folder} has batches of another search; restore them from a copy")
        keyed = partial(jax.random.wrap_key_data, impl=self.implementation)
        like_leaves, structure = jax.tree.flatten(like)
        pairs = zip(leaves, like_leaves, strict=True)
        return structure.unflatten(keyed(jnp.asarray(leaf)) if is_key(like_leaf) else leaf for leaf, like_leaf in pairs)

    def shapes(self, cells: Cell) -> Any:
        """The shapes of a run's state; files have only its leaves."""
        init, hyper = self.setting.algorithm.init, jax.tree.map(lambda leaf: leaf[0], cells.hyper)
        return jax.eval_shape(init, jax.random.key(0, impl=self.implementation), hyper, self.federation.train)


def run_stages(stage: Stage, stages: Sequence[Rung], cells: Cell, metric: str, truth: Truth | None = None) -> Found:
    """Runs all stages, each with the points that are best by ``metric``; ``truth``: the true groups, if known."""
    n_cells, n_rounds = cells.diverged.shape[0], stages[-1].until
    n_seeds = n_cells // stages[0].n_points
    rounds, first = np.zeros(stages[0].n_points, int), 0
    alive, metrics = np.arange(stages[0].n_points), {}
    for i, rung in enumerate(stages):
        todo = (alive[:, None] * n_seeds + np.arange(n_seeds)).reshape(-1)
        part = stage.run(i, cells, todo, first, rung.until, keep=i + 1 < len(stages))
        metrics = metrics or parts.not_run(part.metrics, n_cells, n_rounds)
        for name, value in part.metrics.items():
            metrics[name][part.cells, first : rung.until] = value
        rounds[alive], first = rung.until, rung.until
        if i + 1 < len(stages):
            score = _score(part, metrics, rung.until, metric, truth).reshape(len(alive), n_seeds).mean(axis=1)
            alive = alive[survivors(-score if metric in LOWER_IS_BETTER else score, stages[i + 1].n_points)]
            cells = parts.put(cells, part)
    return Found({n: v.reshape(len(rounds), n_seeds, *v.shape[1:]) for n, v in metrics.items()}, rounds)


def _score(
    part: parts.Part, metrics: dict[str, np.ndarray], until: int, metric: str, truth: Truth | None
) -> np.ndarray:
    """The ``metric`` of each run of a stage after its last round, (runs,); ``metrics`` has all rounds so far."""
    if metric != AGREEMENT or truth is None:
        return measured({name: value[:, -1] for name, value in part.metrics.items()}, metric)
    # Over all clients, each in the cluster that it last reported; a round's own value covers only its participants.
    cluster_metrics = {name: metrics[name][part.cells, :until] for name in ("ids", "active", "label")}
    runs = [{name: value[i] for name, value in cluster_metrics.items()} for i in range(len(part.cells))]
    return np.array([ari_of_rounds(run, truth)[-1] for run in runs])
