"""Reads a sweep: the runs of all its static settings, points and seeds."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fljax.catalogue.file_words import files_of
from fljax.catalogue.words import in_words
from fljax.jobs.kinds import made_by
from fljax.jobs.settings import last, of_toml
from fljax.jobs.sweep import folder_of, read_sweep
from fljax.report.frames import ColumnArrays, as_frame, read_table, stacked
from fljax.results.load import existing
from fljax.run.sweep.load import Searched, read_search
from fljax.run.sweep.parts import FOLDER, IDENTITY


@dataclass(frozen=True, repr=False)
class LoadedSweep:
    """A folder of ``fljax sweep``, or of `fljax.run.sweep.search`."""

    folder: Path
    found: list[Searched]  # one per static setting that has runs; a single one without an outer loop
    table: list[dict[str, Any]]  # table.csv, one row per point and seed, None for an empty cell; [] if there is no file

    def rounds(self) -> ColumnArrays:
        """All runs in one table, one row per round, with the static setting, the point's hyperparameters and
        ``seed``."""
        return stacked([({}, search.columns()) for search in self.found])

    def rows(self) -> list[dict[str, Any]]:
        """`table`, if it has every run; else, for an unfinished sweep, one row per run so far, without epsilon and
        simulated seconds."""
        rows = [row for search in self.found for row in search.rows()]
        return self.table if len(self.table) == len(rows) else rows

    def frame(self) -> Any:
        """`rounds` as a pandas frame, or a polars frame if pandas is not installed.

        Raises:
            ValueError: neither is installed.
        """
        return as_frame(self.rounds())

    def __repr__(self) -> str:
        sizes = [search.metrics["ids"].shape[:3] for search in self.found]
        runs = "; ".join(f"{points} points x {seeds} seeds, {rounds} rounds" for points, seeds, rounds in sizes)
        return f"<sweep {self.folder}: {runs}>"


def load_sweep(folder: str | Path) -> LoadedSweep:
    """Reads a folder of ``fljax sweep``, or of `fljax.run.sweep.search`; for an unfinished sweep, the runs so far.

    Raises:
        ValueError: the folder does not exist, holds no sweep, or has a damaged file.
    """
    folder = existing(folder)
    places: dict[Path, dict[str, Any]] = {folder: {}}
    config, split = folder / "config.toml", "test"
    if config.exists() and made_by(config) == "sweep":
        places, split = _places(folder)
    elif not config.exists():
        places |= {folder / folder_of({}): {}}
    searches = [
        read_search(path, {name: in_words(value) for name, value in setting.items()}, split)
        for path, setting in places.items()
    ]
    if not (searches_with_runs := [search for search in searches if search is not None]):
        raise ValueError(f"{folder} holds no runs of a sweep; give a folder of fljax sweep")
    return LoadedSweep(folder, searches_with_runs, read_table(folder / "table.csv"))


def _places(folder: Path) -> tuple[dict[Path, dict[str, Any]], str]:
    """The folder of each static setting of a sweep, and the split by which it was judged.

    If a user's file that the sweep needs is missing, each static setting has the name of its folder.
    """
    try:
        sweep = read_sweep(["--folder", str(folder), "--resume"])
    except ValueError:
        stored = of_toml(folder / "config.toml")
        if all(file.exists() for _, words in stored for word in words for file in files_of(word)):
            raise
        folders = sorted(path.parent.parent for path in folder.glob(f"*/{FOLDER}/{IDENTITY}"))
        labels = {path: {} if path.name == folder_of({}) else {"setting": path.name} for path in folders}
        return labels, (last([stored], "judge") or ["test"])[0]
    values = sweep.settings()
    settings = [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]
    return {folder / folder_of(setting): setting for setting in settings}, sweep.own.judge
