"""The files of a search: one for each batch of runs that is done, and one for the batch whose rounds go on."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.devices import hosts
from fljax.files import checksum, read_arrays, restored, save_arrays, write_atomically
from fljax.folder.same_run import check_same_run
from fljax.folder.surroundings import continued
from fljax.run.sweep.cells import Cell
from fljax.run.sweep.widened import NUMBERS, widened

FOLDER, IDENTITY, BEGUN = "parts", "search.json", "begun.npz"
HISTORY, CHECKSUM = "history", "checksum"

AGAIN = "delete it, and its runs are made again"
"""The remedy for a batch that cannot be used."""


class Part(NamedTuple):
    """The results of a batch of runs in one stage, one row per run."""

    cells: np.ndarray  # (runs,) their numbers, as in `fljax.run.sweep.cells.all_cells`
    diverged: np.ndarray  # (runs,) as in `Cell`
    state: list[np.ndarray] | None  # leaves (runs, ...) of the states; None after the last stage
    metrics: dict[str, np.ndarray]  # (runs, rounds of the stage, ...); of a batch that goes on, its rounds so far

    @property
    def n_rounds(self) -> int:
        """Rounds of the stage; 0 without metrics."""
        return next((value.shape[1] for value in self.metrics.values() if value.ndim > 1), 0)


class Store(NamedTuple):
    """The store of batches; without a ``folder`` nothing is stored.

    A file has the seed of each run and the number of its point, which stays the same when points and seeds are added.
    """

    folder: Path | None
    now: dict[str, Any] = {}  # noqa: RUF012 - `fljax.folder.surroundings.surroundings`; a default, never changed
    force: bool = False  # resume with other versions or devices
    n_seeds: int = 1
    numbers: tuple[int, ...] = (0,)  # the number of each point in files

    def open(self, identity: dict[str, Any], writable: bool = True) -> "Store":
        """Makes the folder, or checks that it belongs to the search of this ``identity``, which may have more points
        and seeds.

        All hosts must call it. The returned store has the numbers of the points.

        Raises:
            ValueError: the folder holds another or an unknown search, or is not ``writable`` and holds none.
        """
        if self.folder is None:
            return self
        path = self._identity
        if not path.exists() and self._files(".*"):
            raise ValueError(f"{path} is missing; restore it from a copy, or delete {path.parent} to begin again")
        if not writable and not path.exists():
            raise ValueError(f"{self.folder} is not writable; choose another folder")
        if hosts.writes() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(identity, [{"batches": 0, **self.now}])
        hosts.all_there("search begun")
        stored, history = _read_identity(path)
        merged, missing_point = widened(stored, identity)
        check_same_run(self.folder, merged, identity | {NUMBERS: merged[NUMBERS]}, [*history, self.now])
        if missing_point is not None:
            raise ValueError(
                f"{self.folder} holds runs of {missing_point}, which is not among the points; add it, or use another "
                "folder"
            )
        if (has_more := merged != stored) and not writable:
            raise ValueError(f"{self.folder} is not writable; choose another folder")
        if has_more and hosts.writes():
            self._write(merged, history)
        hosts.all_there("search told of further points and seeds")
        return self._replace(numbers=tuple(merged[NUMBERS]))

    def go_on(self) -> None:
        """Called if something is left to compute; all hosts must call it.

        Raises:
            ValueError: the runs so far were made with other versions or devices, and ``force`` is False.
        """
        if self.folder is None:
            return
        identity, history = _read_identity(self._identity)
        since = {"batches": len(self._files(".*"))}
        is_new = not since["batches"] and not self._begun.exists()
        new_history = continued(self.folder, history, self.now, since, self.force or is_new)
        if hosts.writes() and new_history != history:
            self._write(identity, new_history)
        hosts.all_there("search gone on with")

    def read(self, stage: int, todo: np.ndarray, n_rounds: int) -> list[Part]:
        """The stage's batches so far: of runs in ``todo``, of ``n_rounds`` rounds.

        Raises:
            ValueError: a file is damaged, or belongs to another stage or search.
        """
        batches: list[Part] = []
        missing = set(todo.tolist())
        for path in self._files(f"{stage:02d}"):
            _, part = _read(path, self, batches[0].metrics.keys() if batches else None)
            if part.n_rounds != n_rounds or not missing.issuperset(part.cells.tolist()):
                raise _no_batch(path)
            batches.append(part)
            missing -= set(part.cells.tolist())
        return batches

    def read_begun(self, stage: int, todo: np.ndarray, n_rounds: int) -> Part | None:
        """The batch that was interrupted in this stage, if its runs are all in ``todo``; None if there is none.

        Raises:
            ValueError: the file is damaged.
        """
        if self.folder is None or not self._begun.exists():
            return None
        stage_begun, part = _read(self._begun, self)
        is_left = stage_begun == stage and part.n_rounds < n_rounds and set(part.cells.tolist()) <= set(todo.tolist())
        return part if is_left else None

    def write(self, stage: int, part: Part, is_finished: bool = True) -> None:
        """Saves a batch atomically; one that is not finished takes the place of what it saved before."""
        if self.folder is None:
            return
        arrays = {f"metric.{name}": value for name, value in part.metrics.items()}
        arrays |= {f"state.{i:04d}": leaf for i, leaf in enumerate(part.state or ())}
        runs = self._runs(part.cells)
        run_arrays = {"runs": runs, "diverged": part.diverged, "stage": np.array(stage)}
        path = self.folder / FOLDER / _name(stage, runs) if is_finished else self._begun
        save_arrays(path, arrays | run_arrays)
        if is_finished:
            self._begun.unlink(missing_ok=True)

    def _runs(self, cells: np.ndarray) -> np.ndarray:
        """The number in files of each cell's point, and its seed, (runs, 2)."""
        point, seed = np.divmod(cells, self.n_seeds)
        return np.stack([np.asarray(self.numbers)[point], seed], axis=1)

    def cells(self, runs: np.ndarray) -> np.ndarray:
        """The cells of ``runs``, (runs, 2): a point's number in files and a seed; -1 for a run of another search."""
        index_of_number = {number: i for i, number in enumerate(self.numbers)}
        point = np.array([index_of_number.get(int(number), -1) for number in runs[:, 0]], int)
        is_known = (point >= 0) & (runs[:, 1] >= 0) & (runs[:, 1] < self.n_seeds)
        return np.where(is_known, point * self.n_seeds + runs[:, 1], -1)

    @property
    def _identity(self) -> Path:
        assert self.folder is not None, "nothing is kept nowhere"
        return self.folder / FOLDER / IDENTITY

    @property
    def _begun(self) -> Path:
        assert self.folder is not None, "nothing is kept nowhere"
        return self.folder / FOLDER / BEGUN

    def _write(self, identity: dict[str, Any], history: list[dict[str, Any]]) -> None:
        text = json.dumps(identity | {HISTORY: history})
        write_atomically(self._identity, json.dumps(json.loads(text) | {CHECKSUM: checksum(text.encode())}).encode())

    def _files(self, stage: str) -> list[Path]:
        """The batches' files, in order; other files are ignored."""
        if self.folder is None:
            return []
        pattern = re.compile(rf"{stage}-\d{{4,}}-\d{{6,}}\.npz")
        return sorted(path for path in self.folder.glob(f"{FOLDER}/*") if pattern.fullmatch(path.name))


