"""The handwritten digits inside scikit-learn: real data without a download."""

import importlib.metadata
from pathlib import Path

import numpy as np

from fljax.data.federation import on_host
from fljax.types import Examples

_FILE = "sklearn/datasets/data/digits.csv.gz"
_ORDER = Path(__file__).with_name("digits_order.npy")
"""The rows of the file, training examples before test examples: as scikit-learn's ``train_test_split`` returned them
for a stratified test set of 360 with seed 0."""
_N_TEST = 360


def read() -> tuple[Examples, Examples]:
    """1,437 train and 360 test images (8, 8, 1) uint8 of 10 classes; the original 0..16 is scaled to 0..255.

    The data set has no split of its own: a fixed fifth of each class is the test set.
    """
    pixels, label = _rows()
    x = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = np.load(_ORDER)
    train, test = order[:-_N_TEST], order[-_N_TEST:]
    return on_host(x[train], label[train]), on_host(x[test], label[test])


def _rows() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 64) and labels, from scikit-learn's file: importing scikit-learn takes as long as a small run."""
    path = Path(str(importlib.metadata.distribution("scikit-learn").locate_file(_FILE)))
    if path.exists():
        rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)
        return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)  # pyrefly: ignore[bad-return] - not a Bunch, because of return_X_y
