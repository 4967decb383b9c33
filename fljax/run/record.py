"""The host's record of a run during its rounds, and the result of a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax import tree
from fljax.devices import hosts
from fljax.devices.programs import Compiler
from fljax.files import read_arrays, save_arrays
from fljax.folder import checkpoint as files
from fljax.folder.resume import Begun
from fljax.folder.round_seconds import Spent
from fljax.folder.rounds import append_rows, joined, read_rounds
from fljax.metrics.agreement import Truth, ari_of_rounds
from fljax.metrics.churn import churn_of_rounds
from fljax.rounds.draw_checks import check_ids
from fljax.rounds.memory import without_memory
from fljax.rounds.round_metrics import OF_CLIENT, check_clusters
from fljax.rounds.timing import Timing
from fljax.shown import repr_with_shapes
from fljax.types import State


class Run(NamedTuple):
    """The result of a finished run."""

    state: State
    metrics: dict[str, np.ndarray]  # as from `simulate`, NumPy arrays
    seconds: float  # of all rounds, also those before a resume; NaN if an older folder does not record it
    rounds_per_second: float  # without the first chunk of this call; NaN if there was no other
    compile_seconds: float = float("nan")  # of tracing and compiling, or of reading kept programs; not in ``seconds``
    compiler: Compiler | None = None  # with the level at which the run was compiled

    __repr__ = repr_with_shapes


class Record:
    """The host's record of one run during its rounds: metrics, the folder's files, the progress."""

    def __init__(
        self,
        folder: Path | None,
        identity: dict[str, Any],
        begun: Begun,
        epsilon: np.ndarray | None,
        timing: Timing | None,
        compiling: float = 0.0,
        truth: Truth | None = None,
    ) -> None:
        self.folder, self.identity, self.epsilon = folder, identity, epsilon  # (rounds,) of a private method, or None
        self.timing, self.truth = timing, truth
        self.round, self.labels, self.n_clients = begun.round, begun.labels, begun.n_clients
        self.written, self.history = begun.written, begun.history
        self.spent, self.compiling = begun.spent, compiling  # counted so far, and to be counted with the next chunk
        self.parts: list[dict[str, np.ndarray]] = []  # all chunks; with a folder, which has the others, only the last
        self.saver = None if folder is None else files.Saver(folder)

    def took(self, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Receives a chunk's metrics, and returns them with those that only the host computes.

        Raises:
            ValueError: a user's sampling drew a client that does not exist, or one twice, or a user's rule returned a
                cluster that does not exist.
        """
        check_ids(metrics["ids"], self.n_clients)
        check_clusters(metrics)
        first, self.round = self.round, self.round + len(metrics["ids"])
        if "label" in metrics and self.truth is not None:
            metrics["ari"] = ari_of_rounds(metrics, self.truth, first, self.labels)
        if "label" in metrics:
            metrics["churn"], self.labels = churn_of_rounds(metrics, self.n_clients, self.labels)
        if self.epsilon is not None:
            metrics["epsilon"] = self.epsilon[first : self.round]
        if self.timing is not None:
            metrics["simulated_seconds"] = self.timing.of_rounds(first, metrics).astype(np.float32)
        if self.folder is not None:
            self.parts.clear()
        self.parts.append(dict(metrics))  # a copy: a logger may keep the other
        return metrics

    def spend(self, seconds: float) -> None:
        """Counts the seconds of a chunk, and with the first one those of compiling; a finished run that is only shown
        has none."""
        self.spent = Spent(self.spent.seconds + seconds, self.spent.compile_seconds + self.compiling)
        self.compiling = 0.0

    def write(self) -> None:
        """Appends the last chunk's rounds to the folder."""
        if self.folder is not None and hosts.writes():
            metrics = self.parts[-1]
            self.written = append_rows(self.folder, self.round - len(metrics["ids"]), metrics, self.written)

    def save(self, state: State) -> None:
        """Begins to write a checkpoint with this state."""
        if self.saver is not None and hosts.writes():
            self.saver.save(files.Checkpoint(self.round, self.written, self.identity, self.history, state), self.spent)

    def settle(self) -> None:
        """Waits until the last checkpoint is on the disk."""
        if self.saver is not None:
            self.saver.settle()

    def finished(self, state: State, rate: float) -> Run:
        """The run; writes the clients' last results."""
        if self.folder is None:
            metrics = joined(self.parts)
        else:
            hosts.all_there("rounds written")
            metrics = read_rounds(self.folder)
            path = self.folder / "clients.npz"
            last = last_of_each_client(metrics)
            if hosts.writes() and (self.parts or not holds(path, last)):  # a finished run may lie on a read-only disk
                save_arrays(path, last)
        return Run(without_memory(state), metrics, self.spent.seconds, rate, self.spent.compile_seconds)


class Records:
    """Several runs that stand at the same round; states and metrics are as `fljax.run.seeds` has them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records, self.folder = records, records[0].folder

    @property
    def round(self) -> int:
        """Rounds made."""
        return self.records[0].round

    @property
    def n_clients(self) -> int:
        """Clients of all runs together."""
        return len(self.records) * self.records[0].n_clients

    def took(self, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Receives a chunk's metrics (rounds, runs, ...), and returns those that a progress bar shows for all runs."""
        runs = [{name: value[:, i] for name, value in metrics.items()} for i in range(len(self.records))]
        recorded = [record.took(run) for record, run in zip(self.records, runs, strict=True)]
        names = [name for name, value in recorded[0].items() if value.ndim == 1]
        means = {name: np.mean([run[name] for run in recorded], axis=0) for name in names}
        return means | {name: np.concatenate([run[name] for run in recorded], axis=1) for name in ("active", "ok")}

    def spend(self, seconds: float) -> None:
        """As `Record.spend`, for every run with its share of the ``seconds``."""
        for record in self.records:
            record.spend(seconds / len(self.records))

    def write(self) -> None:
        """As `Record.write`, for every run."""
        for record in self.records:
            record.write()

    def save(self, states: State) -> None:
        """As `Record.save`, for every run."""
        for i, record in enumerate(self.records):
            record.save(tree.take(states, i))

    def settle(self) -> None:
        """As `Record.settle`, for every run."""
        for record in self.records:
            record.settle()

    def finished(self, states: State, rate: float) -> list[Run]:
        """As `Record.finished`, for every run."""
        n = len(self.records)
        return [record.finished(tree.take(states, i), rate * n) for i, record in enumerate(self.records)]


def holds(path: Path, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a file has exactly these arrays."""
    try:
        stored, _ = read_arrays(path, "")
    except ValueError:  # it does not exist, or is damaged
        return False
    return stored.keys() == arrays.keys() and all(
        np.array_equal(stored[name], value, equal_nan=value.dtype.kind == "f") for name, value in arrays.items()
    )


def last_of_each_client(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Per-client arrays of the last round: the test metrics, and the label if every client participated in it."""
    arrays = {name: value[-1] for name, value in metrics.items() if name.startswith(OF_CLIENT)}
    n_clients = len(arrays["client_loss"])
    if "label" in metrics and len(metrics["ids"][-1]) == n_clients:
        arrays["label"] = metrics["label"][-1]
    return arrays
