"""HypCluster: clients choose the cluster model with the least loss, and each cluster makes a step of FedAvg.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning, 2020,
https://arxiv.org/abs/2002.10619. Code: https://github.com/google/fedjax.
As IFCA, with members weighted by size and a server optimiser for each cluster.

Differences from the paper: initial models are redrawn as in IFCA until each is chosen by a share ``min_share`` of the
clients (0 takes the first draw, as fedjax's `random_init`), instead of k-means on locally trained models. With
``alone_epochs`` they are models that clients have trained alone, chosen as in fedjax's `ModelKMeansInitializer`; there
a client can be chosen twice. An empty cluster keeps its model and its optimiser's state.
"""

from typing import Literal

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import Combining, by_optimizer, clustered, least_loss_model, least_loss_rule, mean, method, traffic
from fljax.rounds.bricks import ServerAdaptiveHyper
from fljax.rounds.first_models import DrawHyper, first_models, with_first_models
from fljax.types import Algorithm, Cohort, Metrics, Model, Params, Work


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
    alone_epochs: Positive | None = None,
    combine: Combining = mean,
) -> Algorithm:
    """HypCluster: ``a_i = argmin_j F_i(theta_j)``; ``theta_j <- ServerOpt(theta_j, mean_j of LocalTrain(theta_j))``.

    Args:
        server_optimizer: of each cluster, see `fljax.rounds.by_optimizer`.
        alone_epochs: epochs that each client trains one model alone; the initial models are K of these, the next always
            that of the client with the largest loss under those before. None: random ones.
        combine: computes the model that a cluster's optimiser steps towards.
    """

    def sends(center: Params, cohort: Cohort) -> Metrics:
        n_parameters = tree.size(center)
        usual = traffic(n_parameters + 1, n_clusters * n_parameters)
        return with_first_models(usual, cohort, n_parameters, n_clusters, alone_epochs is not None)

    return clustered(
        model,
        work,
        least_loss_rule(model, n_clusters, first_models(model, work, n_clusters, alone_epochs)),
        combine=by_optimizer(combine, server_optimizer),
        sends=sends,
        deploy=least_loss_model(model),
    )
