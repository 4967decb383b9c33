"""PACFL: clients are clustered before the first round by the angles between their data's main directions.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in Clustered
Federated Learning via Principal Angles Between Client Data Subspaces, AAAI 2023, https://arxiv.org/abs/2209.10526.
Official code: https://github.com/MMorafah/PACFL.
Each client sends the first left singular vectors of its data; the server clusters clients by the angles between them,
by agglomeration, and each cluster then runs its own FedAvg.

Differences from the code: the vectors are computed from all examples of a client, as in the paper; the code computes
some for each of its labels. Angles are principal angles; the code takes the entries of ``U_i' U_j`` as their cosines.
Average linkage is the mean over all pairs (UPGMA); in the code, the plain mean of the two merged clusters (WPGMA). A
new client joins the cluster with the least training loss; in the code it sends its directions.
"""

from typing import Literal

from fljax import tree
from fljax.choices import Positive
from fljax.client.directions import main_directions
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, mean, method, with_first_upload
from fljax.rounds.uplink.private import check_not_private
from fljax.server.angles import subspace_distance
from fljax.server.linkage import linkage as dendrogram
from fljax.server.tree_cuts import cut_at_or_k
from fljax.types import Algorithm, ClientData, Key, Model, Work


@hyper
class PACFLHyper(LocalHyper):
    threshold: Scalar = number(
        10.0, "beta: clusters merge up to this angle, in degrees; unused with n_clusters", least=0, infinite=True
    )


@method(PACFLHyper, "Vahidian et al., AAAI 2023", "https://arxiv.org/abs/2209.10526", kind="clustered")
def pacfl(
    model: Model,
    work: Work,
    *,
    n_basis: Positive = 3,
    angle: Literal["smallest", "sum"] = "smallest",
    linkage: Literal["average", "complete", "single"] = "average",
    n_clusters: Positive | None = None,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """PACFL: ``a = cut(linkage(angle(U_i, U_j)), beta)`` once; ``theta_k <- mean of its members' w_i``.

    Args:
        n_basis: p, number of left singular vectors of its data (features x examples) that a client sends.
        angle: between two subspaces: the "smallest" principal angle, or the "sum" of all.
        n_clusters: the tree is cut into this many clusters; None: at the threshold.
    """

    check_not_private(work, "clients of PACFL send directions of their data, which get no noise")

    def begin(key: Key, hyper: PACFLHyper, data: ClientData) -> Clusters:
        merges = dendrogram(subspace_distance(main_directions(data, n_basis), angle), linkage)
        label = cut_at_or_k(merges, hyper.threshold, n_clusters)
        return Clusters(tree.broadcast(model.init(key), data.n_clients), label)

    sends = with_first_upload(lambda center, cohort: n_basis * cohort.data.pool.x[0].size)
    return clustered(model, work, Rule(begin), combine=combine, weighting=weighting, sends=sends)
