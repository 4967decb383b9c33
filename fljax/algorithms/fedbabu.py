"""FedBABU: clients learn the body under a fixed random head, then each fine-tunes the whole model.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
https://arxiv.org/abs/2106.06042. Official code: https://github.com/jhoon-oh/FedBABU.
Clients train the body under a common random head and send it; the server averages the bodies. Before a test, each
client fine-tunes the whole model on its own training data.

Differences from the paper: the learning rate decays by a constant factor per round, not at one half and three quarters
of the rounds. The accuracy before fine-tuning, which the paper also reports, is that of ``ft_epochs=0``. FedCR's code
trains the head in the rounds, which makes its "FedBABU" FedPer; this is the original.
"""

from fljax import tree
from fljax.choices import Natural
from fljax.client.objectives import training_loss
from fljax.rounds import Combining, Weighting, averaging, last_layers, mean, method, on_layers, trained_on
from fljax.rounds.head_tuning import layers_tuned
from fljax.rounds.tuning import TunedHyper
from fljax.types import Algorithm, Model, Work


@method(TunedHyper, "Oh et al., ICLR 2022", "https://arxiv.org/abs/2106.06042", kind="personalised")
def fedbabu(
    model: Model,
    work: Work,
    *,
    n_head: Natural = 1,
    ft_epochs: Natural = 5,
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """FedBABU: ``body_i = LocalTrain(body | head_0)``; ``body <- mean of body_i``; test after fine-tuning all layers.

    The official code has lr 0.1 and momentum 0.9.

    Args:
        n_head: number of last layers that form the head; 0 is FedAvg with fine-tuning.
        ft_epochs: epochs of fine-tuning before a test; 0 tests the global model itself.
    """
    head = last_layers(model, n_head, "n_head")
    body = tuple(name for name in model.layers if name not in head)
    rounds = averaging(
        model,
        trained_on(training_loss(model), work, head),
        combine=on_layers(combine, body),
        weighting=weighting,
        n_sent=lambda theta: tree.size(tree.select(theta, body)),
    )
    return rounds._replace(deploy=layers_tuned(rounds.deploy, model, work, ft_epochs, model.layers))
