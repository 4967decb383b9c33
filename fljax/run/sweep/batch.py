"""The record of a batch of runs during its rounds: their metrics so far, and the batch's file."""

from collections.abc import Callable

import jax
import numpy as np

from fljax.devices import hosts
from fljax.devices.mesh import n_sweep_devices
from fljax.folder.checkpoint import as_numbers
from fljax.rounds.round_metrics import check_clusters
from fljax.run.progress import SilentProgress
from fljax.run.sweep import parts
from fljax.run.sweep.cells import Cell

OnRounds = Callable[[int, int], None]
"""``on_rounds(done, n)``: of the ``n`` rounds of all runs of a stage, ``done`` are done."""


def places_of(n_runs: int, batch: int) -> np.ndarray:
    """(n_runs,) the row of each run in a batch: they are dealt to the devices, each of which has a contiguous share."""
    return np.arange(batch).reshape(n_sweep_devices(), -1).T.reshape(-1)[:n_runs]


class BatchRecord:
    """The record of a batch of runs in one stage, for `fljax.run.loop.Loop`."""

    def __init__(
        self,
        store: parts.Store,
        stage: int,
        cells: np.ndarray,
        places: np.ndarray,
        first: int,
        until: int,
        n_clients: int,
        keep: bool,
        begun: parts.Part | None,
    ) -> None:
        self.folder, self.store, self.stage = store.folder, store, stage
        self.cells, self.places = cells, places  # (runs,) their numbers, and rows in the program, which has others
        self.n_clients = n_clients  # of all runs together, with those of padding
        self.until, self.keep = until, keep  # the stage's last round, and whether states are kept after it
        self.chunks = [] if begun is None else [begun.metrics]
        self.round = first + (0 if begun is None else begun.n_rounds)

    def took(self, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Receives a chunk's metrics (rounds, rows, ...), and returns them without padding, (runs, rounds, ...).

        Raises:
            ValueError: a user's rule returned a cluster that does not exist.
        """
        metrics = {name: np.moveaxis(value[:, self.places], 0, 1) for name, value in metrics.items()}
        check_clusters(metrics)
        self.chunks.append(metrics)
        self.round += metrics["diverged"].shape[1]
        return metrics

    def spend(self, seconds: float) -> None:
        """Nothing: a search does not record its seconds."""

    def write(self) -> None:
        """Nothing: `save` writes the metrics, together with the states."""

    def save(self, cells: Cell) -> None:
        """Writes the batch so far; after its last round as a finished one."""
        if hosts.writes():
            is_finished = self.round == self.until
            self.store.write(self.stage, self._part(cells, self.keep or not is_finished), is_finished)

    def settle(self) -> None:
        """Nothing: `save` has written everything when it returns."""

    def finished(self, cells: Cell, rate: float) -> parts.Part:
        """The results of the batch."""
        hosts.all_there("batch written")
        return self._part(hosts.gathered(cells if self.keep else cells._replace(state=None)), self.keep)

    def _part(self, cells: Cell, keep: bool) -> parts.Part:
        state = None
        if keep:
            leaves = jax.device_get(jax.tree.leaves(jax.tree.map(as_numbers, cells.state)))
            state = [leaf[self.places] for leaf in leaves]
        # A copy even of a single chunk, which is a view of an array with another order of axes.
        metrics = {name: np.concatenate([chunk[name] for chunk in self.chunks], axis=1) for name in self.chunks[0]}
        self.chunks = [metrics]
        return parts.Part(self.cells, np.asarray(cells.diverged)[self.places], state, metrics)


class BatchProgress(SilentProgress):
    """Calls ``on_rounds`` after each chunk of a batch."""

    def __init__(self, on_rounds: OnRounds, n_runs: int, first: int, done_before: int, n: int) -> None:
        self.on_rounds, self.n_runs, self.first = on_rounds, n_runs, first
        self.done_before, self.n = done_before, n  # rounds of the stage's other runs that are done, and of all its runs

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        """The batch stands at round ``done``."""
        self.on_rounds(self.done_before + (done - self.first) * self.n_runs, self.n)
