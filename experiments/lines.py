"""Lines of the results' files for tables whose columns are numbers of a run, published or not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from outcomes import Outcome, described, keep, outcomes
from reporting import Result, Scale

Cells = Mapping[tuple[str, str, str], float]
"""(setting, method, metric) -> published number."""


def keep_runs(
    scale: Scale,
    place: tuple[str, str, str],
    results: Iterable[Result],
    columns: Mapping[str, Callable[[Result], float]],
    planned: int,
    stated: Cells | None = None,
    **settings: Any,
) -> None:
    """Keeps a line for every run and column whose number is finite.

    Args:
        scale: how large; where lines go.
        place: paper, table and data set, as in published.csv where they are there.
        results: runs.
        columns: metric -> its number.
        planned: rounds of a whole run.
        stated: published numbers.
        settings: settings of the run that the lines should tell, beside scale and rounds.
    """
    text_of = lambda r: described(scale.paper, len(r.metrics["ids"]), planned, **settings)  # noqa: E731
    lines = outcomes(results, columns, stated or {}, text_of)
    keep(scale.results, *place, [line for line in lines if np.isfinite(line.value)])


def keep_numbers(
    scale: Scale,
    place: tuple[str, str, str],
    numbers: Mapping[Any, float],
    rounds: tuple[int, ...],
    stated: Cells | None = None,
    **settings: Any,
) -> None:
    """As `keep_runs`, of numbers that are not those of one run.

    Args:
        scale: how large; where lines go.
        place: paper, table and data set.
        numbers: (method, setting, seed, metric) -> number.
        rounds: done and planned, or one number for both.
        stated: published numbers.
        settings: settings of the run that the lines should tell.
    """
    text, stated_numbers = described(scale.paper, rounds[0], rounds[-1], **settings), stated or {}
    lines = [
        Outcome(m, s, seed, metric, float(value), stated_numbers.get((s, m, metric)), rounds[0], 0.0, text)
        for (m, s, seed, metric), value in numbers.items()
        if np.isfinite(value)
    ]
    keep(scale.results, *place, lines)


N_POINTS = 10
"""Of a curve, at most, that have lines."""


def keep_curves(
    scale: Scale,
    place: tuple[str, str, str],
    results: Sequence[Result],
    names: Iterable[str],
    planned: int,
    **settings: Any,
) -> None:
    """Keeps some points of curves over the rounds, as "accuracy_micro after 10": up to `N_POINTS` for each run.

    Args:
        scale: how large; where lines go.
        place: paper, figure and data set.
        results: runs of one number of rounds, tested after the same ones.
        names: metrics; of one that each participant has, their mean.
        planned: rounds of a whole run.
        settings: settings of the runs that the lines should tell.
    """
    columns: dict[str, Callable[[Result], float]] = {}
    for name in names:
        n_measured = np.flatnonzero(np.isfinite(over_participants(results[0], name))) + 1
        chosen = np.unique(np.linspace(0, len(n_measured) - 1, N_POINTS).round().astype(int))
        for n in n_measured[chosen]:
            columns[f"{name} after {n}"] = lambda r, name=name, n=n: float(over_participants(r, name)[n - 1])
    keep_runs(scale, place, results, columns, planned, **settings)


def over_participants(result: Result, name: str) -> np.ndarray:
    """(rounds,) a metric; of one that each participant has, their mean."""
    values = np.asarray(result.metrics[name], float)
    return values.reshape(len(values), -1).mean(axis=1)
