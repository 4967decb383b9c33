"""What runs code that was written for TensorFlow 1, and parameters as it has them: in a list, kernels (in, out)."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from same_steps import load_network, torch_network

Arrays = list[np.ndarray]

NEEDS = ("tensorflow",)


@contextlib.contextmanager
def tensorflow_1() -> Iterator[Any]:
    """Inside it ``import tensorflow`` gives code what TensorFlow 2 has kept of TensorFlow 1; that module."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # or it tells of its build
    import tensorflow

    old = tensorflow.compat.v1
    old.logging.set_verbosity(old.logging.ERROR)
    old.disable_v2_behavior()
    sys.modules["tensorflow"] = old
    try:
        yield old
    finally:
        sys.modules["tensorflow"] = tensorflow


def arrays(params: Any) -> Arrays:
    """Our parameters of the shared network."""
    return [np.asarray(params[layer][part]) for layer in ("fc1", "fc2") for part in ("kernel", "bias")]


def loaded(parameters: Arrays) -> Any:
    """A `torch_network` with the first four arrays."""
    parts = iter(parameters)
    named = {layer: {"kernel": next(parts), "bias": next(parts)} for layer in ("fc1", "fc2")}
    return load_network(torch_network()(), named)
