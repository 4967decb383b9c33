"""Reads a comparison: the runs of all its seeds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fljax.metrics.spread import measured, spreads
from fljax.report.frames import ColumnArrays, read_table, stacked
from fljax.results.load import LoadedRun, existing, holds_run, load_run
from fljax.results.result import frame_of


@dataclass(frozen=True, repr=False)
class LoadedComparison:
    """A folder of ``fljax compare``: ``comparison[0]["fedavg"]`` is FedAvg's run of seed 0."""

    folder: Path
    seeds: dict[int, LoadedRun]  # by seed, ascending
    rows: list[dict[str, Any]]  # comparison.csv, None for an empty cell; [] if there is no file

    def __getitem__(self, seed: int) -> LoadedRun:
        """The runs of one seed.

        Raises:
            ValueError: there is no such seed.
        """
        if seed not in self.seeds:
            raise ValueError(f"{self.folder} has no seed {seed!r}; it has {', '.join(map(str, self.seeds))}")
        return self.seeds[seed]

    def __iter__(self) -> Iterator[int]:
        """The seeds."""
        return iter(self.seeds)

    def __len__(self) -> int:
        """The number of seeds."""
        return len(self.seeds)

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they were run."""
        return list(dict.fromkeys(name for run in self.seeds.values() for name in run))

    def curves(self, measure: str) -> dict[str, np.ndarray]:
        """Method -> ``measure`` after each round, (seeds, rounds), for means and standard deviations over the seeds.

        NaN in rounds without a test, after the last round of a run that ended early, and for missing seeds.

        Raises:
            ValueError: a run has no such metric.
        """
        curves = {}
        for method in self.methods:
            runs = [run[method].metrics if method in run else None for run in self.seeds.values()]
            values = [
                np.zeros(0) if metrics is None else _metric_of_rounds(metrics, measure, method) for metrics in runs
            ]
            longest = max(map(len, values))
            curves[method] = np.array(
                [np.append(curve, [np.nan] * (longest - len(curve))) for curve in values], np.float64
            )
        return curves

    def rounds(self) -> ColumnArrays:
        """`fljax.results.load.Result.rounds` of all runs below each other, with ``seed`` and ``algorithm``."""
        return stacked([({"seed": seed}, run.rounds()) for seed, run in self.seeds.items()])

    def tests(self) -> ColumnArrays:
        """`fljax.results.load.Result.tests` of all runs below each other, with ``seed`` and ``algorithm``."""
        return stacked([({"seed": seed}, run.tests()) for seed, run in self.seeds.items()])

    def frame(self, of: str = "rounds") -> Any:
        """`rounds` or `tests` as a pandas frame, or a polars frame if pandas is not installed.

        Raises:
            ValueError: neither is installed, or ``of`` is another word.
        """
        return frame_of(self, of)

    def __repr__(self) -> str:
        return f"<comparison {self.folder}: {', '.join(self.methods)}; seeds {', '.join(map(str, self.seeds))}>"


def load_comparison(folder: str | Path) -> LoadedComparison:
    """Reads a results folder of ``fljax compare``; for an unfinished comparison, the runs so far.

    Raises:
        ValueError: the folder does not exist, holds no comparison, or has a damaged file.
    """
    folder = existing(folder)
    run_folders = {path.parent for path in folder.glob("seed_*/*") if holds_run(path)}
    folder_of_seed = {path.name.removeprefix("seed_"): path for path in run_folders}
    runs = {int(seed): load_run(path) for seed, path in folder_of_seed.items() if seed.isdecimal()}
    if not runs:
        raise ValueError(f"{folder} holds no comparison: it has no run in a folder seed_0, seed_1, ...")
    return LoadedComparison(folder, dict(sorted(runs.items())), read_table(folder / "comparison.csv"))


def _metric_of_rounds(metrics: dict[str, np.ndarray], measure: str, method: str) -> np.ndarray:
    """(rounds,) values of a run's metric; ValueError if the run does not have it."""
    names = [*(name for name, value in metrics.items() if value.ndim == 1), *spreads(metrics)]
    if measure not in names:
        raise ValueError(f"a run of {method} has no metric {measure!r}; choose one of {', '.join(names)}")
    return measured(metrics, measure)
