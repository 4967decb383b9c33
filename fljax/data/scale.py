"""Images and sequences of a scale that networks are not made for: seen on a few examples, and said."""

import warnings
from typing import Any

import numpy as np

_LOOKED_AT = 500
"""Examples, spread over all: what their numbers reach is enough to tell pixels from what is scaled."""
_USUAL = 50
"""What is scaled to mean 0 and deviation 1, or to [0, 1], does not reach this."""


class ScaleWarning(UserWarning):
    """Examples are not scaled, and nothing says that they are to be."""


def warn_of_scale(x: Any) -> None:
    """Warns of examples ``x`` (examples, ...) that are not scaled, unless they are uint8, which is scaled in a batch.

    Tables and tokens, whose examples have rank 1, are left alone: scales of their own are usual in them.
    """
    if x.ndim < 3 or x.dtype == np.uint8 or not x.size:
        return
    seen = np.asarray(x[:: max(1, len(x) // _LOOKED_AT)][:_LOOKED_AT])
    low, high = float(seen.min()), float(seen.max())
    may_be_tokens = x.ndim == 3 and seen.dtype.kind in "iu" and not 0 <= low <= high <= 255
    if may_be_tokens or not _USUAL < max(-low, high) < np.inf:
        return
    text = f"x goes from {low:g} to {high:g} as {x.dtype} and is not scaled, with which training mostly fails"
    cure = (
        "give pixels as uint8, which are scaled to [0, 1], other numbers as (x - mean) / deviation, or let the network "
        "scale them: --normalize standard, in Python fljax.normalized"
    )
    warnings.warn(f"{text}; {cure}", ScaleWarning, stacklevel=3)
