"""A sweep in hand: the runs of all its static settings, points and seeds."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fljax.catalogue.own import is_file
from fljax.catalogue.words import in_words
from fljax.jobs.kinds import made_by
from fljax.jobs.settings import last, of_toml
from fljax.jobs.sweep import folder_of, read_sweep
from fljax.run.frames import Columns, as_frame, read_table, stacked
from fljax.run.load import existing
from fljax.run.sweep.load import Searched, read_search
from fljax.run.sweep.parts import FOLDER, IDENTITY


@dataclass(frozen=True, repr=False)
class LoadedSweep:
    """A folder of ``fljax sweep``, or of `fljax.run.sweep.search`."""

    folder: Path
    found: list[Searched]  # one for each static setting that has runs; without an outer loop the only one
    table: list[dict[str, Any]]  # table.csv, a row a point and seed, None where a cell is empty; [] where there is none

    def rounds(self) -> Columns:
        """All runs below each other, a row a round, behind the static setting, the point's numbers and ``seed``."""
        return stacked([({}, one.columns()) for one in self.found])

    def rows(self) -> list[dict[str, Any]]:
        """`table`, where it has every run that there is; else, as of a sweep that goes on, a row of each run so far,
        without epsilon and simulated seconds."""
        found = [row for one in self.found for row in one.rows()]
        return self.table if len(self.table) == len(found) else found

    def frame(self) -> Any:
        """`rounds` as a pandas frame, or a polars one where pandas is not installed.

        Raises:
            ValueError: neither is installed.
        """
        return as_frame(self.rounds())

    def __repr__(self) -> str:
        sizes = [one.metrics["ids"].shape[:3] for one in self.found]
        runs = "; ".join(f"{points} points x {seeds} seeds, {rounds} rounds" for points, seeds, rounds in sizes)
        return f"<sweep {self.folder}: {runs}>"


def load_sweep(folder: str | Path) -> LoadedSweep:
    """Reads a folder of ``fljax sweep``, or of `fljax.run.sweep.search`; of one that was stopped, what there is.

    Raises:
        ValueError: it is not there, holds no sweep, or a file of it is damaged.
    """
    folder = existing(folder)
    places: dict[Path, dict[str, Any]] = {folder: {}}
    config, split = folder / "config.toml", "test"
    if config.exists() and made_by(config) == "sweep":
        places, split = _places(folder)
    elif not config.exists():
        places |= {folder / folder_of({}): {}}
    read = [
        read_search(path, {name: in_words(value) for name, value in own.items()}, split) for path, own in places.items()
    ]
    if not (found := [one for one in read if one is not None]):
        raise ValueError(f"{folder} holds no runs of a sweep; fljax sweep --folder makes some")
    return LoadedSweep(folder, found, read_table(folder / "table.csv"))


def _places(folder: Path) -> tuple[dict[Path, dict[str, Any]], str]:
    """The folder of each static setting of a sweep, and the split that it was judged by.

    Where a file of the user's that the sweep was made with is not there, a static setting is called by its folder.
    """
    try:
        sweep = read_sweep(["--folder", str(folder), "--resume"])
    except ValueError:
        stored = of_toml(folder / "config.toml")
        if not any(
            is_file(word) and not Path(word.rpartition(":")[0]).exists() for _, words in stored for word in words
        ):
            raise
        below = sorted(path.parent.parent for path in folder.glob(f"*/{FOLDER}/{IDENTITY}"))
        named = {path: {} if path.name == folder_of({}) else {"setting": path.name} for path in below}
        return named, (last([stored], "judge") or ["test"])[0]
    values = sweep.settings()
    settings = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return {folder / folder_of(setting): setting for setting in settings}, sweep.own.judge
