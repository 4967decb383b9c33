"""FedCPS: personalised models near one of k cluster models, whose base layers all clients share."""

from fljax.algorithms.fedcps.fedcps import fedcps

__all__ = ["fedcps"]
