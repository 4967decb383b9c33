"""LayerCFL: clustered federated learning that compares clients by the updates of selected layers."""

from fljax.algorithms.layercfl.layercfl import layercfl
from fljax.algorithms.layercfl.similarity import layers_by_pilot
from fljax.algorithms.layercfl.stopping import LayerCFLHyper, SplitHyper

__all__ = ["LayerCFLHyper", "SplitHyper", "layercfl", "layers_by_pilot"]
