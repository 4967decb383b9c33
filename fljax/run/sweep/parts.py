"""The files of a search: each batch of runs once it is done, so that a stopped search loses one batch at most."""

import json
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from fljax.run.checkpoint import check_same_run, save_arrays, write_atomically
from fljax.run.sweep.program import Cell

FOLDER, IDENTITY = "parts", "search.json"


class Part(NamedTuple):
    """What a batch of runs came to in one stage; a row per run."""

    cells: np.ndarray  # (runs,) their numbers, ascending
    diverged: np.ndarray  # (runs,) as in `Cell`
    state: list[np.ndarray] | None  # leaves (runs, ...) to go on from; None after the last stage
    metrics: dict[str, np.ndarray]  # (runs, rounds of the stage, ...)


class Store(NamedTuple):
    """Where batches are kept; nowhere if ``folder`` is None."""

    folder: Path | None
    identity: dict[str, Any]  # what makes it this search and no other

    def open(self) -> None:
        """Makes the folder, or sees that it is this search's.

        Raises:
            ValueError: it holds another.
        """
        if self.folder is None:
            return
        path = self.folder / FOLDER / IDENTITY
        if path.exists():
            check_same_run(self.folder, json.loads(path.read_text()), self.identity)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.identity).encode())

    def read(self, stage: int) -> list[Part]:
        """The stage's batches so far."""
        if self.folder is None:
            return []
        return [_read(path) for path in sorted(self.folder.glob(f"{FOLDER}/{stage:02d}-*.npz"))]

    def write(self, stage: int, part: Part) -> None:
        """Keeps a batch: written aside and renamed."""
        if self.folder is None:
            return
        arrays = {f"metric.{name}": value for name, value in part.metrics.items()}
        arrays |= {f"state.{i:04d}": leaf for i, leaf in enumerate(part.state or ())}
        path = self.folder / FOLDER / f"{stage:02d}-{part.cells[0]:08d}.npz"
        save_arrays(path, arrays | {"cells": part.cells, "diverged": part.diverged})


def _read(path: Path) -> Part:
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it, and its runs are made again") from None
    state = [arrays[name] for name in sorted(arrays) if name.startswith("state.")]
    metrics = {name.removeprefix("metric."): value for name, value in arrays.items() if name.startswith("metric.")}
    return Part(arrays["cells"], arrays["diverged"], state or None, metrics)


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
