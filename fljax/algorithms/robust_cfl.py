"""Robust clustered FL: one robust clustering of local solutions, then robust averages inside each cluster.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment, 2019,
https://arxiv.org/abs/1906.06629.
Each client solves its own problem; the server clusters the solutions by Lloyd's algorithm with trimmed means or medians
as centers; from its center, each cluster then learns with the same kind of average, to resist adversarial clients.

Differences from the paper: the local problem is ``solve_epochs`` epochs from a common initial model, solved by all
clients before the first round and counted as a second upload of that round's participants. The best of ``n_init``
clusterings is kept; the paper has 1. Five per cent of fewer than 20 members is less than one client, so with three or
more members at least one is trimmed on each side. A new client joins the cluster with the least training loss.
"""

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, clustered, median, method, trimmed_mean, with_first_upload
from fljax.rounds.local import train_beforehand
from fljax.rounds.uplink.private import check_not_private
from fljax.server.robust_kmeans import robust_kmeans
from fljax.types import Algorithm, ClientData, Key, Model, Work


@hyper
class RobustCFLHyper(LocalHyper):
    trim: Scalar = number(
        0.05, "share trimmed on each side of every coordinate; 0 is the mean; unused with medians", least=0, most=0.5
    )


@method(RobustCFLHyper, "Ghosh et al., 2019", "https://arxiv.org/abs/1906.06629", kind="clustered")
def robust_cfl(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    solve_epochs: Positive = 20,
    n_init: Positive = 20,
    combine: Combining = trimmed_mean,
) -> Algorithm:
    """Robust clustered FL: ``a = robust_kmeans(w)`` of local solutions w; ``Theta_k <- trimmed mean of its members``.

    Args:
        n_clusters: K, the number of clusters, fixed before the first round.
        solve_epochs: epochs in which a client solves its own problem.
        n_init: random starts of the clustering.
        combine: the average inside a cluster; the paper has `trimmed_mean` and `median`. The clustering's centers are
            medians if this is `median` (``robust_cfl+median``), otherwise trimmed means.
    """
    check_not_private(work, "clients of robust CFL also train before the first round, and epsilon counts rounds only")
    center = "median" if combine is median else "trimmed"

    def begin(key: Key, hyper: RobustCFLHyper, data: ClientData) -> Clusters:
        key_model, key_train, key_cluster = jax.random.split(key, 3)
        # 1. Every client solves its local problem and sends w_i.
        solve = work.for_epochs(solve_epochs)
        solved = train_beforehand(key_train, hyper, model.init(key_model), data, model, solve)
        # 2. The server clusters the w_i around robust centers.
        clustering = robust_kmeans(
            key_cluster, solved.params, n_clusters, center, hyper.trim, n_init=n_init, where=solved.ok
        )
        return Clusters(clustering.centers, jnp.maximum(clustering.label, 0))

    sends = with_first_upload(lambda center, cohort: tree.size(center))
    # 3. Federated learning inside each cluster, with robust averages.
    return clustered(model, work, Rule(begin), combine=combine, weighting="uniform", sends=sends)
