"""The stages of a search: batches of runs, saved when they are done, and the choice of points for the next stage."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.rounds.round_metrics import check_clusters
from fljax.run import hosts
from fljax.run.agreement import Truth, ari_of_rounds
from fljax.run.checkpoint import as_numbers, is_key
from fljax.run.headline import LOWER_IS_BETTER
from fljax.run.mesh import n_sweep_devices
from fljax.run.spread import measured
from fljax.run.sweep import parts
from fljax.run.sweep.halving import Rung, survivors
from fljax.run.sweep.program import Cell, Setting, advance
from fljax.run.sweep.table import AGREEMENT
from fljax.types import Federation

RUNS_PER_CALL = 4
"""Default number of runs in a batch on a CPU, one after another; elsewhere a batch has as many runs as fit."""

OnBatch = Callable[[int, int], None]
"""``on_batch(done, n)``: ``done`` of the ``n`` runs of a stage are done."""


class Found(NamedTuple):
    """The result of a search."""

    metrics: dict[str, np.ndarray]  # (points, seeds, rounds, ...) as from `sweep`; NaN, 0 or False in rounds not run
    rounds: np.ndarray  # (points,) rounds run


class Stage(NamedTuple):
    """The data that the stages of a search share."""

    setting: Setting
    federation: Federation
    dropout: Any
    due: Any
    store: parts.Store
    on_batch: OnBatch
    implementation: Any  # of the keys, whose plain data is in the cells
    in_turn: int = 1  # runs of a batch one after another, if none are side by side

    def run(self, stage: int, cells: Cell, todo: np.ndarray, first: int, until: int, keep: bool) -> parts.Part:
        """Runs the cells ``todo`` from round ``first`` to ``until``, batch by batch; saved ones are read from the
        store."""
        done = self.store.read(stage, todo, until - first, keep)
        done_cells = np.concatenate([part.cells for part in done]) if done else np.zeros(0, int)
        missing = np.setdiff1d(todo, done_cells)
        batch = self.setting.at_once * n_sweep_devices() * self.in_turn
        if len(missing):
            self.store.go_on()
        self.on_batch(len(done_cells), len(todo))
        for begin in range(0, len(missing), batch):
            chosen = missing[begin : begin + batch]
            part = self._batch(cells, chosen, batch, first, until, keep)
            if hosts.writes():
                self.store.write(stage, part)
            done.append(part)
            self.on_batch(len(done_cells) + begin + len(chosen), len(todo))
        return parts.joined(done)

    def _batch(self, cells: Cell, chosen: np.ndarray, batch: int, first: int, until: int, keep: bool) -> parts.Part:
        # The last batch is padded with frozen runs, which cost nothing, so that all batches use one program.
        padded = np.concatenate([chosen, np.repeat(chosen[:1], batch - len(chosen))])
        batch_cells: Cell = jax.tree.map(lambda leaf: leaf[padded], cells)
        diverged = np.where(np.arange(batch) < len(chosen), batch_cells.diverged, 0).astype(np.int32)
        state = None if batch_cells.state is None else self._from_leaves(batch_cells)
        batch_cells = batch_cells._replace(
            key=jax.random.wrap_key_data(batch_cells.key, impl=self.implementation), diverged=diverged, state=state
        )
        n = until - first
        batch_cells, metrics = advance(
            self.setting, batch_cells, self.federation, self.dropout, self.due, jnp.int32(first), jnp.int32(n)
        )
        state = jax.tree.leaves(jax.tree.map(as_numbers, batch_cells.state)) if keep else None
        rows = jax.tree.map(lambda leaf: leaf[: len(chosen)], hosts.gathered((batch_cells.diverged, state, metrics)))
        check_clusters(rows[2])
        # Copies, because a view of a stage's rounds would keep the whole array of the program alive.
        return parts.Part(chosen, rows[0], rows[1], {name: value[:, :n].copy() for name, value in rows[2].items()})

    def _from_leaves(self, cells: Cell) -> Any:
        like, structure = jax.tree.flatten(self.shapes(cells))
        pairs: Any = zip(cells.state or (), like, strict=True)
        keyed = partial(jax.random.wrap_key_data, impl=self.implementation)
        return structure.unflatten(keyed(jnp.asarray(leaf)) if is_key(like_leaf) else leaf for leaf, like_leaf in pairs)

    def shapes(self, cells: Cell) -> Any:
        """The shapes of a run's state; files have only its leaves."""
        init, hyper = self.setting.algorithm.init, jax.tree.map(lambda leaf: leaf[0], cells.hyper)
        return jax.eval_shape(init, jax.random.key(0, impl=self.implementation), hyper, self.federation.train)


def run_stages(stage: Stage, stages: Sequence[Rung], cells: Cell, metric: str, truth: Truth | None = None) -> Found:
    """Runs all stages, each with the points that are best by ``metric``; ``truth``: the true groups, if known."""
    n_cells, n_rounds = cells.diverged.shape[0], stage.setting.n_rounds
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
