"""LG-FedAvg: each client keeps its own body, and the last layers are shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations, 2020, https://arxiv.org/abs/2001.01523.
Official code: https://github.com/pliang279/LG-FedAvg.
Clients train body and head together, and send only the head; the server averages the heads.

Differences from the paper: training starts from a common random model, not from one trained by FedAvg; clients are
tested with their own body and the global head, not with an ensemble of all of them. Clients have equal weights, as in
the code.
"""

from fljax.choices import Natural
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, last_layers, mean, method, only
from fljax.types import Algorithm, Model, Work


@method(LocalHyper, "Liang et al., 2020", "https://arxiv.org/abs/2001.01523", kind="personalised", heterogeneous=True)
def lg_fedavg(
    model: Model, work: Work, *, n_shared: Natural = 1, weighting: Weighting = "uniform", combine: Combining = mean
) -> Algorithm:
    """LG-FedAvg: ``(body_i, head_i) = LocalTrain(body_i, head)``; ``head <- sum_i omega_i head_i / sum_i omega_i``.

    Args:
        n_shared: number of last layers that are shared; all layers is FedAvg.
    """
    head = last_layers(model, n_shared, "n_shared")
    return averaging(model, work, sharing=only(head), weighting=weighting, combine=combine)
