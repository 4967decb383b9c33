"""The table of several methods on the same federation."""

import math
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fljax.metrics.churn import churn_of_rounds
from fljax.metrics.cost import EDGE_TRAFFIC
from fljax.metrics.headline import CLASSES, NUMBERS, direction, measures_of
from fljax.metrics.participants import n_not_finite
from fljax.models.scored import CONTRACT
from fljax.report import summary
from fljax.report.columns import decimals, table

SCALE = (*CLASSES.scores, *NUMBERS.scores, "ari", "new_accuracy_macro", "new_accuracy_p10", "new_r2_micro")
UNBOLD = (NUMBERS.beside, "attack_success")
"""Further columns with as many digits as those of `SCALE`."""
COLUMNS = {
    "algorithm": "algorithm",
    "accuracy_macro": "macro",
    "accuracy_micro": "micro",
    "accuracy_p10": "p10",
    "r2_micro": "R2",
    "r2_macro": "mean R2",
    "r2_p10": "p10",
    "mae_macro": "mean\nabs. error",
    "best_accuracy": "best macro\n(round)",
    "best_r2": "best R2\n(round)",
    "accuracy_at_best_val": "macro at best\nvalidation (round)",
    "r2_at_best_val": "R2 at best\nvalidation (round)",
    "new_accuracy_macro": "new\nmacro",
    "new_accuracy_p10": "new\np10",
    "new_r2_micro": "new R2",
    "ari": "ARI",
    "n_clusters": "clusters",
    "epsilon": "epsilon",
    "attack_success": "attack\nsuccess",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "edge_megabytes_up": "edge\nMB up",
    "edge_megabytes_down": "edge\nMB down",
    "simulated_seconds": "simulated\nseconds",
    "seconds": "run s",
    "compile_seconds": "compile s",
}
SPARED = (
    "best_accuracy",
    "best_r2",
    "megabytes_down",
    "edge_megabytes_down",
    "n_clusters",
    "accuracy_micro",
    "compile_seconds",
    "seconds",
    "edge_megabytes_up",
    "megabytes_up",
)
"""Columns that are dropped if the terminal is too narrow, in this order; summary.csv has them."""
SMALL = ("megabytes_up", "megabytes_down", *EDGE_TRAFFIC, "epsilon")
"""Columns whose numbers may be far below 1."""


def title(rows: Sequence[summary.Row], common_test: bool = False) -> str:
    """The line above the final table: the scores of the task at hand, and the unit of the traffic."""
    word, tests = measures_of(rows[0]).word, "one test set for all" if common_test else "the clients' own test examples"
    return f"{word[0].upper()}{word[1:]} on {tests}; MB per client over the whole run"


def as_table(rows: Sequence[summary.Row], width: int | None = None) -> str:
    """The final table for a terminal of ``width`` characters (None: unlimited); the best of each accuracy is bold.

    Empty columns are left out, and of `SPARED` as many as do not fit; these are named under the table.
    """
    heads = COLUMNS | {name: name.removesuffix("_macro").replace("_", "\n") for name in own_columns(rows[0])}
    shown = [name for name in _in_order(heads) if any(row.get(name) is not None for row in rows)]
    scale = (*SCALE, *own_columns(rows[0]))
    numbers = {
        name: [v for row in rows if isinstance(v := row.get(name), float) and not math.isnan(v)] for name in scale
    }
    best = {
        name: (max if direction(name) >= 0 else min)(values)
        for name, values in numbers.items()
        if values and (name in SCALE or direction(name))
    }

    def drawn(bold: bool) -> str:
        cells = [[cell(name, row) for name in shown] for row in rows]
        scales = [(c, name) for c, name in enumerate(shown) if name in scale and bold and len(rows) > 1]
        top = {(r, c) for r, row in enumerate(rows) for c, name in scales if name in best and row[name] == best[name]}
        return table([heads[name] for name in shown], cells, top)

    room, spared = sys.maxsize if width is None else max(width, 20), []
    for name in SPARED:
        if max(map(len, drawn(bold=False).split("\n"))) > room and name in shown:
            shown.remove(name)
            spared.append(heads[name].replace("\n", " "))
    line = f"no room for {', '.join(spared)}: see summary.csv"
    return "\n".join([drawn(bold=True), *(textwrap.wrap(line, room) if spared else [])])


