"""FedAvg-FT: FedAvg; each client fine-tunes the global model before its test.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, https://arxiv.org/abs/1602.05629; fine-tuning as the baseline of personalised methods.
The rounds are FedAvg's; a client then trains the global model, or its head, on its own data.

Differences from common practice: none; the ten epochs on the last layer are those of the FedCR code.
"""

from typing import Literal

from fljax.algorithms.fedavg import fedavg
from fljax.choices import Natural
from fljax.rounds import Combining, TunedHyper, Weighting, layers_tuned, mean, method
from fljax.types import Algorithm, Model, Work


@method(TunedHyper, "baseline", kind="personalised")
def fedavg_ft(
    model: Model,
    work: Work,
    *,
    ft_epochs: Natural = 10,
    ft_layers: Literal["head", "all"] = "head",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedAvg; client i is tested with ``LocalTrain(theta)`` of ``ft_epochs`` epochs.

    Args:
        ft_epochs: epochs of fine-tuning; 0 is FedAvg.
        ft_layers: "head" fine-tunes the last layer, "all" fine-tunes all layers.
    """
    rounds = fedavg(model, work, weighting=weighting, combine=combine)
    layers = model.layers[-1:] if ft_layers == "head" else model.layers
    return rounds._replace(deploy=layers_tuned(rounds.deploy, model, work, ft_epochs, layers))
