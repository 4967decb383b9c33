"""Distances between clients' label distributions, on the host: for partitions and figures."""

import numpy as np

FLOOR = 1e-4
"""Added to every class probability before renormalising, so that an absent class has a finite divergence."""


def symmetric_kld(counts: np.ndarray, floor: float = FLOOR) -> np.ndarray:
    """(clients, classes) counts -> (clients, clients) ``(KL(P_i|P_j) + KL(P_j|P_i)) / 2``, natural logarithm.

    ``floor`` sets the weight of a class that one client lacks and the other has.
    """
    p = _probabilities(counts, floor)
    log = np.log(p)
    cross = p @ log.T  # cross[i, j] = sum_c p_i log p_j
    negative_entropy = np.diag(cross)
    return (negative_entropy[:, None] + negative_entropy[None] - cross - cross.T) / 2


def mean_kld(counts: np.ndarray, floor: float = FLOOR) -> float:
    """Mean of `symmetric_kld` over pairs of different clients; 0 for one client.

    A pair's divergence is ``(p_i - p_j) . (log p_i - log p_j) / 2``, whose mean over pairs is the covariance of p and
    log p, summed over classes; this needs no matrix of all pairs.
    """
    p = _probabilities(counts, floor)
    if len(p) < 2:
        return 0.0
    log = np.log(p)
    return float(((p - p.mean(axis=0)) * (log - log.mean(axis=0))).sum() / (len(p) - 1))


def _probabilities(counts: np.ndarray, floor: float) -> np.ndarray:
    total = counts.sum(axis=1, keepdims=True)  # 0 for a client that has none of several labels
    p = counts / np.where(total > 0, total, 1) + floor
    return p / p.sum(axis=1, keepdims=True)