def own_columns(row: Collection[str]) -> list[str]:
    """The means over clients, in a row of the table, of scores besides the metric contract."""
    kinds = [name.removesuffix("_macro") for name in row if name.endswith("_macro")]
    return [f"{kind}_macro" for kind in kinds if kind.removeprefix("new_") not in CONTRACT]


def _in_order(names: Collection[str]) -> list[str]:
    """The table's columns in order; further scores stand before the best round."""
    first = [*COLUMNS].index(CLASSES.best)
    return [*[*COLUMNS][:first], *(name for name in names if name not in COLUMNS), *[*COLUMNS][first:]]


def left_out(runs: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> list[str]:
    """Lines with the methods of which some results were not finite and were left out, with those of which a test error
    became infinite, and with those whose last models predict NaN, which counts as wrong; [] if there are none.

    Args:
        runs: method -> the metrics of its runs.
    """
    parts, diverging = [], [name for name, method_runs in runs.items() if any(map(_is_infinite, method_runs))]
    for name, method_runs in runs.items():
        is_left_out = np.concatenate([n_not_finite(run) for run in method_runs]) > 0
        seeds = f" of {len(method_runs)} seeds" if len(method_runs) > 1 else ""
        parts += [f"{name} in {is_left_out.sum()} of {len(is_left_out)} rounds{seeds}"] if is_left_out.any() else []
    lines = [f"clients' results that were not finite were left out: {', '.join(parts)}"] if parts else []
    line = f"test errors became infinite: {', '.join(diverging)}; a lower learning rate may help"
    lines += [line] if diverging else []
    without_output = [name for name, method_runs in runs.items() if any(map(_predicts_nan, method_runs))]
    line = f"models predict NaN, which counts as wrong, in the last test: {', '.join(without_output)}"
    return [*lines, line] if without_output else lines


def clusters_found(runs: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> list[str]:
    """A line with the number of clusters in use by clustered methods, as last reported; [] without such methods.

    Args:
        runs: method -> the metrics of its runs.
    """
    parts = []
    for name, method_runs in runs.items():
        if all("label" in run for run in method_runs):
            labels = [churn_of_rounds(run, int(np.max(run["ids"])) + 1)[1] for run in method_runs]
            counts = [len(np.unique(label[label >= 0])) for label in labels]
            several = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
            parts.append(f"{name} {several}{' (one model for all)' if max(counts) == 1 else ''}")
    return [f"clusters of clients at the end: {', '.join(parts)}"] if parts else []


def _is_infinite(run: Mapping[str, np.ndarray]) -> bool:
    names = ("test_loss", measures_of(run).headline)
    return any(np.isinf(run[name]).any() for name in names if name in run)


def _predicts_nan(run: Mapping[str, np.ndarray]) -> bool:
    headline = measures_of(run).headline
    return "test_loss" in run and bool(np.isnan(run["test_loss"][-1]) and np.isfinite(run[headline][-1]))


def cell(name: str, row: summary.Row) -> str:
    """One entry of the table, as text."""
    value = row.get(name)
    if value is None:
        return "-"
    if name in (CLASSES.best, NUMBERS.best):
        return f"{value:.4f} ({row['best_round']})"
    if name in (CLASSES.by_validation, NUMBERS.by_validation):
        return f"{value:.4f} ({row['best_val_round']})"
    if name != "ari" and (name in (*SCALE, *UNBOLD) or name in own_columns([name])):
        return f"{value:.{decimals(float(value))}f}"
    if name in SMALL and isinstance(value, float) and 0 < value < 1:
        return f"{value:.{2 - math.floor(math.log10(value))}f}"  # three significant digits
    return f"{value:.2f}" if isinstance(value, float) else str(value)
