"""The handwritten digits inside scikit-learn: real data without a download."""

import numpy as np

from fljax.data.federation import on_host
from fljax.types import Examples


def read() -> tuple[Examples, Examples]:
    """1,437 train and 360 test images (8, 8, 1) uint8, the original 0..16 scaled to 0..255, 10 classes.

    The set has no split of its own: a fifth of each class, chosen once and for all, is the test set.
    """
    from sklearn.datasets import load_digits  # here, as its import takes as long as a small run
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    y = digits.target
    train, test = train_test_split(np.arange(len(y)), test_size=360, random_state=0, stratify=y)
    return on_host(x[train], y[train]), on_host(x[test], y[test])
