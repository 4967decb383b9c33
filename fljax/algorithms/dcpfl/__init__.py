"""DC-PFL: groups that split along a fixed hierarchy when the loss stops falling fast, and layers averaged when due."""

from fljax.algorithms.dcpfl.dcpfl import dcpfl

__all__ = ["dcpfl"]
