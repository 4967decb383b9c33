"""FedTSDP: clients clustered by outputs, then by weights, when they tend to cluster; fewer layers shared each time."""

from fljax.algorithms.fedtsdp.fedtsdp import fedtsdp

__all__ = ["fedtsdp"]
