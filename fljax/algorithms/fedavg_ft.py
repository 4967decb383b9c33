"""FedAvg-FT: FedAvg, fine-tuned by each client before it is tested.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, https://arxiv.org/abs/1602.05629; fine-tuning as the baseline of personalised methods.
The rounds are FedAvg's; a client then trains the global model, or its head, on its own data.

Differences from common practice: none; the ten epochs on the last layer are those of the FedCR code.
"""

from functools import cache
from typing import Literal, NamedTuple

from jax import Array

from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.tuned import tuned
from fljax.client import training_loss
from fljax.client.freeze import frozen
from fljax.types import Algorithm, Model, Work


class FedAvgFTHyper(NamedTuple):
    """Numbers of FedAvg with fine-tuning.

    lr: clients' learning rate, > 0.
    ft_lr: clients' learning rate when they fine-tune, > 0; None: `lr`, not decayed.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    ft_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedavg_ft(
    model: Model,
    work: Work,
    *,
    ft_epochs: int = 10,
    ft_layers: Literal["head", "all"] = "head",
    weighting: str = "size",
) -> Algorithm:
    """FedAvg; client i is tested with ``LocalTrain(theta)`` of ``ft_epochs`` epochs.

    Args:
        model: the network.
        work: local effort in the rounds.
        ft_epochs: epochs that a client fine-tunes; 0 is FedAvg.
        ft_layers: "head" fine-tunes the last layer, "all" every one.
        weighting: "size" (omega_i = n_i) or "uniform".
    """
    if ft_layers not in ("head", "all"):
        raise ValueError(f"ft_layers={ft_layers!r} is unknown; choose 'head' or 'all'")
    averaging = fedavg(model, work, weighting=weighting)
    held = model.layers[:-1] if ft_layers == "head" else ()
    return averaging._replace(deploy=tuned(averaging.deploy, frozen(training_loss(model), held), work, ft_epochs))
