"""Agreement of clusters with the true groups, round by round: on the host, from the labels that a run reports."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax.metrics.churn import UNKNOWN
from fljax.types import Federation


def agreement(label: np.ndarray, group: np.ndarray) -> float:
    """Adjusted Rand index of the clients whose cluster is known, at least two of them.

    It equals scikit-learn's, whose import takes longer than a small run.
    """

    def pairs(count: np.ndarray) -> float:
        return float((count * (count - 1) // 2).sum())  # with 80,000 clients a product of two counts overflows int64

    counts = cross_table(label, group)
    in_both, in_label, in_group = pairs(counts), pairs(counts.sum(axis=1)), pairs(counts.sum(axis=0))
    expected = in_label * in_group / max(pairs(counts.sum()), 1)
    maximum = (in_label + in_group) / 2
    return float((in_both - expected) / (maximum - expected)) if in_label != in_both or in_group != in_both else 1.0


def cross_table(label: np.ndarray, group: np.ndarray) -> np.ndarray:
    """(clusters, groups) number of clients in each cluster, in order of label, from each true group."""
    is_known = label >= 0
    clusters = np.unique(label[is_known])
    counts = np.zeros((len(clusters), int(group.max()) + 1), int)
    np.add.at(counts, (np.searchsorted(clusters, label[is_known]), group[is_known]), 1)
    return counts


class Truth(NamedTuple):
    """The true groups of a federation in each stage, that is from one change to the next."""

    begins: np.ndarray  # (stages,) first round of each, counted from 0
    group: np.ndarray  # (stages, clients)
    there: np.ndarray  # (stages, clients) bool: whether a client can participate


def truth_of(federation: Federation) -> Truth | None:
    """The federation's true groups; None if it has none."""
    if federation.group is None:
        return None
    stages = federation.stages
    if stages is None:
        there = np.ones(len(federation.group), bool) if federation.there is None else np.asarray(federation.there)
        return Truth(np.zeros(1, int), np.asarray(federation.group)[None], there[None])
    return Truth(*map(np.asarray, (stages.begins, stages.group, stages.there)))


def ari_of_rounds(
    metrics: Mapping[str, Any], truth: Truth, first: int = 0, before: np.ndarray | None = None
) -> np.ndarray:
    """Adjusted Rand index of the clusters and the true groups after each round, (rounds,) float32.

    Over all clients that are there, each in the cluster that it last reported; NaN while fewer than two have one.

    Args:
        metrics: of a clustered run: ``ids``, ``active`` and ``label``, (rounds, cohort).
        truth: the true groups.
        first: the number of the first of these rounds, counted from 0.
        before: (clients,) labels so far, as `fljax.metrics.churn.churn_of_rounds` returns; None: the run begins here.
    """
    labels = np.full(truth.group.shape[1], UNKNOWN, np.int32) if before is None else before.copy()
    ari, value, last_stage = np.full(len(metrics["ids"]), np.nan, np.float32), np.nan, None
    for r, (ids, active, label) in enumerate(zip(metrics["ids"], metrics["active"], metrics["label"], strict=True)):
        stage = int((truth.begins <= first + r).sum()) - 1
        changed = (labels[ids[active]] != label[active]).any()
        labels[ids[active]] = label[active]
        if changed or stage != last_stage:  # else it is the value of the round before
            is_counted = truth.there[stage] & (labels != UNKNOWN)
            counted = labels[is_counted]  # noise, -1, is a label like any other, as in `fljax.server.adjusted_rand`
            value = agreement(counted - counted.min(), truth.group[stage][is_counted]) if len(counted) > 1 else np.nan
        ari[r], last_stage = value, stage
    return ari
