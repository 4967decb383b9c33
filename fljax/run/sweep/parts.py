"""The files of a search: each batch of runs once it is done, so that a stopped search loses one batch at most."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.files import read_arrays, restored, save_arrays, write_atomically
from fljax.run import hosts
from fljax.run.same import check_same_run
from fljax.run.surroundings import continued
from fljax.run.sweep.program import Cell

FOLDER, IDENTITY, HISTORY = "parts", "search.json", "history"

NUMBERS, BY_SEED = "runs", "seed by seed"
"""Says how the runs of a search are numbered in its files; an older one says nothing, and has them point by point."""

AGAIN = "delete it, and its runs are made again"
"""What to do about a batch that cannot be used."""


class Part(NamedTuple):
    """What a batch of runs came to in one stage; a row per run."""

    cells: np.ndarray  # (runs,) their numbers
    diverged: np.ndarray  # (runs,) as in `Cell`
    state: list[np.ndarray] | None  # leaves (runs, ...) to go on from; None after the last stage
    metrics: dict[str, np.ndarray]  # (runs, rounds of the stage, ...)


class Store(NamedTuple):
    """Where batches are kept; nowhere if ``folder`` is None.

    In files a run is number ``seed * n_points + point``, so that further seeds come after all that is there; elsewhere
    `fljax.run.sweep.program.all_cells` numbers the runs.
    """

    folder: Path | None
    now: dict[str, Any] = {}  # noqa: RUF012 - `fljax.run.surroundings.surroundings`; a default, never changed
    force: bool = False  # go on in other surroundings
    n_points: int = 1
    n_seeds: int = 1

    def open(self, identity: dict[str, Any], writable: bool = True) -> None:
        """Makes the folder, or sees that it is the search's of this ``identity``; all hosts must call it.

        Raises:
            ValueError: it holds another, or does not say which, or there is none where it is not ``writable``.
        """
        if self.folder is None:
            return
        path = self._identity
        if not path.exists() and self._files(".*"):
            raise ValueError(f"{path} is missing; put it back from a copy, or delete {path.parent} to begin again")
        if not writable and not path.exists():
            raise ValueError(f"{self.folder} cannot be written; choose another folder")
        if hosts.writes() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(identity, [{"batches": 0, **self.now}])
        hosts.all_there("search begun")
        stored, history = _read_identity(path)
        before = stored.get("n_seeds")
        more = isinstance(before, int) and before < self.n_seeds and stored.get("halving") is None
        check_same_run(
            self.folder, stored | ({"n_seeds": self.n_seeds} if more else {}), identity, [*history, self.now]
        )
        if more and not writable:
            raise ValueError(f"{self.folder} cannot be written; choose another folder")
        if more and hosts.writes():
            self._write(identity, history)
        hosts.all_there("search told of further seeds")

    def go_on(self) -> None:
        """Called where something is left to compute; all hosts must call it.

        Raises:
            ValueError: what is there was made in other surroundings, and going on is not forced.
        """
        if self.folder is None:
            return
        identity, history = _read_identity(self._identity)
        since = {"batches": len(self._files(".*"))}
        longer = continued(self.folder, history, self.now, since, self.force or not since["batches"])
        if hosts.writes() and longer != history:
            self._write(identity, longer)
        hosts.all_there("search gone on with")

    def read(self, stage: int, todo: np.ndarray, n_rounds: int, keep: bool) -> list[Part]:
        """The stage's batches so far: of runs in ``todo``, of ``n_rounds`` rounds, with states if ``keep``.

        Raises:
            ValueError: a file is damaged, or another stage's or search's.
        """
        found: list[Part] = []
        left = set(todo.tolist())
        for path in self._files(f"{stage:02d}"):
            part = _read(path, n_rounds, keep, found[0].metrics.keys() if found else None)
            seed, point = np.divmod(part.cells, self.n_points)
            part = part._replace(cells=point * self.n_seeds + seed)
            if not left.issuperset(part.cells.tolist()):
                raise ValueError(f"{path} is not a batch of this search; {AGAIN}")
            found.append(part)
            left -= set(part.cells.tolist())
        return found

    def write(self, stage: int, part: Part) -> None:
        """Keeps a batch: written aside and renamed."""
        if self.folder is None:
            return
        arrays = {f"metric.{name}": value for name, value in part.metrics.items()}
        arrays |= {f"state.{i:04d}": leaf for i, leaf in enumerate(part.state or ())}
        point, seed = np.divmod(part.cells, self.n_seeds)
        cells = seed * self.n_points + point
        path = self.folder / FOLDER / _name(stage, cells)
        own = {"cells": cells, "diverged": part.diverged, "stage": np.array(stage)}
        save_arrays(path, arrays | own)

    @property
    def _identity(self) -> Path:
        assert self.folder is not None, "nothing is kept nowhere"
        return self.folder / FOLDER / IDENTITY

    def _write(self, identity: dict[str, Any], history: list[dict[str, Any]]) -> None:
        write_atomically(self._identity, json.dumps(identity | {HISTORY: history}).encode())

    def _files(self, stage: str) -> list[Path]:
        """The batches' files, in order; what else lies there is nobody's business."""
        if self.folder is None:
            return []
        own = re.compile(rf"{stage}-\d{{8,}}\.npz")
        return sorted(path for path in self.folder.glob(f"{FOLDER}/*") if own.fullmatch(path.name))


def _name(stage: int, cells: np.ndarray) -> str:
    """The file of a batch: its stage and the first of its runs."""
    return f"{stage:02d}-{cells[0]:08d}.npz" if len(cells) else ""


def _read_identity(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was searched, and in what surroundings."""
    try:
        identity = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        identity = error
    history = identity.pop(HISTORY, []) if isinstance(identity, dict) else None
    if isinstance(identity, dict) and isinstance(history, list) and all(isinstance(one, dict) for one in history):
        return identity, history
    raise ValueError(f"{path} does not say what was searched; put it back from a copy, or delete {path.parent}")


