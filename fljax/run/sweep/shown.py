"""The results of a sweep in words: the best points in a table, the best of all in a line."""

import math
from collections.abc import Sequence

from fljax.run.columns import decimals
from fljax.run.formats import Table
from fljax.run.headline import limits
from fljax.run.report import Row
from fljax.run.significance import Interval
from fljax.run.sweep.table import Spread, best, by_point, completed, named, ranked

SHOWN = 10
"""Number of points in `as_table`; the rows of `fljax.run.sweep.tidy` have all."""


def as_table(spreads: Sequence[Spread], metric: str, split: str = "test", most: int | None = SHOWN) -> Table:
    """The best points in the order of `ranked`, with their intervals; ``split``: the split of the tests."""
    cells, private = [], any(spread.epsilon is not None for spread in spreads)
    for spread in ranked(spreads, metric)[:most]:
        numbers = [_cell(value) for value in spread.point.values()]
        interval = "-" if math.isnan(spread.low) else _interval(spread, metric)
        mean = "-" if math.isnan(spread.mean) else _number(spread.mean)
        epsilon = ["-" if spread.epsilon is None else f"{spread.epsilon:.4g}"] * private
        cells.append(
            [*numbers, str(spread.rounds), mean, interval, *epsilon, f"{spread.n_diverged} of {spread.n_seeds}"]
        )
    middle = [named(metric, split), "95 % interval", *["epsilon"] * private]
    return Table([*spreads[0].point, "rounds", *middle, "diverged"], cells)


def _cell(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def verdict(rows: Sequence[Row], metric: str, split: str = "test") -> str:
    """The best point in a line; ``split``: the split of the tests."""
    chosen = best(rows, metric)
    point = ", ".join(f"{n}={_cell(v)}" for n, v in chosen.point.items() if v is not None)
    seeds = f"{chosen.n_seeds} seeds of one partition"
    equal_text = f" (equal on all {seeds})" if chosen.n_seeds > 1 else ""
    interval = equal_text if math.isnan(chosen.low) else f" (95 % interval over {seeds}: {_interval(chosen, metric)})"
    mean = f"{named(metric, split)} {_number(chosen.mean)}{interval}"
    epsilon = "" if chosen.epsilon is None else f", epsilon {chosen.epsilon:.4g}"
    spreads = by_point(rows, metric)
    equal = [spread for spread in spreads if spread.mean == chosen.mean and completed(spread) == completed(chosen)]
    n_others = len([spread for spread in equal if not spread.n_diverged]) - 1
    as_good = f"; {n_others} other point{'s are' if n_others > 1 else ' is'} as good" if n_others else ""
    longest = max(spreads, key=completed)
    cut = f" after {chosen.rounds} of {longest.rounds} rounds; all points with more rounds diverged"
    stopped = cut if completed(chosen) < completed(longest) else ""
    return f"best: {point or 'the only point'}: {mean}{epsilon}{as_good}{stopped}"


def _interval(spread: Spread, metric: str) -> str:
    """A point's interval, as far as the metric goes."""
    _, low, high = Interval(spread.mean, spread.low, spread.high).within(*limits(metric))
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.{decimals(value)}f}"
