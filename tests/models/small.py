"""Every model in a size that is quick to run."""

from typing import Any

import numpy as np

SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "celeba_cnn": ((16, 16, 3), {}),
    "cnn": ((12, 12, 3), {"channels": (4, 5), "hidden": (9,)}),
    "fasttext": ((6,), {"vocabulary": 11, "embedding": 4}),
    "fedbabu_cnn": ((16, 16, 3), {}),
    "fedcr_cnn": ((20, 20, 1), {}),
    "femnist_cnn": ((8, 8, 1), {}),
    "heterogeneous": ((8, 8, 1), {"networks": ("mlp", "mnist_cnn"), "n_features": 6}),
    "lenet": ((20, 20, 3), {}),
    "logistic_regression": ((8, 8, 1), {}),
    "lstm": ((6, 2, 3), {"hidden": (16,)}),
    "mlp": ((8, 8, 1), {"hidden": (16,)}),
    "mnist_cnn": ((8, 8, 1), {}),
    "resnet18": ((16, 16, 3), {}),
    "transformer": ((6,), {"vocabulary": 11, "width": 8, "n_layers": 1, "n_heads": 2, "dropout": 0.0}),
    "variational_cnn": ((16, 16, 3), {}),
    "vgg16": ((32, 32, 1), {}),
}
"""Name -> (input shape, other arguments)."""


def examples(name: str, n: int, dtype: str = "float32") -> np.ndarray:
    """(n, ...) inputs of a model: numbers, or tokens where it reads words."""
    (shape, options), rng = SMALL[name], np.random.default_rng(0)
    if len(shape) == 1:
        return rng.integers(options["vocabulary"], size=(n, *shape), dtype=np.int32)
    return rng.standard_normal((n, *shape)).astype(dtype)
