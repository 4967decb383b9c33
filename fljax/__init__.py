"""fljax: functional simulation of federated learning with massively vectorised clients."""