def _name(stage: int, runs: np.ndarray) -> str:
    """The file name of a batch: its stage, and the seed and the point of its first run."""
    return f"{stage:02d}-{runs[0, 1]:04d}-{runs[0, 0]:06d}.npz" if len(runs) else ""


def _read_identity(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The identity of a search, and the history of its versions and devices."""
    try:
        identity = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        identity = error
    crc = identity.pop(CHECKSUM, None) if isinstance(identity, dict) else None
    if isinstance(identity, dict) and crc == checksum(json.dumps(identity).encode()):
        return identity, identity.pop(HISTORY)
    raise ValueError(f"{path} is damaged; restore it from a copy, or delete {path.parent}")


def level_of(folder: Path) -> Any:
    """The level at which the search in ``folder`` is compiled; None if there is no search."""
    path = folder / FOLDER / IDENTITY
    return _read_identity(path)[0].get("compile") if path.exists() else None


def n_devices_of(folder: Path) -> int | None:
    """The number of devices of the search in ``folder``; None if there is no search."""
    path = folder / FOLDER / IDENTITY
    history = _read_identity(path)[1] if path.exists() else []
    return history[-1].get("devices") if history else None


def _read(path: Path, store: Store, names: Collection[str] | None = None) -> tuple[int, Part]:
    """The stage of a batch, and the batch, with metrics of these ``names``; None: of any."""
    arrays, _ = read_arrays(path, AGAIN)
    stage, runs = int(arrays.get("stage", -1)), arrays.get("runs", np.zeros((0, 2), int))
    state = [restored(arrays[name]) for name in sorted(arrays) if name.startswith("state.")]
    part = Part(np.zeros(0, int), arrays.get("diverged", np.zeros(0)), state or None, _metrics_in(arrays))
    is_whole = (
        runs.shape[1:] == (2,)
        and path.name in (BEGUN, _name(stage, runs))
        and {value.shape[:2] for value in part.metrics.values()} == {(len(runs), part.n_rounds)}
        and {leaf.shape[:1] for leaf in (*state, part.diverged)} == {(len(runs),)}
    )
    if not is_whole or part.metrics.keys() != (names or part.metrics.keys()):
        raise _no_batch(path)
    return stage, part._replace(cells=store.cells(runs))


def _metrics_in(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("metric."): value for name, value in arrays.items() if name.startswith("metric.")}


def _no_batch(path: Path) -> ValueError:
    return ValueError(f"{path} is not a batch of this search; {AGAIN}")


def kept_in(folder: Path) -> tuple[dict[str, Any], list[Part]]:
    """The identity of the search in ``folder``, and its batches so far, stage by stage and without states, the one
    that goes on last; ({}, []) if there is no search.

    Raises:
        ValueError: a file is damaged, or belongs to another search.
    """
    store = Store(folder)
    files = [*store._files(".*"), *[store._begun] * store._begun.exists()]
    if not files:
        return {}, []
    identity, _ = _read_identity(store._identity)
    store = store._replace(n_seeds=identity["n_seeds"], numbers=tuple(identity[NUMBERS]))
    batches: list[Part] = []
    done: set[tuple[int, int]] = set()  # (stage, cell) of finished batches
    for path in files:
        try:
            stage, part = _read(path, store, batches[0].metrics.keys() if batches else None)
        except ValueError:
            if path.exists():
                raise
            continue  # the search runs, and has just finished its batch
        if (part.cells < 0).any():
            raise _no_batch(path)
        runs = {(stage, cell) for cell in part.cells.tolist()}
        if path.name != BEGUN or done.isdisjoint(runs):
            batches.append(part._replace(state=None))
        done |= runs
    return identity, batches


def joined(parts: list[Part]) -> Part:
    """The batches of a stage as one, in order of their runs."""
    cells = np.concatenate([part.cells for part in parts])
    order = np.argsort(cells)

    def rows(leaves: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(leaves)[order]

    states = [part.state for part in parts if part.state is not None]
    state = [rows(list(leaves)) for leaves in zip(*states, strict=True)] or None
    metrics = {name: rows([part.metrics[name] for part in parts]) for name in parts[0].metrics}
    return Part(cells[order], rows([part.diverged for part in parts]), state, metrics)


def put(cells: Cell, part: Part) -> Cell:
    """All cells, updated with those of ``part``; the states are lists of leaves."""
    n_cells = cells.diverged.shape[0]

    def placed(all_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
        all_rows = all_rows.copy()
        all_rows[part.cells] = rows
        return all_rows

    state = cells.state or [np.zeros((n_cells, *leaf.shape[1:]), leaf.dtype) for leaf in part.state or ()]
    diverged: Any = placed(np.asarray(cells.diverged), part.diverged)
    leaves: Any = [placed(all_rows, rows) for all_rows, rows in zip(state, part.state or (), strict=True)]
    return cells._replace(state=leaves, diverged=diverged)


def plain(value: Any) -> Any:
    """A field of a Hyper for JSON."""
    return None if value is None else np.asarray(value, np.float32).tolist()


def not_run(metrics: Mapping[str, np.ndarray], *leading: int) -> dict[str, np.ndarray]:
    """Metrics like these (runs, rounds, ...) with other ``leading`` axes, all of rounds not run: NaN, 0 or False."""

    def blank(value: np.ndarray) -> np.ndarray:
        nothing = np.nan if np.issubdtype(value.dtype, np.floating) else 0
        return np.full((*leading, *value.shape[2:]), nothing, value.dtype)

    return {name: blank(value) for name, value in metrics.items()}
