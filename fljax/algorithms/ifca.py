"""IFCA: clients pick the cluster model with the least loss.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
https://arxiv.org/abs/2006.04088. Official code: https://github.com/jichan3751/ifca.
The server broadcasts K models; each client joins the one whose loss on its training data is least and trains it; each
cluster averages its members.

Differences from the paper: initial models are redrawn, as in the official code, until every cluster holds a share
``min_share`` of the clients, at most `MAX_REDRAWS` times (then the most even draw is kept). A client is tested with the
cluster of least *training* loss; the official CIFAR script picks by test loss. ``n_shared`` is the paper's weight
sharing, the first layers averaged over everybody; the official FEMNIST script takes them from a finished run of FedAvg
instead and begins with clusters drawn at random.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.client import cross_loss, local_optimizer, predictor, train_clients, training_loss
from fljax.client.gradient import client_gradients
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.assign import lowest_loss
from fljax.server.layers import select_layers, shared_size
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Trained,
    Work,
)

MAX_REDRAWS = 200


class IFCAHyper(NamedTuple):
    """Numbers of IFCA.

    lr: learning rate, > 0: of the clients' SGD, or of the server's step in gradient averaging.
    min_share: least share of the clients that each initial model must win, in [0, 1/K]; 0 takes the first draw. The
        official code has 0.35 for K = 2 and 0.1 for K = 4.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant. The paper has 0.99 on CIFAR-10.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    min_share: Array | float = 0.1
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def ifca(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    weighting: str = "uniform",
    averaging: str = "model",
    n_shared: int = 0,
) -> Algorithm:
    """IFCA with K = ``n_clusters`` models.

    Args:
        model: the network.
        work: local effort.
        n_clusters: K, the number of cluster models.
        weighting: "uniform" averages a cluster's members equally, "size" by their examples.
        averaging: "model": members send trained models; "gradient": one full gradient, and epochs must be 1.
        n_shared: layers, from the first, that all clusters have in common: the mean of all participants.

    Raises:
        ValueError: ``averaging`` or ``weighting`` is unknown, ``n_clusters`` < 1, epochs > 1 with gradients, or
            ``n_shared`` leaves no layer to the clusters.
    """
    check_weighting(weighting)
    if averaging not in ("model", "gradient"):
        raise ValueError(f"averaging={averaging!r} is unknown; choose 'model' or 'gradient'")
    if averaging == "gradient" and (work.epochs != 1 or work.optimizer != "sgd"):
        raise ValueError(f"averaging='gradient' takes one step a round; use epochs=1, optimizer='sgd', not {work}")
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")
    if not 0 <= n_shared < len(model.layers):
        raise ValueError(
            f"n_shared={n_shared} of {len(model.layers)} layers; choose 0 <= n_shared < {len(model.layers)}"
        )

    def init(key: Key, hyper: IFCAHyper, data: ClientData) -> State:
        drawn = balanced_draw(key, model, n_clusters, hyper.min_share, data)
        return State(server=with_base(tree.take(drawn, jnp.int32(0)), drawn), clients=())

    def with_base(base: Params, theta: Stacked) -> Stacked:
        if not n_shared:
            return theta
        return select_layers(model.layers, n_shared, tree.broadcast(base, n_clusters), theta)

    def round(key: Key, hyper: IFCAHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        label = lowest_loss(cross_loss(model, theta, cohort.data))  # a_i = argmin_j F_i(theta_j)
        sent = trained_members(hyper, ModelTable(theta, label), cohort)
        weight = client_weight(weighting, cohort, sent.ok)
        base = weighted_mean(sent.params, weight, empty=tree.take(theta, jnp.int32(0)))
        theta = with_base(base, cluster_mean(sent.params, weight, label, empty=theta))  # theta_j <- mean of its members
        one, n_members = tree.take(theta, jnp.int32(0)), jnp.bincount(label, length=n_clusters)
        n_parameters, n_base = tree.size(one), shared_size(model.layers, n_shared, one)
        metrics = {"loss": sent.loss, "ok": sent.ok, "label": label, "n_clusters": (n_members > 0).sum()}
        return State(theta, ()), metrics | traffic(n_parameters + 1, n_base + n_clusters * (n_parameters - n_base))

    def trained_members(hyper: IFCAHyper, start: ModelTable, cohort: Cohort) -> Trained:
        if averaging == "model":
            optimizer = local_optimizer(hyper, work, cohort.round)
            return train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        # theta_j - eta * sum_{i in j} g_i / m is the mean of theta_j - eta |S_j|/m g_i over its members.
        sent = client_gradients(cohort.key, start, cohort.data, training_loss(model), work.batch_size)
        member = jax.nn.one_hot(start.label, n_clusters) * (cohort.active & sent.ok)[:, None].astype("float32")
        share = (member.sum(axis=0) / jnp.maximum(member.sum(), 1.0))[start.label]
        lr = hyper.lr if hyper.lr_decay is None else hyper.lr * hyper.lr_decay ** cohort.round.astype("float32")
        stepped = jax.tree.map(
            lambda w, g: w - lr * tree.along(share, g) * g, tree.take(start.params, start.label), sent.params
        )
        return sent._replace(params=stepped)

    def deploy(key: Key, hyper: IFCAHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server, lowest_loss(cross_loss(model, state.server, data)))

    return Algorithm(init, round, deploy, predictor(model))


def balanced_draw(key: Key, model: Model, n_clusters: int, min_share: Array | float, data: ClientData) -> Stacked:
    """K random models, redrawn until each has the least loss on a share ``min_share`` of the clients.

    A draw costs one pass of each model over all training data. Judging it on fewer examples is no saving: the losses of
    untrained models differ so little that clients of one group then split over several models.
    """

    def draw(key: Key) -> tuple[Stacked, Array]:
        centers = jax.vmap(model.init)(jax.random.split(key, n_clusters))
        n_won = jnp.bincount(lowest_loss(cross_loss(model, centers, data)), length=n_clusters)
        return centers, n_won.min() / data.size.shape[0]

    def too_uneven(carry: tuple) -> Array:
        n_drawn, _, share = carry
        return (share < min_share) & (n_drawn < MAX_REDRAWS)

    def redraw(carry: tuple) -> tuple:
        n_drawn, centers, share = carry
        new_centers, new_share = draw(jax.random.fold_in(key, n_drawn))
        better = new_share > share
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), new_centers, centers)
        return n_drawn + 1, kept, jnp.maximum(new_share, share)

    return lax.while_loop(too_uneven, redraw, (jnp.int32(1), *draw(jax.random.fold_in(key, 0))))[1]
