"""FedSR-FT: FedSR, whose last layers each client fine-tunes before it is tested.

Nguyen, Torr, Lim: FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html;
fine-tuning as in the FedCR code, https://github.com/haozzh/FedCR.
The rounds are FedSR's; a client then trains the last layers on draws of its own examples' representations.

Differences from the code: none; ten epochs on the head.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax.algorithms.fedsr import fedsr
from fljax.algorithms.partial import last_layers
from fljax.algorithms.tuned import tuned
from fljax.client import training_loss
from fljax.client.freeze import frozen
from fljax.types import Algorithm, Model, Work


class FedSRFTHyper(NamedTuple):
    """Numbers of FedSR-FT.

    lr: clients' learning rate, > 0.
    l2r: weight of the mean length of z, >= 0.
    cmi: weight of the divergence from the class reference, >= 0.
    ft_lr: clients' learning rate when they fine-tune, > 0; None: `lr`, not decayed.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    l2r: Array | float = 0.01
    cmi: Array | float = 5e-4
    ft_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedsr_ft(model: Model, work: Work, *, ft_epochs: int = 10, n_tuned: int = 1, weighting: str = "size") -> Algorithm:
    """FedSR; client i is tested with the global network after ``ft_epochs`` epochs on its last layers.

    Args:
        model: a probabilistic network, such as `fljax.models.variational_cnn`.
        work: local effort in the rounds.
        ft_epochs: epochs that a client fine-tunes; 0 is FedSR.
        n_tuned: how many of the last layers it fine-tunes.
        weighting: "size" (omega_i = n_i) or "uniform".
    """
    moving = last_layers(model, n_tuned, "n_tuned")
    held = tuple(name for name in model.layers if name not in moving)
    averaging = fedsr(model, work, weighting=weighting)
    return averaging._replace(deploy=tuned(averaging.deploy, frozen(training_loss(model), held), work, ft_epochs))
