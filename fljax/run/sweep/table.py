"""The results of a sweep: one row per point and seed, means of points over their seeds, the best point."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fljax.metrics.headline import (
    CLASSES,
    LOWER_IS_BETTER,
    MEANS,
    NUMBERS,
    limits,
    measures_of,
    scores_in,
)
from fljax.metrics.spread import spread_over_clients, spreads
from fljax.models.task import scores_of, task_of
from fljax.report.significance import interval_of
from fljax.report.summary import Row, optional_columns
from fljax.rounds.round_metrics import OF_CLIENT, ROW
from fljax.run.sweep.points import rows as point_rows
from fljax.types import Algorithm

T = TypeVar("T")
OF_CLASSES = (*CLASSES.scores, "accuracy_worst10", "f1_macro", "f1_micro", "f1_worst10")
"""Metrics of classification."""
OF_NUMBERS = (*NUMBERS.scores, "r2_worst10", "mae_macro", "mse_macro")
"""Metrics of regression."""
HEADLINES = (*OF_CLASSES, *OF_NUMBERS, "test_loss")
SPENT = "epsilon_spent"
"""Column of epsilon after the last round; a brick has a hyperparameter that is called epsilon."""
OPTIONAL_COLUMNS = {"epsilon": SPENT, "attack_success": "attack_success", "simulated_seconds": "simulated_seconds"}
"""Metrics that only some runs have -> their columns."""
AGREEMENT = "ari"
"""Agreement of clusters with true groups, in runs that have both."""
PARTITION = "partition_seed"
"""Column in a table of runs on several partitions that differ only in their seeds: the seed of the run's partition."""
OF_A_RUN = (
    "seed",
    PARTITION,
    "rounds",
    "diverged",
    "best_accuracy",
    "best_r2",
    "best_round",
    *HEADLINES,
    AGREEMENT,
    *OPTIONAL_COLUMNS.values(),
)
"""Columns that are not part of a point; further scores are not either, see `is_of_a_run`."""
NO_RESULTS = ("seed", PARTITION, "rounds", "diverged", "best_round")
"""Columns of a run by which points cannot be judged."""
ROUNDS_IN_ALL = "sweep.rounds"
"""Column in a table of sweeps of different lengths: the full number of rounds of the run's sweep."""


class Spread(NamedTuple):
    """A point over its seeds."""

    point: Row  # its settings and hyperparameters
    mean: float  # over the seeds whose loss stayed finite; NaN if there are none, or the metric of one is NaN
    low: float  # ends of the confidence interval, which ends where the metric does; NaN with fewer than two such seeds
    high: float
    n_seeds: int
    n_diverged: int
    rounds: int
    epsilon: float | None = None  # of a private method, after the last round
    n_partitions: int = 1  # if there are several, the interval is that of the mean over them


def tidy(
    hypers: Any, metrics: Mapping[str, Any], rounds: Sequence[int] | np.ndarray | None = None, **setting: Any
) -> list[Row]:
    """One row per point and seed: the static ``setting``, the fields that vary, the seed, the last round's metrics.

    Columns after those: ``rounds`` run, ``diverged`` (the round, from 1, whose loss was not finite; else None),
    ``accuracy_macro``, ``accuracy_micro``, ``accuracy_p10``, ``accuracy_worst10``, ``f1_macro``, ``f1_micro``,
    ``f1_worst10``, ``test_loss`` of the last round run (worst10: mean over the worst tenth of the clients),
    ``best_accuracy`` and ``best_round`` of accuracy_macro; in regression its own metrics (`fljax.metrics.regression`)
    and ``best_r2`` of r2_micro; if they apply, ``ari``, ``epsilon_spent``, ``attack_success``,
    the ``simulated_seconds`` of all rounds, and ``NAME_macro`` and ``NAME_micro`` of further scores. All of these are
    None for a diverged run.

    The setting ``partition_seed`` is not part of a point: the rows of several partitions together, each with its seed
    there, give a point's mean over the partitions.

    Args:
        hypers: the points.
        metrics: the result of `fljax.sweep` for them, with leading axes (points, seeds, rounds).
        rounds: (points,) number of rounds of each; None: all.
        **setting: static choices, the same for all rows.

    Raises:
        ValueError: a setting has the name of another column.
    """
    if taken := [name for name in setting if is_of_a_run(name) and name != PARTITION]:
        name = taken[0]
        raise ValueError(
            f"{name}={setting[name]!r}: the table has a column {name} already; give the setting another name"
        )
    points = list(point_rows(hypers))
    n_rounds = np.shape(metrics["diverged"])[2]
    n_run = np.full(len(points), n_rounds) if rounds is None else np.asarray(rounds)
    n_run = np.repeat(n_run[:, None], np.shape(metrics["diverged"])[1], axis=1)
    return [
        {**setting, **points[i], "seed": seed, "rounds": int(n_run[i, seed]), **outcome}
        for i, seed, outcome in outcomes(metrics, n_run)
    ]


