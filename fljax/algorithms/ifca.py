"""IFCA: clients choose the cluster model with the least loss.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
https://arxiv.org/abs/2006.04088. Official code: https://github.com/jichan3751/ifca.
The server broadcasts K models; each client joins the one with the least loss on its training data and trains it; each
cluster averages its members.

Differences from the paper: initial models are redrawn, as in the official code, until every cluster has a share
``min_share`` of the clients, at most 200 times (then the most even draw is kept). A client is tested with the cluster
of least *training* loss; the official CIFAR script chooses by test loss. ``n_shared`` is the paper's weight sharing:
the first layers are averaged over all participants; the official FEMNIST script takes them from a finished run of
FedAvg instead, and starts with random clusters.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.choices import Positive
from fljax.client.gradient import check_one_step, client_gradients
from fljax.client.objectives import training_loss
from fljax.rounds import Combining, Rule, Weighting, client_weight, clustered, mean, method, traffic
from fljax.rounds.choosing import least_loss_model, least_loss_rule
from fljax.rounds.combine_parts import over_everybody
from fljax.rounds.first_models import DrawHyper, first_models, with_first_models
from fljax.rounds.local import Local
from fljax.rounds.sharing import compose, n_floats, split
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, Trained, Work


@method(DrawHyper, "Ghosh et al., NeurIPS 2020", "https://arxiv.org/abs/2006.04088", kind="clustered")
def ifca(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    weighting: Weighting = "uniform",
    averaging: Literal["model", "gradient"] = "model",
    n_shared: int = 0,
    alone_epochs: Positive | None = None,
    combine: Combining = mean,
) -> Algorithm:
    """IFCA: ``a_i = argmin_j F_i(theta_j)``; ``theta_j <- mean of LocalTrain(theta_j) over a_i = j``.

    Args:
        averaging: "model": members send trained models; "gradient": one full gradient, and epochs must be 1.
        n_shared: number of first layers that all clusters share: the mean over all participants.
        alone_epochs: epochs that each client trains one model alone; the initial models are K of these, the next always
            that of the client with the largest loss under those before, as in FedJAX's HypCluster. None: random ones.
        combine: how the server combines a cluster's models, and all participants' shared layers.

    Raises:
        ValueError: "gradient" with more than one plain SGD step, or ``n_shared`` leaves no layer to the clusters.
    """
    if not 0 <= n_shared < len(model.layers):
        raise ValueError(
            f"n_shared={n_shared} of {len(model.layers)} layers; choose 0 <= n_shared < {len(model.layers)}"
        )
    common = model.layers[:n_shared]
    begin = first_models(model, work, n_clusters, alone_epochs)

    def sends(center: Params, cohort: Cohort) -> Metrics:
        n_parameters, n_common = tree.size(center), n_floats(center, common)
        usual = traffic(n_parameters + 1, n_common + n_clusters * (n_parameters - n_common))
        return with_first_models(usual, cohort, n_parameters, n_clusters, alone_epochs is not None)

    return clustered(
        model,
        work if averaging == "model" else _gradient_step(model, work, n_clusters, weighting, common),
        _with_common_layers(least_loss_rule(model, n_clusters, begin), common),
        combine=over_everybody(combine, common) if common else combine,
        weighting=weighting,
        sends=sends,
        deploy=least_loss_model(model),
    )


def _gradient_step(model: Model, work: Work, n_clusters: int, weighting: Weighting, common: tuple[str, ...]) -> Local:
    """``theta_j - eta sum_{i in j} g_i / m`` is the mean of ``theta_j - eta |S_j|/m g_i`` over the members of j.

    Weighted by size, ``|S_j|`` and ``m`` are the examples of the cluster and of all participants. Layers in ``common``
    are averaged over all participants, so their step is not scaled.

    Raises:
        ValueError: ``work`` is more than one plain SGD step on the plain loss.
    """
    check_one_step(work, "averaging='gradient'")
    if work.terms:
        raise ValueError(
            "averaging='gradient' sends the gradient of the plain loss; remove bricks that change the loss"
        )

    def local(hyper: DrawHyper, start: ModelTable, cohort: Cohort) -> Trained:
        if hyper.momentum is not None or hyper.weight_decay is not None:
            raise ValueError("averaging='gradient' makes a plain SGD step; use momentum=None and weight_decay=None")
        loss = training_loss(model)
        gradients = client_gradients(cohort.key, start, cohort.data, loss, work.batch_size, with_statistics=True)
        weight = client_weight(weighting, cohort, gradients.ok)
        member = jax.nn.one_hot(start.row, n_clusters, dtype=jnp.float32) * weight[:, None]
        share = (member.sum(axis=0) / jnp.maximum(member.sum(), 1.0))[start.row]
        trainable = tree.trainable(tree.take(start.params, start.row))
        gradient, statistics = tree.split_statistics(gradients.params)
        lr, (own, base) = hyper.lr_of(cohort.round), split(gradient, common)
        step = compose(jax.tree.map(lambda g: lr * tree.along(share, g) * g, own), jax.tree.map(lambda g: lr * g, base))
        return gradients._replace(params=tree.join_statistics(tree.subtract(trainable, step), statistics))

    return local


def _with_common_layers(rule: Rule, common: tuple[str, ...]) -> Rule:
    """``rule`` whose initial models all have the ``common`` layers of the first one."""

    def begin(key: Key, hyper: Any, data: ClientData) -> Any:
        clusters = rule.begin(key, hyper, data)
        own, common_layers = split(clusters.centers, common)
        base = tree.broadcast(tree.first(common_layers), tree.n_rows(own))
        return clusters._replace(centers=compose(own, base))

    return rule._replace(begin=begin) if common else rule
