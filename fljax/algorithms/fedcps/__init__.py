"""FedCPS: personalised models near one of k cluster models whose base layers everyone shares."""

from fljax.algorithms.fedcps.fedcps import fedcps

__all__ = ["fedcps"]
