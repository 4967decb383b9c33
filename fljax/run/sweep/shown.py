"""The results of a sweep in words: the best points in a table, the best of all in a line."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence

from fljax.metrics.headline import limits
from fljax.report.columns import decimals
from fljax.report.formats import Table
from fljax.report.significance import Interval
from fljax.report.summary import Row
from fljax.run.sweep.table import PARTITION, Spread, best, by_point, completed, named, ranked

SHOWN = 10
"""Number of points in `as_table`; the rows of `fljax.run.sweep.tidy` have all."""


def as_table(spreads: Sequence[Spread], metric: str, split: str = "test", most: int | None = SHOWN) -> Table:
    """The best points in the order of `ranked`, with their intervals; ``split``: the split of the tests."""
    cells, private = [], any(spread.epsilon is not None for spread in spreads)
    is_over_partitions = any(spread.n_partitions > 1 for spread in spreads)
    for spread in ranked(spreads, metric)[:most]:
        numbers = [_cell(value) for value in spread.point.values()]
        interval = "-" if math.isnan(spread.low) else _interval(spread, metric)
        mean = "-" if math.isnan(spread.mean) else _number(spread.mean)
        epsilon = ["-" if spread.epsilon is None else f"{spread.epsilon:.4g}"] * private
        partitions = [str(spread.n_partitions)] * is_over_partitions
        cells.append(
            [
                *numbers,
                str(spread.rounds),
                *partitions,
                mean,
                interval,
                *epsilon,
                f"{spread.n_diverged} of {spread.n_seeds}",
            ]
        )
    middle = [named(metric, split), "95 % interval", *["epsilon"] * private]
    counts = ["rounds", *["partitions"] * is_over_partitions]
    return Table([*spreads[0].point, *counts, *middle, "diverged"], cells)


def _cell(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def by_condition(rows: Sequence[Row], conditions: Sequence[str]) -> dict[str, list[Row]]:
    """The conditions of runs (data, attacks) in words -> the runs under them, for nobody can choose the best one.

    ``conditions`` are columns; without any, all runs are under "".
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(in_words(row, conditions), []).append(row)
    return groups


def in_words(point: Row, names: Sequence[str]) -> str:
    """``name=value, name=value``, without those that are None."""
    return ", ".join(f"{name}={_cell(point[name])}" for name in names if point[name] is not None)


def verdicts(
    rows: Sequence[Row], metric: str, split: str = "test", conditions: Sequence[str] = ()
) -> Iterator[tuple[str, Row | None]]:
    """`verdict` of the runs under each of the ``conditions``, and the point that is best there; None if all diverged.

    Raises:
        ValueError: every point diverged on some seed, under the only condition.
    """
    groups = by_condition(rows, conditions)
    for condition, own_rows in groups.items():
        try:
            chosen = best(own_rows, metric).point
        except ValueError as error:  # every point diverged
            if len(groups) == 1:
                raise
            yield f"best with {condition}: none, {error}", None
        else:
            yield verdict(own_rows, metric, split, conditions), chosen


def verdict_lines(
    rows: Sequence[Row],
    metric: str,
    split: str,
    conditions: Sequence[str],
    settings: Callable[[Row], Sequence[str]],
) -> Iterator[str]:
    """`verdicts` line by line, each followed by the ``settings`` of its point, as options of a command line.

    Raises:
        ValueError: as `verdicts`.
    """
    for line, point in verdicts(rows, metric, split, conditions):
        yield line
        if point is not None and (words := settings(point)):
            yield f"its settings: {shlex.join(words)}"


def what_to_report(split: str) -> str:
    """A line below the verdict on points that were chosen by this ``split``."""
    if split == "test":
        return "chosen by tests, so do not report these: --judge val chooses by the validation split"
    return "fljax compare with the best point's settings gives its test accuracy, over seeds"


def count_lines(points: Sequence[Spread], rows: Sequence[Row]) -> Iterator[str]:
    """Lines below `as_table` on points that it leaves out, and on points that were not run on every partition."""
    if len(points) > SHOWN:
        yield f"the best {SHOWN} of {len(points)} points"
    partitions = [f"{seed}" for seed in dict.fromkeys(row.get(PARTITION) for row in rows)]
    if min(point.n_partitions for point in points) < len(partitions):
        yield f"not every point was run on every partition (--seed {', '.join(partitions)}); those on fewer come last"


def verdict(rows: Sequence[Row], metric: str, split: str = "test", conditions: Sequence[str] = ()) -> str:
    """The best point in a line; ``split``: the split of the tests, ``conditions``: columns in which it is no choice."""
    chosen = best(rows, metric)
    condition = in_words(chosen.point, conditions)
    point = in_words(chosen.point, [name for name in chosen.point if name not in conditions])
    seeds = f"{chosen.n_seeds} seeds of one partition"
    seeds = seeds if chosen.n_partitions == 1 else f"{chosen.n_partitions} partitions"
    equal_text = f" (equal on all {seeds})" if chosen.n_seeds > 1 else ""
    interval = equal_text if math.isnan(chosen.low) else f" (95 % interval over {seeds}: {_interval(chosen, metric)})"
    mean = f"{named(metric, split)} {_number(chosen.mean)}{interval}"
    epsilon = "" if chosen.epsilon is None else f", epsilon {chosen.epsilon:.4g}"
    spreads = by_point(rows, metric)
    n_others = len([spread for spread in spreads if _as_good(spread, chosen)]) - 1
    as_good = f"; {n_others} other point{'s are' if n_others > 1 else ' is'} as good" if n_others else ""
    longest = max(spreads, key=completed)
    cut = f" after {chosen.rounds} of {longest.rounds} rounds; all points with more rounds diverged"
    stopped = cut if completed(chosen) < completed(longest) else ""
    return (
        f"best{' with ' * bool(condition)}{condition}: {point or 'the only point'}: {mean}{epsilon}{as_good}{stopped}"
    )


def _as_good(spread: Spread, chosen: Spread) -> bool:
    """Whether a point has the mean of the chosen one, on as many partitions and after as many rounds."""
    same = (spread.mean, spread.n_partitions, completed(spread)) == (
        chosen.mean,
        chosen.n_partitions,
        completed(chosen),
    )
    return same and not spread.n_diverged


def _interval(spread: Spread, metric: str) -> str:
    """A point's interval, as far as the metric goes."""
    _, low, high = Interval(spread.mean, spread.low, spread.high).within(*limits(metric))
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.{decimals(value)}f}"