def outcomes(metrics: Mapping[str, Any], rounds: np.ndarray) -> Iterator[tuple[int, int, Row]]:
    """The number of the point, the seed, and the columns of `tidy`, of each run with ``rounds`` (points, seeds) > 0."""
    score_names = [f"{name}_{mean}" for name in scores_in(metrics) for mean in MEANS]
    names = (*HEADLINES, *score_names, AGREEMENT, *OPTIONAL_COLUMNS, "diverged")
    values = {name: np.asarray(metrics[name]) for name in names if name in metrics}
    spread = [name for name in spreads(metrics) if name in HEADLINES]
    of_clients = {name: value for name, value in metrics.items() if name.startswith(OF_CLIENT)}
    for i, seed in np.argwhere(rounds > 0).tolist():
        n_rounds = rounds[i, seed]
        run = {name: value[i, seed, :n_rounds] for name, value in values.items()}
        last = {name: np.asarray(value)[i, seed, n_rounds - 1] for name, value in of_clients.items()}
        yield i, seed, _outcome(run | {name: spread_over_clients(last, name)[None] for name in spread})


def _outcome(run: Mapping[str, np.ndarray]) -> Row:
    diverged = run["diverged"]
    row: Row = {"diverged": int(np.argmax(diverged)) + 1 if diverged.any() else None}
    columns = {name: float(run[name][-1]) for name in run if name in (*HEADLINES, AGREEMENT) or is_of_a_score(name)}
    measures = measures_of(run)
    accuracy = run[measures.headline]
    has_tests = np.isfinite(accuracy).any()
    best = int(np.nanargmax(accuracy)) if has_tests else 0
    columns |= {
        measures.best: float(accuracy[best]) if has_tests else None,
        "best_round": best + 1 if has_tests else None,
    }
    columns |= {OPTIONAL_COLUMNS[name]: value for name, value in optional_columns(run).items() if value is not None}
    return row | (dict.fromkeys(columns) if diverged.any() else columns)


def by_point(rows: Sequence[Row], metric: str = "accuracy_macro", confidence: float = 0.95) -> list[Spread]:
    """Every point over its seeds, with Student's confidence interval of the mean, as far as the metric goes; in the
    order of the rows.

    A point that was run twice counts as two points, each with its own seeds, because copies add no information. If it
    was run on several partitions, its value on each is the mean over the seeds there, and the interval is over the
    partitions.

    Raises:
        ValueError: there are no rows, they do not have the ``metric``, or ``confidence`` is not in (0, 1).
    """
    if not rows:
        raise ValueError("rows=[] is empty; give those of tidy")
    metrics = [name for name in rows[0] if is_of_a_run(name) and name not in NO_RESULTS]
    if metric not in metrics:
        raise ValueError(f"metric={metric!r} is unknown; choose one of {', '.join(metrics)}")
    groups: dict[tuple, list[Row]] = {}
    copies: Counter[tuple] = Counter()
    for row in rows:
        point = tuple((name, value) for name, value in row.items() if not is_of_a_run(name))
        run = (point, row.get(PARTITION), row["seed"])
        copies[run] += 1
        groups.setdefault((point, copies[run]), []).append(row)
    return [_spread(dict(point), group, metric, confidence) for (point, _), group in groups.items()]


def is_of_a_score(name: str) -> bool:
    """Whether a column is a mean over clients, as those of further scores are."""
    return name.endswith(tuple(f"_{mean}" for mean in MEANS))


def is_of_a_run(name: str) -> bool:
    """Whether a column of `tidy`, or of a table of validation tests, is not part of a point."""
    return unnamed(name, "val") in OF_A_RUN or is_of_a_score(name)


