"""FedLC: clients calibrate their logits by their number of examples of each class.

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022,
https://arxiv.org/abs/2209.00189.
FedAvg with a larger margin for the classes of which a client has few examples.

Differences from the paper: the loss is the cross-entropy of the calibrated logits, as in PFLlib; the paper excludes the
true class from the sum in the denominator. A class without examples counts as having one. Margins are computed from the
client's own counts; in PFLlib, from the counts of all clients together.
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
class FedLCHyper(LocalHyper):
    tau: Scalar = number(1.0, "tau: size of the margins; 0 is FedAvg", least=0)


@method(FedLCHyper, "Zhang et al., ICML 2022", "https://arxiv.org/abs/2209.00189")
def fedlc(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedLC: ``w_i = argmin mean_x l(w(x) - tau n_i^(-1/4), y)``, n_ic the client's examples of class c; average.

    Args:
        model: the network, whose last layer is dense.
    """
    check_not_private(work, "clients of FedLC shift their logits by their label counts, which get no noise")

    def local(hyper: FedLCHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        n_classes = head_shape(model, tree.first(theta.params))[1]
        count = class_histogram(cohort.data, n_classes).astype(jnp.float32)
        margin = hyper.tau * jnp.maximum(count, 1.0) ** -0.25
        calibrated = of_changed_logits(model, lambda logits, margin: logits - margin[None])
        return train(hyper, theta, cohort, calibrated, work, margin)

    return averaging(model, local, weighting=weighting, combine=combine)
