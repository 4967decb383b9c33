"""FedRS: clients restrict the softmax of the classes of which they have no examples.

Li, Zhan: FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021,
https://doi.org/10.1145/3447548.3467254. Official code: https://github.com/lxcnju/FedRepo.
FedAvg whose clients scale the logits of missing classes by alpha, so that training moves the proxies of these classes
less.

Differences from the paper: a logit is scaled with its bias; the network of the code has none. The code scales classes
by their counts divided by the largest of them, and anew in every batch, so that its factors approach 1 during training.
"""

import jax.numpy as jnp

from fljax import tree
from fljax.client.features import head_shape
from fljax.client.objectives import of_changed_logits
from fljax.data.federation import class_histogram
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, check_not_private, mean, method, train
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@hyper
class FedRSHyper(LocalHyper):
    alpha: Scalar = number(0.5, "factor of the logits of missing classes; 1 is FedAvg", least=0, most=1)


@method(FedRSHyper, "Li and Zhan, KDD 2021", "https://doi.org/10.1145/3447548.3467254")
def fedrs(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedRS: ``w_i = argmin mean_x l(a_i w(x), y)``, ``a_ic`` = 1 for classes of client i, else alpha; average.

    Args:
        model: the network, whose last layer is dense.
    """
    check_not_private(work, "clients of FedRS scale their logits by the classes that they have, which get no noise")

    def local(hyper: FedRSHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        n_classes = head_shape(model, tree.first(theta.params))[1]
        factor = jnp.where(class_histogram(cohort.data, n_classes) > 0, 1.0, hyper.alpha)
        restricted = of_changed_logits(model, lambda logits, factor: factor[None] * logits)
        return train(hyper, theta, cohort, restricted, work, factor)

    return averaging(model, local, weighting=weighting, combine=combine)
