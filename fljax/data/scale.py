"""A warning about images and sequences that are not scaled for networks, judged by some of the examples."""

import warnings
from typing import Any

import numpy as np

_LOOKED_AT = 500
"""Examples that are searched for the largest number, spread over all."""
_USUAL = 50
"""Numbers scaled to mean 0 and standard deviation 1, or to [0, 1], do not reach this."""


class ScaleWarning(UserWarning):
    """Examples are not scaled, and will not be."""


def warn_of_scale(x: Any) -> None:
    """Warns of examples ``x`` (examples, ...) that are not scaled, except uint8, which is scaled in each batch.

    There is no warning for tables and tokens, whose examples have rank 1: other scales are usual in them.
    """
    if x.ndim < 3 or x.dtype == np.uint8 or not x.size:
        return
    sample = np.asarray(x[:: max(1, len(x) // _LOOKED_AT)][:_LOOKED_AT])
    low, high = float(sample.min()), float(sample.max())
    may_be_tokens = x.ndim == 3 and sample.dtype.kind in "iu" and not 0 <= low <= high <= 255
    if may_be_tokens or not _USUAL < max(-low, high) < np.inf:
        return
    text = f"x goes from {low:g} to {high:g} as {x.dtype} and is not scaled; training then mostly fails"
    cure = (
        "give pixels as uint8, which are scaled to [0, 1], other numbers as (x - mean) / deviation, or let the network "
        "scale them: --normalize standard, in Python fljax.normalized"
    )
    warnings.warn(f"{text}; {cure}", ScaleWarning, stacklevel=3)
