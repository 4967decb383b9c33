"""FedPer: a shared base, and last layers that stay with each client.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818.
Differences from the paper: heads start equal for all clients.
"""

from fljax.choices import Natural
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, all_but, averaging, last_layers, mean, method
from fljax.types import Algorithm, Model, Work


@method(LocalHyper, "Arivazhagan et al., 2019", "https://arxiv.org/abs/1912.00818", kind="personalised")
def fedper(
    model: Model, work: Work, *, n_personal: Natural = 1, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FedPer: ``(base_i, head_i) = LocalTrain(base, head_i)``; ``base <- sum_i omega_i base_i / sum_i omega_i``.

    Args:
        n_personal: number of last layers that stay with the client; 0 is FedAvg, all is standalone training.
    """
    sharing = all_but(last_layers(model, n_personal, "n_personal"))
    return averaging(model, work, sharing=sharing, weighting=weighting, combine=combine)
