"""Group-based PFL: clients are grouped once by their label distributions, with FedAvg inside each group.

A baseline, as described by Liu et al. (DC-PFL, https://arxiv.org/abs/2508.01580).
An average-linkage tree of the divergences between the clients' label distributions is cut at a threshold; each group
averages its members' models.

Differences: the label counts are uploaded with the first round's models. With ``one_group_rounds``, all clients start
as one group, which is split later, see Group-based PFL, naive dynamic. A new client joins the group whose model has the
least training loss.
"""

import jax
import jax.numpy as jnp

from fljax.choices import Positive
from fljax.data.federation import class_histogram, minibatch
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, mean, method, regrouped, with_first_upload
from fljax.rounds.clustered import one_cluster
from fljax.rounds.uplink.private import check_not_private
from fljax.server.divergence import label_kld
from fljax.server.linkage import linkage
from fljax.server.tree_cuts import cut, cut_k
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, Params, Work


@hyper
class GroupPFLHyper(LocalHyper):
    """Hyperparameters of group-based personalised federated learning.

    The divergence is the symmetric Kullback-Leibler divergence (natural logarithm) of label distributions smoothed by
    1e-4; it is at most 9.2.
    """

    gamma: Scalar = number(
        3.0, "groups merge up to this mean divergence; inf is FedAvg; unused with n_groups", least=0, infinite=True
    )
    one_group_rounds: Scalar = number(
        0.0, "number of first rounds in which all clients are one group", least=0, infinite=True
    )


@method(GroupPFLHyper, "as compared in Liu et al., 2025", "https://arxiv.org/abs/2508.01580", kind="clustered")
def group_pfl(
    model: Model,
    work: Work,
    *,
    n_groups: Positive | None = None,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """Group-based PFL: groups by UPGMA on label divergences, cut at gamma; ``theta_k <- mean of its members' w_i``.

    Args:
        n_groups: the tree is cut into this many groups, whatever gamma; None: at gamma.
    """
    check_not_private(work, "clients of Group-based PFL are grouped by their label counts, which get no noise")

    def begin(key: Key, hyper: GroupPFLHyper, data: ClientData) -> Clusters:
        theta = model.init(key)
        divergence = label_kld(class_histogram(data, n_outputs(model, theta, data)))
        merges = linkage(divergence, "average")
        group = cut(merges, hyper.gamma) if n_groups is None else cut_k(merges, n_groups)
        return one_cluster(theta, data.n_clients, kept=group)

    def before(hyper: GroupPFLHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        is_split = cohort.round.astype(jnp.float32) >= hyper.one_group_rounds
        return regrouped(clusters, jnp.where(is_split, clusters.kept, clusters.label))

    sends = with_first_upload(lambda center, cohort: n_outputs(model, center, cohort.data))
    return clustered(model, work, Rule(begin, before), combine=combine, weighting=weighting, sends=sends)


def n_outputs(model: Model, params: Params, data: ClientData) -> int:
    """Number of outputs of the network: its classes."""
    example = minibatch(data.pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
    return jax.eval_shape(lambda: model.apply(params, example.x, None)[0]).shape[-1]
