"""FedSR-FT: FedSR; each client fine-tunes the last layers before its test.

Nguyen, Torr, Lim: FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html;
fine-tuning as in the FedCR code, https://github.com/haozzh/FedCR.
The rounds are FedSR's; a client then trains the last layers on draws of its own examples' representations.

Differences from the code: the head is tuned with the cross-entropy; the code tunes the last two layers (``n_tuned=2``)
with FedSR's whole loss. In the code's rounds nothing is exchanged, see `fljax.fedsr`.
"""

from fljax.algorithms.fedsr import LINK, FedSRHyper, check_network, fedsr
from fljax.choices import Natural
from fljax.numbers import hyper
from fljax.rounds import Combining, TunedHyper, Weighting, last_layers, layers_tuned, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class FedSRFTHyper(FedSRHyper, TunedHyper):
    """Hyperparameters of FedSR-FT."""


@method(FedSRFTHyper, "Nguyen et al., NeurIPS 2022", LINK, kind="personalised")
def fedsr_ft(
    model: Model,
    work: Work,
    *,
    ft_epochs: Natural = 10,
    n_tuned: Natural = 1,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedSR; client i is tested with the global network after ``ft_epochs`` epochs on its last layers.

    Args:
        model: a probabilistic network, such as `fljax.models.variational_cnn`.
        ft_epochs: epochs of fine-tuning; 0 is FedSR.
        n_tuned: number of last layers that are fine-tuned.
    """
    check_network(model, "fedsr_ft")
    tuned_layers = last_layers(model, n_tuned, "n_tuned")
    rounds = fedsr(model, work, weighting=weighting, combine=combine)
    return rounds._replace(deploy=layers_tuned(rounds.deploy, model, work, ft_epochs, tuned_layers))
