"""FL+HC: FedAvg for some rounds, then one hierarchical clustering of the clients by their updates.

Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates to improve training on non-IID
data, IJCNN 2020, https://arxiv.org/abs/2004.11791.
After ``warmup`` rounds the server clusters the clients' updates of the shared model by agglomeration; each cluster then
continues with its own FedAvg.

Differences from the paper: with partial participation, the last uploaded updates are clustered; the paper asks all
clients for an update. The default distance is the cosine distance, whose threshold does not depend on the network's
size. A client that has not participated before joins the largest cluster.
"""

from typing import Literal

from jax import Array

from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, clustered, mean, method, one_shot_clustering
from fljax.server.distance import pairwise_cosine, pairwise_l2
from fljax.server.linkage import linkage as dendrogram
from fljax.server.tree_cuts import cut_at_or_k
from fljax.types import Algorithm, Key, Model, Stacked, Work


@hyper
class FLHCHyper(LocalHyper):
    warmup: Scalar = number(5.0, "rounds of FedAvg, in the last of which clusters form", least=1, infinite=True)
    threshold: Scalar = number(
        0.9,
        "clusters merge up to this distance (cosine: 0 to 2); inf is FedAvg; unused with n_clusters",
        least=0,
        infinite=True,
    )


@method(FLHCHyper, "Briggs et al., IJCNN 2020", "https://arxiv.org/abs/2004.11791", kind="clustered")
def flhc(
    model: Model,
    work: Work,
    *,
    distance: Literal["cosine", "l2"] = "cosine",
    linkage: Literal["average", "complete", "single"] = "average",
    n_clusters: Positive | None = None,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FL+HC: FedAvg; ``a = cut(linkage(|dw_i - dw_j|), threshold)`` once; ``theta_k <- mean of w_i over a_i = k``.

    Args:
        distance: of updates dw, "cosine" (``1 - cos``) or "l2".
        n_clusters: the tree is cut into this many clusters; None: at the threshold.
    """

    def find(key: Key, hyper: FLHCHyper, update: Stacked, has_sent: Array) -> Array:
        distances = 1 - pairwise_cosine(update, has_sent) if distance == "cosine" else pairwise_l2(update, has_sent)
        return cut_at_or_k(dendrogram(distances, linkage, has_sent), hyper.threshold, n_clusters, has_sent)

    return clustered(model, work, one_shot_clustering(model, find), combine=combine, weighting=weighting)
