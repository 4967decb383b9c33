"""Kinds of labels: classes, targets of a regression, or several labels per example."""

from typing import Any

import numpy as np
from jax import Array

from fljax.data.items import check_float32


def as_labels(y: Any) -> np.ndarray:
    """Labels as a pool holds them.

    Whole numbers (examples,) are classes and become int32. Floating-point numbers, (examples,) or (examples, outputs),
    are targets of a regression and become float32. Whole numbers or booleans (examples, labels), each 0 or 1, are
    several labels per example and become float32 too.

    Raises:
        ValueError: they are of another type such as text, of another shape, or beyond the range of int32 or float32.
    """
    labels = np.asarray(y)
    if labels.ndim not in (1, 2):
        raise ValueError(f"labels have shape {labels.shape}; give (examples,), or (examples, outputs)")
    if labels.dtype.kind in "biu":
        if labels.ndim == 2:
            if labels.size and (labels.min() < 0 or labels.max() > 1):
                if labels.shape[1] == 1:
                    raise ValueError(f"labels have shape {labels.shape}; give classes as (examples,), y[:, 0]")
                allowed = "several labels of an example must each be 0 or 1, targets of a regression floating-point"
                raise ValueError(
                    f"labels of shape {labels.shape} go from {labels.min()} to {labels.max()}; {allowed}. A class for "
                    "each position of a sequence is not supported: cut windows and give each the one class that "
                    "follows it, as fljax.data.own.text.next_characters does"
                )
            return labels.astype(np.float32)
        bounds = np.iinfo(np.int32)
        for label in (labels.min(), labels.max()) if labels.size else ():
            if not bounds.min <= label <= bounds.max:
                size = "large" if label > 0 else "small"
                raise ValueError(f"label {label} is too {size}; number the classes 0, 1, 2, ...")
        return labels.astype(np.int32)
    if np.issubdtype(labels.dtype, np.floating):
        check_float32("label", labels)
        return labels.astype(np.float32)
    advice = "; fljax.federation_from_arrays accepts names of classes" if labels.dtype.kind in "USO" else ""
    raise ValueError(f"labels have dtype {labels.dtype}; give whole numbers, or floating-point targets{advice}")


def are_classes(y: np.ndarray | Array) -> bool:
    """Whether labels are classes: whole numbers."""
    return y.dtype.kind in "iu"  # NumPy's durations are integers only by their class


def check_classes(y: np.ndarray | Array, needed_by: str = "this method or partition") -> None:
    """Raises ValueError if labels are not classes, which ``needed_by``, such as a method, needs."""
    if not are_classes(y):
        needed = "whole numbers" if y.ndim == 1 else "one class for each example"
        raise ValueError(
            f"labels are {y.dtype} of shape {y.shape}, not classes, which {needed_by} needs; "
            f"choose another, or give {needed}"
        )


def counts_classes(numbers: np.ndarray) -> bool:
    """Whether whole numbers are classes 0, 1, 2, ..., some perhaps missing; otherwise they are names, as 1 and 2."""
    return bool(numbers.min() == 0 and numbers.max() < 2 * len(np.unique(numbers)))