def metric_of(metric: str | None, algorithm: Algorithm) -> str:
    """The ``metric``; None: accuracy_macro, for regression r2_micro.

    Raises:
        ValueError: the tests of such a method do not have the metric.
    """
    numbers = task_of(algorithm.loss) == "regression"
    score_names = (f"{score.name}_{mean}" for score in scores_of(algorithm.loss) for mean in MEANS)
    allowed = (*(OF_NUMBERS if numbers else OF_CLASSES), "test_loss", *score_names)
    if metric is not None and metric not in (*allowed, AGREEMENT):  # `check_agreement` checks ari
        raise ValueError(f"metric={metric!r} is unknown; choose one of {', '.join(allowed)}")
    return metric or allowed[0]


def check_agreement(metric: str | None, metrics: Collection[str]) -> None:
    """Raises ValueError if ``metric`` is the agreement with true groups and runs with these ``metrics`` lack it."""
    if metric == AGREEMENT and AGREEMENT not in metrics:
        raise ValueError(
            f"metric={AGREEMENT!r}: these runs do not have it; it needs a clustered method and clients with true groups"
        )


def _spread(point: Row, rows: Sequence[Row], metric: str, confidence: float) -> Spread:
    finite_rows = [row for row in rows if row[metric] is not None]
    values = np.array([row[metric] for row in finite_rows], float)
    n_diverged, rounds, epsilon_spent = len(rows) - len(values), int(str(rows[0]["rounds"])), rows[0].get(SPENT)
    epsilon = epsilon_spent if isinstance(epsilon_spent, float) else None
    partitions = np.array([str(row.get(PARTITION)) for row in finite_rows])
    means = np.array([values[partitions == one].mean() for one in dict.fromkeys(partitions.tolist())])
    interval = interval_of(means if len(means) > 1 else values, confidence).within(*limits(metric))
    n_partitions = len({str(row.get(PARTITION)) for row in rows})
    return Spread(point, *interval, len(rows), n_diverged, rounds, epsilon, n_partitions)


def best(rows: Sequence[Row], metric: str = "accuracy_macro", confidence: float = 0.95) -> Spread:
    """The point with the best mean among those that diverged on no seed and, of these, ran the most rounds; the first
    of equal ones.

    The interval is over this point's own seeds; with many points its mean is too optimistic, because it was chosen.

    Raises:
        ValueError: every point diverged on some seed, or none of those with the most rounds has a finite mean.
    """
    first = ranked(by_point(rows, metric, confidence), metric)[0]
    if first.n_diverged:
        raise ValueError("every point diverged on some seed; try lower learning rates")
    if not np.isfinite(first.mean):
        raise ValueError(f"no point has a finite {metric} on every seed after all rounds; choose another metric")
    return first


def ranked(spreads: Sequence[Spread], metric: str) -> list[Spread]:
    """Points, best first: by no divergence on any seed, then by more partitions, by more rounds, and by mean; equal
    ones in their order.

    A point that halving stopped ranks behind those that it kept, whatever its mean was then. With sweeps of different
    lengths, the share of their rounds counts.
    """
    sign = 1.0 if unnamed(metric, "val") in LOWER_IS_BETTER else -1.0

    def place(spread: Spread) -> tuple[bool, int, float, float]:
        mean = np.inf if np.isnan(spread.mean) else sign * spread.mean
        return spread.n_diverged > 0, -spread.n_partitions, -completed(spread), mean

    return sorted(spreads, key=place)


def completed(spread: Spread) -> float:
    """The progress of a point's runs: their rounds; with sweeps of different lengths, the share of all rounds."""
    return spread.rounds / float(str(spread.point.get(ROUNDS_IN_ALL) or 1))


def named(metric: str, split: str) -> str:
    """A metric's name if tests are made on ``split``."""
    return metric if split == "test" or metric == AGREEMENT else f"{split}_{metric.removeprefix('test_')}"


def unnamed(name: str, split: str) -> str:
    """The inverse of `named`; a name without the split's prefix stays."""
    if split == "test" or not name.startswith(f"{split}_"):
        return name
    name = name.removeprefix(f"{split}_")
    return "test_loss" if name == "loss" else name


def of_split(values: Mapping[str, T], split: str) -> dict[str, T]:
    """Columns or metrics, in which tests get the prefix of their split."""

    def is_a_test(name: str) -> bool:
        is_headline = name in (*HEADLINES, "best_accuracy", "best_r2") or is_of_a_score(name)
        return is_headline or (name.startswith(OF_CLIENT) and name != ROW)

    return {named(name, split) if is_a_test(name) else name: value for name, value in values.items()}
