"""LG-FedAvg: local representations, and last layers that are shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations, 2020, https://arxiv.org/abs/2001.01523.
Official code: https://github.com/pliang279/LG-FedAvg.
Clients train body and head together, and send the head only; the server averages it.

Differences from the paper: the start is a common random model and not one trained by FedAvg; clients are tested with
their own body and the global head, not with an ensemble of all of them. Clients count alike, as in the code.
"""

from fljax.choices import Natural
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, last_layers, mean, method, only
from fljax.types import Algorithm, Model, Work


@method(LocalHyper, "Liang et al., 2020", "https://arxiv.org/abs/2001.01523", kind="personalised")
def lg_fedavg(
    model: Model, work: Work, *, n_shared: Natural = 1, weighting: Weighting = "uniform", combine: Combining = mean
) -> Algorithm:
    """LG-FedAvg: ``(body_i, head_i) = LocalTrain(body_i, head)``; ``head <- sum_i omega_i head_i / sum_i omega_i``.

    Args:
        n_shared: how many of the last layers are shared; all of them is FedAvg.
    """
    head = last_layers(model, n_shared, "n_shared")
    return averaging(model, work, sharing=only(head), weighting=weighting, combine=combine)
