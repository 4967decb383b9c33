"""FedOpt: FedAvg whose server updates with an optimiser (FedAvgM, FedAdagrad, FedAdam, FedYogi).

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
https://arxiv.org/abs/2003.00295.
The difference between the server's model and the clients' mean is the gradient for momentum, Adagrad, Adam or Yogi.

Differences from the paper: Adam and Yogi are optax's, with bias correction of the moments; Adam's second moment starts
at 0 and Yogi's at 1e-6, not at tau^2. Adagrad is optax's, which divides by ``sqrt(tau^2 + sum of squares)``, with no
tau outside the root.
The bricks "+momentum", "+adagrad", "+adam" and "+yogi" add such a server to other methods.
"""

from typing import Literal

from fljax.numbers import LocalHyper, joined
from fljax.rounds import Combining, Weighting, averaging, by_optimizer, mean, method
from fljax.rounds.bricks import ServerAdaptiveHyper
from fljax.types import Algorithm, Model, Work


@method(joined(LocalHyper, ServerAdaptiveHyper), "Reddi et al., ICLR 2021", "https://arxiv.org/abs/2003.00295")
def fedopt(
    model: Model,
    work: Work,
    *,
    server_optimizer: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "adam",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedOpt: ``theta <- ServerOpt(theta, theta - sum_i omega_i w_i / sum_i omega_i)``.

    Args:
        server_optimizer: "momentum" is FedAvgM, "adagrad" FedAdagrad, "adam" FedAdam, "yogi" FedYogi; "sgd" with
            server_lr 1 is FedAvg. "sgd" and "momentum" do not use beta2 and tau, "sgd" not beta1 either; "adagrad"
            uses tau only.
        combine: computes the model that the server steps towards.
    """
    return averaging(model, work, weighting=weighting, combine=by_optimizer(combine, server_optimizer))
