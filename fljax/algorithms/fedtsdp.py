"""FedTSDP: clients clustered by outputs, then by weights, whenever they tend to cluster; fewer layers shared each time.

Zhu, Fan, Xie: Federated two-stage decoupling with adaptive personalization layers, Complex & Intelligent Systems 2024,
https://arxiv.org/abs/2308.15821.
A Hopkins statistic of the clients' outputs on public data says whether they cluster. If so, DBSCAN groups them by the
Jensen-Shannon divergence of their outputs, DBSCAN again by the distance of their weights, and the prefix of the
network that clusters share shrinks by the factor psi; the layers above it are personal.

Differences from the paper: the statistic is the mean of ``n_draws`` draws, since one draw hardly tells data sets apart
(``n_draws=1`` is literal). The sampling weights of public images stay unnormalised, or else the first batch that fires
is drawn for ever (``sampling="literal"``), and grow only when the test fires. Clients upload all parameters, which
the server's forward passes need. The shared depth is one number for all clusters. Weights are compared without the
constant 1e-6 of PyTorch's distance. Noise clients become clusters of one. Absent clients join the new cluster of most
of their former co-members; one that never took part starts from the cluster model of least training loss, whole, and
trains the layers that are not shared. As in all methods here there is neither momentum nor decay by default. Where the
test never fires this is FedAvg but for the last bit, for a mean among cluster slots is summed in another order.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import client_weight, traffic
from fljax.algorithms.public_batch import SAMPLINGS, draw_batch, known_images, likelier
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.client.map import whole
from fljax.client.outputs import client_outputs
from fljax.rounds.joining import held_with_least_loss, rounds_alone
from fljax.server.aggregate import cluster_mean
from fljax.server.dbscan import dbscan
from fljax.server.distance import js_divergence, pairwise_l2
from fljax.server.hopkins import hopkins
from fljax.server.inherit import inherit
from fljax.server.labels import canonical, noise_to_singletons
from fljax.server.layers import BOUNDARIES, Boundary, select_layers, shared_size
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Trained, Work

STAGES = ("both", "outputs", "weights")


class FedTSDPHyper(NamedTuple):
    """Numbers of FedTSDP.

    lr: clients' learning rate, > 0; 0.05 in the paper.
    lr_decay: factor on it per round, in (0, 1]; None: constant. 0.95 in the paper.
    momentum: of the clients' SGD, in [0, 1); None: none. 0.5 in the paper.
    threshold: the Hopkins statistic above which clients are clustered anew; 1: never.
    eps_outputs: DBSCAN's radius of stage 1, in nats of Jensen-Shannon divergence (at most ln 2).
    eps_weights: DBSCAN's radius of stage 2, L2 over all parameters; it scales with the network and the learning rate.
    min_samples: neighbours that make a client a core client, itself included.
    psi: factor on the shared depth whenever the test fires, in [0, 1].
    """

    lr: Array | float = 0.05
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None
    threshold: Array | float = 0.65
    eps_outputs: Array | float = 0.15
    eps_weights: Array | float = 3.5
    min_samples: Array | float = 2
    psi: Array | float = 0.98


class FedTSDPServer(NamedTuple):
    """The server's clusters, as many slots as clients, and what it remembers of its public images."""

    centers: Stacked  # (clusters, ...) Theta
    label: Array  # (clients,) a
    depth: Array  # () s_L, number of layers shared, fractional
    q: Array  # (n_public,) sampling weights of the public images


