"""FedSGD: distributed gradient descent, one full gradient per client and round.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017 (as its baseline), https://arxiv.org/abs/1602.05629.
Participants send the gradient of their whole loss; the server makes one step along the weighted mean.

Differences from the paper: none. ``work.batch_size`` only limits the memory of a gradient, which is summed batch by
batch.
"""

from fljax import tree
from fljax.client.gradient import check_one_step, client_gradients
from fljax.client.objectives import training_loss
from fljax.numbers import LearningRate, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@hyper
class FedSGDHyper(LearningRate):
    lr: Scalar = number(0.1, "learning rate of the server, eta", above=0)


@method(FedSGDHyper, "McMahan et al., AISTATS 2017", "https://arxiv.org/abs/1602.05629")
def fedsgd(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedSGD: ``theta <- theta - eta sum_i omega_i g_i / sum_i omega_i`` with ``g_i = grad F_i(theta)``.

    Args:
        combine: how the server combines the models ``theta - eta g_i``, whose mean is the step above.

    Raises:
        ValueError: ``work.epochs`` is not 1 or ``work.optimizer`` is not "sgd".
    """
    check_one_step(work, "fedsgd")

    def local(hyper: FedSGDHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        loss, eta = training_loss(model), hyper.lr_of(cohort.round)
        grads = client_gradients(cohort.key, theta, cohort.data, loss, work.batch_size, with_statistics=True)
        return grads._replace(params=tree.map_trainable(lambda g, w: w - eta * g, grads.params, tree.stacked(theta)))

    return averaging(model, local, weighting=weighting, combine=combine)
