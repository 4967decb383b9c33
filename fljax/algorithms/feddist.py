"""FedDist: the server moves part of the way to the clients' mean, as in Reptile.

As in the code of Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization, World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026 (a baseline there), after Nichol, Achiam,
Schulman: On First-Order Meta-Learning Algorithms, 2018, https://arxiv.org/abs/1803.02999.
Clients train the server's model; the server moves towards their mean by a step of 0.6.

Differences from the code: none. Ek et al., PerCom 2021, use the same name for a different method.
"""

from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, averaging, interpolated, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class FedDistHyper(LocalHyper):
    step: Scalar = number(
        0.6, "share of the way to the clients' mean; 1 is FedAvg with equal weights, 0.6 in the code", above=0, most=1
    )


@method(FedDistHyper, "baseline of Long et al., World Wide Web Journal 2023")
def feddist(model: Model, work: Work, *, combine: Combining = mean) -> Algorithm:
    """FedDist: ``theta <- theta - step/m sum_i (theta - w_i)`` over the m participants; ``combine`` gives the goal."""
    return averaging(model, work, weighting="uniform", combine=interpolated(combine))
