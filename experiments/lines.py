"""Lines of the results' files for tables whose columns are numbers of a run, published or not."""

from collections.abc import Callable, Iterable, Mapping
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