def level_of(folder: Path) -> Any:
    """The level at which the search in ``folder`` is compiled; None where there is none."""
    path = folder / FOLDER / IDENTITY
    return _read_identity(path)[0].get("compile") if path.exists() else None


def n_devices_of(folder: Path) -> int | None:
    """How many devices the search in ``folder`` is on; None where there is none."""
    path = folder / FOLDER / IDENTITY
    history = _read_identity(path)[1] if path.exists() else []
    return history[-1].get("devices") if history else None


def _read(path: Path, n_rounds: int, keep: bool, names: Collection[str] | None) -> Part:
    arrays, _ = read_arrays(path, AGAIN)
    state = [restored(arrays[name]) for name in sorted(arrays) if name.startswith("state.")]
    metrics = {name.removeprefix("metric."): value for name, value in arrays.items() if name.startswith("metric.")}
    cells, diverged = (arrays.get(name, np.zeros(0)) for name in ("cells", "diverged"))
    leading = {value.shape[:2] for value in metrics.values()} | {(*leaf.shape[:1], n_rounds) for leaf in state}
    named = path.name == _name(int(arrays.get("stage", -1)), cells)
    whole = named and leading == {(len(cells), n_rounds)} and len(diverged) == len(cells) and bool(state) >= keep
    if not whole or metrics.keys() != (names or metrics.keys()):
        raise ValueError(f"{path} is not a batch of this search; {AGAIN}")
    return Part(cells, diverged, state or None, metrics)


def kept_in(folder: Path) -> tuple[dict[str, Any], list[Part]]:
    """What was searched in ``folder``, and its batches so far, stage by stage and without states; none: no search.

    Raises:
        ValueError: a file is damaged, or of another search.
    """
    store = Store(folder)
    files = store._files(".*")
    if not files:
        return {}, []
    found: list[Part] = []
    for path in files:
        arrays, _ = read_arrays(path, AGAIN)
        metrics = {name.removeprefix("metric."): value for name, value in arrays.items() if name.startswith("metric.")}
        if "cells" not in arrays or (found and metrics.keys() != found[0].metrics.keys()):
            raise ValueError(f"{path} is not a batch of this search; {AGAIN}")
        found.append(Part(arrays["cells"], arrays["diverged"], None, metrics))
    return _read_identity(store._identity)[0], found


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
    """All cells with those of ``part`` where they stand now; the states are lists of leaves."""
    n_cells = cells.diverged.shape[0]

    def placed(whole: np.ndarray, rows: np.ndarray) -> np.ndarray:
        whole = whole.copy()
        whole[part.cells] = rows
        return whole

    state: Any = cells.state or [np.zeros((n_cells, *leaf.shape[1:]), leaf.dtype) for leaf in part.state or ()]
    state = [placed(whole, rows) for whole, rows in zip(state, part.state or (), strict=True)]
    return cells._replace(state=state, diverged=placed(np.asarray(cells.diverged), part.diverged))


def plain(value: Any) -> Any:
    """A field of a Hyper as JSON has it."""
    return None if value is None else np.asarray(value, np.float32).tolist()


def blank(dtype: Any) -> Any:
    """What stands for a round that was not run: NaN, 0 or False."""
    return np.nan if np.issubdtype(dtype, np.floating) else 0
