"""HypCluster: clients choose the cluster model with the least loss, and each cluster makes a step of FedAvg.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning, 2020,
https://arxiv.org/abs/2002.10619. Code: https://github.com/google/fedjax.
As IFCA, with members weighted by size and a server optimiser for each cluster.

Differences from the paper: initial models are redrawn as in IFCA until each is chosen by a share ``min_share`` of the
clients (0 takes the first draw, as fedjax's `random_init`), instead of k-means on locally trained models; an empty
cluster keeps its model and its optimiser's state.
"""

from typing import Literal

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import Combining, by_optimizer, clustered, least_loss_model, least_loss_rule, mean, method, traffic
from fljax.rounds.bricks import ServerAdaptiveHyper
from fljax.rounds.first_models import DrawHyper
from fljax.types import Algorithm, Model, Work


@hyper
class HypClusterHyper(DrawHyper, ServerAdaptiveHyper):
    server_lr: Scalar = number(1.0, "learning rate of the clusters' server optimisers; 1 with 'sgd': the mean", above=0)


@method(HypClusterHyper, "Mansour et al., 2020", "https://arxiv.org/abs/2002.10619", kind="clustered")
def hypcluster(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    server_optimizer: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "sgd",
    combine: Combining = mean,
) -> Algorithm:
    """HypCluster: ``a_i = argmin_j F_i(theta_j)``; ``theta_j <- ServerOpt(theta_j, mean_j of LocalTrain(theta_j))``.

    Args:
        server_optimizer: of each cluster, see `fljax.rounds.by_optimizer`.
        combine: computes the model that a cluster's optimiser steps towards.
    """
    return clustered(
        model,
        work,
        least_loss_rule(model, n_clusters),
        combine=by_optimizer(combine, server_optimizer),
        sends=lambda center, cohort: traffic(tree.size(center) + 1, n_clusters * tree.size(center)),
        deploy=least_loss_model(model),
    )
