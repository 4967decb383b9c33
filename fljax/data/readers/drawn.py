"""Synthetic(alpha, beta) as fixed data sets with users: the four of FedProx's paper."""

import numpy as np

from fljax.data.synthetic import logistic_users
from fljax.data.users import UserExamples, with_users

DRAWN: dict[str, dict[str, float | bool]] = {
    "synthetic_iid": {"alpha": 0.0, "beta": 0.0, "iid": True},
    "synthetic_0_0": {"alpha": 0.0, "beta": 0.0},
    "synthetic_0.5_0.5": {"alpha": 0.5, "beta": 0.5},
    "synthetic_1_1": {"alpha": 1.0, "beta": 1.0},
}
"""Name -> arguments of `fljax.data.synthetic.synthetic`."""


def read(name: str) -> tuple[UserExamples, UserExamples]:
    """30 users with x (n, 60) float32, 10 classes; the last tenth of each user's examples is for test, as there."""
    x, y, user = logistic_users(**DRAWN[name], seed=0)  # pyrefly: ignore[bad-argument-type] - by their names
    size = np.bincount(user)
    position = np.arange(len(user)) - (np.cumsum(size) - size)[user]
    is_test = position >= (0.9 * size).astype(np.int64)[user]
    names = tuple(f"f_{i:05d}" for i in range(len(size)))
    train, test = (with_users(x[rows], y[rows], user[rows], names) for rows in (~is_test, is_test))
    return train, test