@cache
def fedtsdp(
    model: Model,
    work: Work,
    *,
    stages: str = "both",
    public_batch: int = 50,
    n_public: int = 10_000,
    n_draws: int = 20,
    n_probes: int | None = None,
    sampling: str = "raw",
    boundary: Boundary = "tensors",
) -> Algorithm:
    """FedTSDP. The federation must have public data.

    Args:
        model: the network.
        work: local effort.
        stages: "both", or one alone: "outputs" (stage 1) or "weights" (stage 2 on everyone).
        public_batch: public images that clients are compared on in a round.
        n_public: the first so many public images are used, or all where there are fewer.
        n_draws: draws that the Hopkins statistic is the mean of; 1 in the paper.
        n_probes: probes of a draw; None: a quarter of the participants, at least 2.
        sampling: of public images: "raw" (weights from 1, plus N / batch for each batch that fires), "literal" (the
            paper's: weights normalised before they grow) or "uniform" (never changed).
        boundary: which part of the layer where a fractional depth ends is shared; see `fljax.server.layers`.

    Raises:
        ValueError: an option is unknown or out of its range.
    """
    _check(stages, sampling, boundary, public_batch=public_batch, n_public=n_public, n_draws=n_draws, n_probes=n_probes)

    def init(key: Key, hyper: FedTSDPHyper, data: ClientData) -> State:
        n_clients = data.size.shape[0]
        clients = tree.broadcast(model.init(key), n_clients)
        label, depth = jnp.zeros(n_clients, jnp.int32), jnp.float32(len(model.layers))
        return State(FedTSDPServer(clients, label, depth, jnp.ones(n_public)), clients)

    def round(key: Key, hyper: FedTSDPHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        centers, label, depth, q = state.server
        key_batch, key_hopkins = jax.random.split(key)
        trained = trained_locally(hyper, state, cohort)
        counts = cohort.active & trained.ok
        # I_i = the outputs on one public batch b; H = Hopkins(I).
        public = known_images(cohort.public, n_public, public_batch)
        rows = draw_batch(key_batch, q, public.y.shape[0], public_batch)
        outputs = whole(client_outputs(model, trained.params, public, rows))
        by_id = jnp.argsort(cohort.ids)  # the same clients are probed however the cohort is dealt to devices
        statistic, spread = tendency(key_hopkins, outputs[by_id], whole(counts)[by_id], n_probes, n_draws)
        fired = (statistic > hyper.threshold) & (counts.sum() >= 2)
        # Two stages of DBSCAN; a new partition, a likelier batch.
        found = two_stages(hyper, outputs, trained.params, counts)
        new = jnp.where(fired, everyones_cluster(label, found, cohort.ids), label)
        q = jnp.where(fired, likelier(q, rows, public.y.shape[0], sampling), q)
        # Theta_k = sum_{a_i = k} n_i / n_k w_i; then the shared depth is damped.
        weight = client_weight("size", cohort, trained.ok)
        centers = cluster_mean(trained.params, weight, new[cohort.ids], empty=inherit(centers, label, new))
        one = tree.take(centers, jnp.int32(0))
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": new[cohort.ids], "n_clusters": new.max() + 1}
        metrics |= {"hopkins": statistic, "hopkins_spread": spread, "fired": fired, "shared_layers": depth}
        metrics |= traffic(tree.size(one), shared_size(model.layers, depth, one, boundary).astype(jnp.float32))
        depth = jnp.where(fired, depth * hyper.psi, depth)
        return State(FedTSDPServer(centers, new, depth, q), trained.params), metrics

    def trained_locally(hyper: FedTSDPHyper, state: State, cohort: Cohort) -> Trained:
        # w_i = LocalTrain(M . Theta_{a_i} + (1 - M) . W_i).
        centers, label, depth, _ = state.server
        start = compose(centers, label[cohort.ids], depth, state.clients)
        optimizer = local_optimizer(hyper, work, cohort.round)
        return train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)

    def compose(centers: Stacked, label: Array, depth: Array, own: Stacked) -> Stacked:
        return select_layers(model.layers, depth, tree.take(centers, label), own, boundary)

    def two_stages(hyper: FedTSDPHyper, outputs: Array, models: Stacked, counts: Array) -> Array:
        group, min_samples = jnp.where(counts, 0, -1), jnp.ceil(hyper.min_samples).astype(jnp.int32)
        if stages != "weights":
            near = dbscan(js_divergence(outputs, counts), hyper.eps_outputs, min_samples, counts)
            group = noise_to_singletons(near, counts)
        if stages != "outputs":
            near = dbscan(pairwise_l2(models, counts), hyper.eps_weights, min_samples, counts, group)
            group = noise_to_singletons(near, counts)
        return group

    def deploy(key: Key, hyper: FedTSDPHyper, state: State, data: ClientData) -> ModelTable:
        server = state.server
        return tree.own(compose(server.centers, server.label, server.depth, state.clients))

    def join(key: Key, hyper: FedTSDPHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        server = state.server
        joined = held_with_least_loss(model, ModelTable(server.centers, server.label), data)

        def alone(key: Key, hyper: FedTSDPHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
            return State(state.server, trained_locally(hyper, state, cohort).params), {}

        begun = State(server._replace(label=joined.label), tree.take(*joined))
        return deploy(key, hyper, rounds_alone(alone, key, hyper, begun, data, n_rounds), data)

    return Algorithm(init, round, deploy, predictor(model), join)


def tendency(key: Key, outputs: Array, counts: Array, n_probes: int | None, n_draws: int) -> tuple[Array, Array]:
    """Mean and standard deviation over draws of the Hopkins statistic of the outputs (clients, batch, classes)."""
    n_clients = outputs.shape[0]
    flat, n_probes = outputs.reshape(n_clients, -1), n_probes or max(2, n_clients // 4)
    draws = lax.map(lambda k: hopkins(k, flat, n_probes, 1, counts), jax.random.split(key, n_draws))
    return draws.mean(), draws.std()


def everyones_cluster(old: Array, found: Array, ids: Array) -> Array:
    """The partition of all clients (clients,) from that of the participants.

    Args:
        old: (clients,) clusters so far.
        found: (cohort,) new clusters of the participants; -1 for one that does not count.
        ids: (cohort,) who they are.

    Returns:
        (clients,) canonical. An absent client joins the new cluster that holds most of its former co-members, the
        lowest of those with equally many; those of an old cluster without participants stay together.
    """
    n_clients = old.shape[0]
    # Numbered by client and not by place in the cohort, so that ties do not depend on the cohort's order.
    found = canonical(jnp.full(n_clients, -1, jnp.int32).at[ids].set(found))
    joined = jnp.where(found >= 0, found, n_clients)
    moved = jnp.zeros((n_clients, n_clients), jnp.int32).at[old, joined].add(1, mode="drop")
    follow = jnp.where(moved.max(axis=1) > 0, jnp.argmax(moved, axis=1), n_clients + jnp.arange(n_clients))[old]
    return canonical(jnp.where(found >= 0, found, follow))


def _check(stages: str, sampling: str, boundary: str, **counts: int | None) -> None:
    choices = (("stages", stages, STAGES), ("sampling", sampling, SAMPLINGS), ("boundary", boundary, BOUNDARIES))
    for name, value, known in choices:
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {known}")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count} is not positive; choose {name} >= 1")
