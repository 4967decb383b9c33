"""The cost of changes of a federation for a method: how far it falls, what it loses, and how long it recovers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.checks.arguments import whole
from fljax.choices import check_kind, listed
from fljax.drift.stages import changes
from fljax.metrics.headline import named_measure
from fljax.ranges import real
from fljax.report.columns import table
from fljax.types import Federation


class Change(NamedTuple):
    """The cost of one change; rounds without a test are interpolated linearly between the tests around them."""

    round: int  # the first round after the change, counted from 1
    before: float  # the metric in the last test before the change
    after: float  # the metric in the first test after it
    regret: float  # shortfall from ``before``, summed over the rounds until the next change; never negative
    recovered: int | None  # rounds until ``before - tolerance`` is reached again; None: not before the next change
    ari_before: float | None  # agreement of the clusters with the true groups; None without clusters or groups
    ari_after: float | None
    ari_end: float | None  # in the last round before the next change


def after_changes(
    metrics: Mapping[str, Any],
    federation: Federation | Sequence[int],
    *,
    measure: str | None = None,
    tolerance: float = 0.01,
) -> list[Change]:
    """The cost of each change of the federation.

    Args:
        metrics: of a run of ``fljax.simulate`` or ``fljax.train``.
        federation: the run's federation, from `fljax.drift.drifting`; or the first round after each change, from 0.
        measure: a metric (rounds,), higher is better; None: the headline (accuracy_macro, for regression r2_micro).
        tolerance: the distance to the metric before the change that counts as recovered.

    Returns:
        A `Change` for each change that lies between two tests.

    Raises:
        ValueError: an argument is of a wrong kind, the run has no such metric, ``tolerance`` is negative, or the rounds
            do not ascend from 1.
    """
    check_kind("metrics", metrics, Mapping, "give those of a run, as of fljax.simulate")
    name = named_measure(metrics, measure)
    if not real("tolerance", tolerance) >= 0:
        raise ValueError(f"tolerance={tolerance} is negative; choose tolerance >= 0")
    begins = changes(federation) if isinstance(federation, Federation) else _checked_rounds(federation)
    values = np.asarray(metrics[name], np.float64)
    ari = np.asarray(metrics["ari"], np.float64) if "ari" in metrics else None
    ends = [min(end, len(values)) for end in (*begins, len(values))[1:]]
    costs = (_change(values, ari, *stage, tolerance) for stage in zip(begins, ends, strict=False))
    return [cost for cost in costs if cost is not None]


def _checked_rounds(rounds: Sequence[int]) -> tuple[int, ...]:
    rounds = listed("federation", rounds, "give one of fljax.drift.drifting, or the first rounds after changes")
    begins = tuple(whole("federation", begin) for begin in rounds)
    if any(begin <= previous for previous, begin in zip((0, *begins), begins, strict=False)):
        raise ValueError(f"federation={begins} are not the first rounds after changes; give increasing rounds >= 1")
    return begins


def _change(values: np.ndarray, ari: np.ndarray | None, begin: int, end: int, tolerance: float) -> Change | None:
    tested_before, tested_after = (np.flatnonzero(np.isfinite(part)) for part in (values[:begin], values[begin:end]))
    if not len(tested_before) or not len(tested_after):
        return None
    before, after = values[tested_before[-1]], values[begin:end][tested_after]
    every_round = np.interp(np.arange(end - begin), tested_after, after)
    recoveries = np.flatnonzero(after >= before - tolerance)
    agreement = (None, None, None) if ari is None else tuple(float(ari[r]) for r in (begin - 1, begin, end - 1))
    regret = float(np.maximum(before - every_round, 0).sum())
    recovered = int(tested_after[recoveries[0]]) if len(recoveries) else None
    return Change(begin + 1, float(before), float(after[0]), regret, recovered, *agreement)


def change_rows(costs: Mapping[str, Sequence[Change]]) -> list[dict[str, Any]]:
    """One row per method and change."""
    return [{"algorithm": name} | cost._asdict() for name, changes in costs.items() for cost in changes]


def changes_table(costs: Mapping[str, Sequence[Change]]) -> str:
    """The rows as text for a terminal."""
    heads = [
        "algorithm",
        "change in\nround",
        "before",
        "after",
        "regret",
        "rounds to\nrecover",
        "ARI before, after, end",
    ]

    def cells(name: str, change: Change) -> list[str]:
        ari = (change.ari_before, change.ari_after, change.ari_end)
        agreement = "-" if change.ari_before is None else ", ".join(f"{value:.2f}" for value in ari)
        numbers = [f"{value:.4f}" for value in (change.before, change.after, change.regret)]
        return [
            name,
            str(change.round),
            *numbers,
            "-" if change.recovered is None else str(change.recovered),
            agreement,
        ]

    return table(heads, [cells(name, cost) for name, changes in costs.items() for cost in changes], set())
