"""FL+HC: FedAvg for some rounds, then one hierarchical clustering of the clients by their updates.

Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates to improve training on non-IID
data, IJCNN 2020, https://arxiv.org/abs/2004.11791.
After ``warmup`` rounds the server clusters the clients' updates of the shared model by agglomeration; each cluster then
continues with its own FedAvg.

Differences from the paper: with partial participation, the last uploaded updates are clustered; the paper asks all
clients for an update. The default distance is the cosine distance, whose threshold does not depend on the network's
size. A client that has not participated before joins the largest cluster.

With ``distance="predictions"`` and ``warmup=1`` this is FLIS HC (Morafah, Vahidian, Wang, Lin: FLIS: Clustered
Federated Learning via Inference Similarity for Non-IID Data Distribution, 2022, https://arxiv.org/abs/2208.09754):
clients are compared by what their models predict for the server's own examples (`Federation.public`). In its official
code, https://github.com/MMorafah/FLIS, all clients train for that before the first round, and clusters overlap (a
client and all those near it, without agglomeration). One participant after the other averages what its cluster's
members, present or not, hold by then: those before it have trained it in the same round. The script sets its threshold
of similarity to 5 after reading it, which leaves another of its rules: from 0.96 on clients are near.
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, clustered, mean, method, one_shot_clustering
from fljax.rounds.inference import agreement, check_classifies, predicted
from fljax.rounds.one_shot import Evidence, clustering_once
from fljax.server.distance import pairwise_cosine, pairwise_l2
from fljax.server.linkage import linkage as dendrogram
from fljax.server.tree_cuts import cut_at_or_k
from fljax.types import Algorithm, Cohort, Key, Model, Stacked, Work


@hyper
class FLHCHyper(LocalHyper):
    warmup: Scalar = number(5.0, "rounds of FedAvg, in the last of which clusters form", least=1, infinite=True)
    threshold: Scalar = number(
        0.9,
        "clusters merge up to this distance (cosine: 0 to 2; predictions: 0 to 1, by FLIS's command 0.55); inf is "
        "FedAvg; unused with n_clusters",
        least=0,
        infinite=True,
    )


@method(FLHCHyper, "Briggs et al., IJCNN 2020", "https://arxiv.org/abs/2004.11791", kind="clustered")
def flhc(
    model: Model,
    work: Work,
    *,
    distance: Literal["cosine", "l2", "predictions"] = "cosine",
    linkage: Literal["average", "complete", "single"] = "average",
    n_clusters: Positive | None = None,
    n_public: Positive = 2500,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FL+HC: FedAvg; ``a = cut(linkage(|dw_i - dw_j|), threshold)`` once; ``theta_k <- mean of w_i over a_i = k``.

    Args:
        distance: of updates dw, "cosine" (``1 - cos``) or "l2"; or of models, "predictions": the share of the server's
            own examples for which they predict different classes. The federation must then have public data.
        n_clusters: the tree is cut into this many clusters; None: at the threshold.
        n_public: with "predictions", the first n_public public examples are used, or all if there are fewer.
    """
    if distance == "predictions":
        check_classifies(model, "distance='predictions'")

    def find(key: Key, hyper: FLHCHyper, sent: Stacked, has_sent: Array) -> Array:
        if distance == "predictions":
            distances = 1 - agreement(sent)
        else:
            distances = 1 - pairwise_cosine(sent, has_sent) if distance == "cosine" else pairwise_l2(sent, has_sent)
        return cut_at_or_k(dendrogram(distances, linkage, has_sent), hyper.threshold, n_clusters, has_sent)

    def predictions(sent: Stacked, start: Stacked, cohort: Cohort) -> Array:
        return predicted(model, sent, cohort, n_public, "distance='predictions'")

    by_predictions = Evidence(lambda theta: jnp.zeros(n_public, jnp.float32), predictions)
    is_by_updates = distance != "predictions"
    rule = one_shot_clustering(model, find) if is_by_updates else clustering_once(model, find, None, by_predictions)
    return clustered(model, work, rule, combine=combine, weighting=weighting)
