"""Robust clustered FL: one robust clustering of local solutions, then robust averages inside each cluster.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment, 2019,
https://arxiv.org/abs/1906.06629.
Each client solves its own problem; the server clusters the solutions by Lloyd's algorithm with trimmed means or medians
for centers; from its center each cluster then learns with the same kind of average, so that bad clients do no harm.

Differences from the paper: the local problem is ``solve_epochs`` epochs from a common start, solved by all clients
before the first round and counted as a second upload of that round's participants. The best of ``n_init`` clusterings
is kept; 1 is the paper's. Five per cent of fewer than 20 members would be nobody, so at least one is trimmed on each
side of three or more. A client that never took part joins the cluster of least training loss.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import traffic
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.client.finetune import client_keys
from fljax.rounds.joining import join_cluster
from fljax.server.robust_kmeans import Center, robust_cluster_mean, robust_kmeans
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work


class RobustCFLHyper(NamedTuple):
    """Numbers of robust clustered federated learning.

    lr: clients' learning rate, > 0.
    trim: share trimmed on each side of every coordinate, in [0, 0.5]; 0 is the mean. Not of medians.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    trim: Array | float = 0.05
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class RobustCFLServer(NamedTuple):
    """What the server keeps."""

    centers: Stacked  # (clusters, ...) Theta
    label: Array  # (clients,) a, for good


@cache
def robust_cfl(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    center: Center = "trimmed",
    solve_epochs: int = 20,
    n_init: int = 20,
) -> Algorithm:
    """Robust clustered FL with K = ``n_clusters`` clusters, fixed before the first round.

    Args:
        model: the network.
        work: local effort in a round.
        n_clusters: K, at least 1.
        center: "trimmed" or "median", in the clustering as in the rounds.
        solve_epochs: epochs in which a client solves its own problem.
        n_init: random starts of the clustering.
    """
    _check(center, n_clusters=n_clusters, solve_epochs=solve_epochs, n_init=n_init)

    def init(key: Key, hyper: RobustCFLHyper, data: ClientData) -> State:
        key_model, key_train, key_cluster = jax.random.split(key, 3)
        start = tree.everyone(model.init(key_model), data.size.shape[0])
        # 1. Every client solves its local problem and sends w_i.
        keys, optimizer = client_keys(key_train, data), local_optimizer(hyper, work, jnp.int32(0))
        solve = work._replace(epochs=solve_epochs)
        solved = train_clients(keys, start, data, training_loss(model), optimizer, solve)
        # 2. The server clusters the w_i around robust centers.
        found = robust_kmeans(
            key_cluster, solved.params, n_clusters, center, hyper.trim, n_init=n_init, where=solved.ok
        )
        return State(RobustCFLServer(found.centers, jnp.maximum(found.label, 0)), ())

    def round(key: Key, hyper: RobustCFLHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        # 3. Federated learning inside each cluster, with robust averages.
        centers, label = state.server
        own, optimizer = label[cohort.ids], local_optimizer(hyper, work, cohort.round)
        start = ModelTable(centers, own)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        counted = jnp.where(cohort.active & trained.ok, own, -1)
        centers = robust_cluster_mean(trained.params, counted, centers, center, hyper.trim)
        n_parameters = tree.size(tree.take(centers, jnp.int32(0)))
        uplink = n_parameters * (1 + (cohort.round == 0).astype(jnp.float32))
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": own, "n_clusters": label.max() + 1}
        return State(RobustCFLServer(centers, label), ()), metrics | traffic(uplink, n_parameters)

    def deploy(key: Key, hyper: RobustCFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.centers, state.server.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, deploy))


def _check(center: str, **counts: int) -> None:
    if center not in ("median", "trimmed"):
        raise ValueError(f"center={center!r} is unknown; choose 'median' or 'trimmed'")
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}={count} is not positive; choose {name} >= 1")
