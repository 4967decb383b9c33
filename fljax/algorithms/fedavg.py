"""FedAvg: the server averages the models that clients train.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.
Clients train the server's model on their own data; the server averages the trained models.

Differences from the paper: ``weighting="uniform"`` averages the participants equally, as several code bases do.
"""

from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, mean, method
from fljax.types import Algorithm, Model, Work


@method(LocalHyper, "McMahan et al., AISTATS 2017", "https://arxiv.org/abs/1602.05629")
def fedavg(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedAvg: ``w_i = LocalTrain(theta)``; ``theta <- sum_i omega_i w_i / sum_i omega_i``."""
    return averaging(model, work, weighting=weighting, combine=combine)
