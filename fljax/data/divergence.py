"""How far apart clients' label distributions are, on the host: for generators and drawings."""

import numpy as np

FLOOR = 1e-4
"""Added to every class probability before renormalising, so that an absent class has a finite divergence."""


def symmetric_kld(counts: np.ndarray, floor: float = FLOOR) -> np.ndarray:
    """(clients, classes) counts -> (clients, clients) ``(KL(P_i|P_j) + KL(P_j|P_i)) / 2``, natural logarithm.

    ``floor`` decides how much a class counts that one client lacks and another has.
    """
    p = counts / counts.sum(axis=1, keepdims=True) + floor
    p = p / p.sum(axis=1, keepdims=True)
    log = np.log(p)
    cross = p @ log.T  # cross[i, j] = sum_c p_i log p_j
    own = np.diag(cross)
    return (own[:, None] + own[None] - cross - cross.T) / 2


def mean_kld(counts: np.ndarray, floor: float = FLOOR) -> float:
    """Mean of `symmetric_kld` over pairs of different clients; 0 for one client."""
    pairs = symmetric_kld(counts, floor)[np.triu_indices(len(counts), 1)]
    return float(pairs.mean()) if len(pairs) else 0.0
