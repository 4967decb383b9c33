"""Reads a search: its points and the metrics of their runs, round by round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.metrics.spread import measured, spreads
from fljax.report.frames import ColumnArrays, columns_of_rounds, stacked
from fljax.run.sweep import parts
from fljax.run.sweep.table import named, of_split, outcomes, unnamed
from fljax.run.sweep.widened import HYPER, NUMBERS, table_of


class Searched(NamedTuple):
    """The result of one search: all points and seeds under one static setting."""

    setting: Mapping[str, str]  # the static choices, as in table.csv; {} without an outer loop
    points: list[dict[str, float]]  # the hyperparameters that vary, point by point
    metrics: dict[str, np.ndarray]
    """(points, seeds, rounds, ...) as from `fljax.sweep`, but without epsilon, churn and simulated seconds, and without
    ari unless all clients participate in every round, because it needs their true groups; NaN, 0 or False in rounds not
    run. Tests on another split have the split's name as a prefix."""
    rounds: np.ndarray  # (points, seeds) rounds of each run so far
    split: str = "test"  # the split of the tests

    def curves(self, measure: str) -> np.ndarray:
        """``measure`` after each round, (points, seeds, rounds), for means and standard deviations over the seeds.

        NaN in rounds that were not run or not tested, and after a run has diverged.

        Raises:
            ValueError: the runs have no such metric.
        """
        plain = {unnamed(name, self.split): value for name, value in self.metrics.items()}
        spread_names = [named(name, self.split) for name in spreads(plain)]
        names = [*(name for name, value in self.metrics.items() if value.ndim == 3), *spread_names]
        if measure not in names:
            raise ValueError(f"the runs have no metric {measure!r}; choose one of {', '.join(names)}")
        values = measured(plain, unnamed(measure, self.split))
        return np.where(self._was_run & ~self.metrics["diverged"], values, np.nan)

    def rows(self) -> list[dict[str, Any]]:
        """`fljax.run.sweep.tidy` of the runs so far, one row each, without the columns whose metrics are missing."""
        plain = {unnamed(name, self.split): value for name, value in self.metrics.items()}
        return [
            of_split(
                {**self.setting, **self.points[i], "seed": seed, "rounds": int(self.rounds[i, seed]), **outcome},
                self.split,
            )
            for i, seed, outcome in outcomes(plain, self.rounds)
        ]

    @property
    def _was_run(self) -> np.ndarray:
        """(points, seeds, rounds) whether a round was run."""
        return np.arange(self.metrics["diverged"].shape[2]) < self.rounds[..., None]

    def columns(self) -> ColumnArrays:
        """All runs below each other, one row per round: the setting, the point's hyperparameters, the seed, and the
        run's `fljax.report.frames.columns_of_rounds`."""
        tables = []
        for i, point in enumerate(self.points):
            for seed in np.flatnonzero(self.rounds[i]):
                run_metrics = {name: value[i, seed, : self.rounds[i, seed]] for name, value in self.metrics.items()}
                tables.append(({**self.setting, **point, "seed": seed}, columns_of_rounds(run_metrics)))
        return stacked(tables)


def read_search(folder: Path, setting: Mapping[str, str], split: str) -> Searched | None:
    """Reads the runs that `fljax.run.sweep.search` has saved in ``folder`` so far; None if there are none.

    ``split`` is the split of the tests, which the search itself does not record.

    Raises:
        ValueError: a file is damaged, or belongs to another search.
    """
    identity, batches = parts.kept_in(folder)
    if not batches:
        return None
    try:
        searched = _searched(identity, batches, setting)
        if "ari" in searched.metrics and not _all_take_part(searched):
            searched.metrics.pop("ari")  # in the files it covers only the participants
        return searched._replace(metrics=of_split(searched.metrics, split), split=split)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} has batches of another search ({error!r}); restore them from a copy") from None


def _all_take_part(searched: Searched) -> bool:
    """Whether every client participated in each round that was run."""
    n_clients = searched.metrics["client_loss"].shape[-1]
    active = searched.metrics["active"][searched._was_run]
    return active.shape[-1] == n_clients and bool(active.all())


def _searched(identity: Mapping[str, Any], batches: Sequence[parts.Part], setting: Mapping[str, str]) -> Searched:
    n_seeds, n_rounds = identity["n_seeds"], identity["n_rounds"]
    table, n_points = table_of(identity), len(identity[NUMBERS])
    varied = [name for name in table if isinstance(identity[f"{HYPER}{name}"], list)]
    points = [{name: float(str(table[name][i])) for name in varied} for i in range(n_points)]
    metrics = parts.not_run(batches[0].metrics, n_points, n_seeds, n_rounds)
    n_made = np.zeros((n_points, n_seeds), int)
    for part in batches:
        n = part.metrics["ids"].shape[1]
        for row, cell in enumerate(part.cells.tolist()):
            run = divmod(cell, n_seeds)
            for name, value in part.metrics.items():
                metrics[name][run][n_made[run] : n_made[run] + n] = value[row]
            n_made[run] += n
    return Searched(setting, points, metrics, n_made)
