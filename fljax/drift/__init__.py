"""Federations that change over the rounds: swapped labels, rotated images, clients that move, arrive and leave.

``fljax.drift.drifting(federation, fljax.drift.swap_labels(start=20))`` returns a federation for `fljax.simulate`,
`fljax.train` and so on, with every method. `fljax.after_changes` measures the effect of a change.
"""

from fljax.drift.drifting import drifting
from fljax.drift.named import DRIFTS, arrive, leave, move, rotate_images, swap_labels
from fljax.drift.stages import at, changes
from fljax.drift.timeline import Drift, Timeline

__all__ = [
    "DRIFTS",
    "Drift",
    "Timeline",
    "arrive",
    "at",
    "changes",
    "drifting",
    "leave",
    "move",
    "rotate_images",
    "swap_labels",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
