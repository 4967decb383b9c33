"""FedProx: FedAvg with a proximal term that holds clients near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127.
Differences from the paper: all clients do the same number of epochs (no inexactness gamma_k); participants are sampled
uniformly and weighted by size, as in FedAvg.
"""

from fljax.client.objectives import proximal, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method, train
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@hyper
class FedProxHyper(LocalHyper):
    mu: Scalar = number(0.1, "proximal weight; 0 is FedAvg; classic grid 0.001, 0.01, 0.1, 1", least=0)


@method(FedProxHyper, "Li et al., MLSys 2020", "https://arxiv.org/abs/1812.06127")
def fedprox(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedProx: ``w_i = argmin F_i(w) + mu/2 |w - theta|^2`` by local steps; the rest is as in FedAvg."""

    def local(hyper: FedProxHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        return train(hyper, theta, cohort, proximal(training_loss(model), hyper.mu), work, theta)

    return averaging(model, local, weighting=weighting, combine=combine)
