"""Share of participants that changed cluster, round by round: on the host, from the labels of a clustered run.

A round's program does not know the labels of earlier rounds, and the Hungarian algorithm would make it larger; on the
host it costs microseconds per round.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

UNKNOWN = np.iinfo(np.int32).min
"""The label of a client that has not participated yet; -1 is a label, noise."""


def churn_of_rounds(
    metrics: Mapping[str, Any], n_clients: int, before: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The share of each round's participants whose cluster differs from that of their last participation.

    Clusters may have been renumbered since: it is `fljax.server.churn`, the least share over all renumberings. Clients
    that drop out or participate for the first time do not count; if no client counts, it is 0.

    Args:
        metrics: of a clustered run: ``ids``, ``active`` and ``label``, (rounds, cohort).
        n_clients: clients of the federation.
        before: (clients,) labels so far, as the second value of an earlier call; None: the run begins here.

    Returns:
        (rounds,) float32, and the labels after the last round.
    """
    labels = np.full(n_clients, UNKNOWN, np.int32) if before is None else before.copy()
    churn = np.zeros(len(metrics["ids"]), np.float32)
    for r, (ids, active, label) in enumerate(zip(metrics["ids"], metrics["active"], metrics["label"], strict=True)):
        ids, label = ids[active], label[active]
        has_label = labels[ids] != UNKNOWN
        churn[r] = _churn(labels[ids][has_label], label[has_label])
        labels[ids] = label
    return churn, labels


def _churn(before: np.ndarray, after: np.ndarray) -> float:
    """`fljax.server.churn` of two labellings of the same clients."""
    if np.array_equal(before, after):
        return 0.0
    (rows, columns), counts = np.unique(np.stack([before, after]), axis=1, return_counts=True)
    _, rows, n_of_row = np.unique(rows, return_inverse=True, return_counts=True)
    _, columns, n_of_column = np.unique(columns, return_inverse=True, return_counts=True)
    # A cluster that stayed the same is matched with itself; only few clusters remain to be matched.
    is_matched = (n_of_row[rows] == 1) & (n_of_column[columns] == 1)
    n_kept = counts[is_matched].sum()
    unmatched = [np.unique(names[~is_matched], return_inverse=True)[1] for names in (rows, columns)]
    if len(unmatched[0]):
        table = np.zeros((unmatched[0].max() + 1, unmatched[1].max() + 1))
        table[unmatched[0], unmatched[1]] = counts[~is_matched]
        n_kept += _most_kept(table)
    return float((len(before) - n_kept) / len(before))


def _most_kept(table: np.ndarray) -> float:
    """The largest sum of cells of which no two share a row or a column."""
    for side in (table, table.T):  # the largest cells of all rows, if they lie in different columns
        if len(np.unique(side.argmax(axis=1))) == len(side):
            return side.max(axis=1).sum()
    from scipy.optimize import linear_sum_assignment  # slow to import, and few rounds need it

    return table[linear_sum_assignment(table, maximize=True)].sum()
