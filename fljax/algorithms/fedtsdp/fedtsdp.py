"""FedTSDP: clients clustered by outputs, then by weights, when they tend to cluster; fewer layers shared each time.

Zhu, Fan, Xie: Federated two-stage decoupling with adaptive personalization layers, Complex & Intelligent Systems 2024,
https://arxiv.org/abs/2308.15821.
A Hopkins statistic of the clients' outputs on public data tests whether they cluster. If so, DBSCAN groups clients by
the Jensen-Shannon divergence of their outputs, then DBSCAN again by the distance of their weights; and the prefix of
the network that clusters share shrinks by the factor psi. The layers above it are personal.

Differences from the paper: the statistic is the mean of ``n_draws`` draws, since a single draw hardly distinguishes
data sets (``n_draws=1`` is literal). The sampling weights of public images stay unnormalised, otherwise the first batch
that passes the test is drawn for ever (``sampling="literal"``); they grow only when the test passes. Clients upload all
parameters, which the server's forward passes need. The shared depth is one number for all clusters. Weights are
compared without the constant 1e-6 of PyTorch's distance. Noise clients become clusters of one. Absent clients join the
new cluster of most of their former co-members. A new client starts from the whole cluster model with the least training
loss, and trains the layers that are not shared. As in all methods here, there is neither momentum nor decay by default.
If the test never passes, this is FedAvg up to rounding, because the mean over cluster slots is summed in another order.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.fedtsdp.partition import Stages, everyones_cluster, tendency, two_stages
from fljax.algorithms.fedtsdp.public_batch import Growth, draw_batch, increased_weights, public_images
from fljax.choices import Positive
from fljax.client.objectives import predictor, training_loss
from fljax.client.outputs import client_outputs
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.placement import whole
from fljax.rounds import Combining, client_weight, mean, method, reported, train
from fljax.rounds.combine import as_combine, members_of, memory_of
from fljax.rounds.inference import check_classifies
from fljax.rounds.joining import held_with_least_loss, train_new_clients
from fljax.server.inherit import inherit
from fljax.server.layers import Boundary, select_layers, shared_size
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Examples,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Stacked,
    State,
    Trained,
    Upload,
    Work,
)


@hyper
class FedTSDPHyper(LocalHyper):
    """Hyperparameters of FedTSDP; the paper has lr 0.05, lr_decay 0.95, momentum 0.5."""

    threshold: Scalar = number(
        0.65, "Hopkins statistic above which clients are clustered again; 1: never", infinite=True
    )
    eps_outputs: Scalar = number(
        0.15,
        "DBSCAN's radius of stage 1, nats of Jensen-Shannon divergence, which is at most ln 2",
        least=0,
        infinite=True,
    )
    eps_weights: Scalar = number(
        3.5, "DBSCAN's radius of stage 2, L2 over all parameters; it scales with network and lr", least=0, infinite=True
    )
    min_samples: Scalar = number(2, "number of neighbours of a core client, including itself", least=1)
    psi: Scalar = number(0.98, "factor on the shared depth each time the test passes", least=0, most=1)


class FedTSDPServer(NamedTuple):
    """The server's clusters, as many slots as clients, and what it remembers of its public images."""

    centers: Stacked  # (clusters, ...) Theta
    label: Array  # (clients,) a
    depth: Array  # () s_L, number of layers shared, fractional
    q: Array  # (n_public,) sampling weights of the public images
    memory: Any  # (clusters, ...) the state of `combine`


@method(FedTSDPHyper, "Zhu, Fan, Xie, CAIS 2024", "https://arxiv.org/abs/2308.15821", kind="clustered")
def fedtsdp(
    model: Model,
    work: Work,
    *,
    stages: Stages = "both",
    public_batch: Positive = 50,
    n_public: Positive = 10_000,
    n_draws: Positive = 20,
    n_probes: Positive | None = None,
    sampling: Growth = "raw",
    boundary: Boundary = "tensors",
    combine: Combining = mean,
) -> Algorithm:
    """FedTSDP. The federation must have public data.

    Args:
        stages: "both", or only one: "outputs" (stage 1) or "weights" (stage 2 on all participants).
        public_batch: number of public images on which clients are compared in a round.
        n_public: the first n_public public images are used, or all if there are fewer.
        n_draws: number of draws averaged in the Hopkins statistic; 1 in the paper.
        n_probes: probes of a draw; None: a quarter of the participants, at least 2.
        sampling: weights of public images: "raw" (initially 1, plus N / batch for each batch that passes the test),
            "literal" (the paper's: normalised before they grow) or "uniform" (constant).
        boundary: which part of the layer where a fractional depth ends is shared; see `fljax.server.layers`.
    """
    check_classifies(model, "fedtsdp")
    combining = as_combine(combine)

    def init(key: Key, hyper: FedTSDPHyper, data: ClientData) -> State:
        n_clients = data.n_clients
        clients = tree.broadcast(model.init(key), n_clients)
        label, depth = jnp.zeros(n_clients, jnp.int32), jnp.float32(len(model.layers))
        memory = memory_of(combining, hyper, clients)
        return State(FedTSDPServer(clients, label, depth, jnp.ones(n_public, jnp.float32), memory), clients)

    def send(key: Key, hyper: FedTSDPHyper, state: State, cohort: Cohort) -> Upload:
        start, trained = trained_locally(hyper, state, cohort)
        return Upload(tree.own(start), trained.params, client_weight("size", cohort, trained.ok), trained)

    def trained_locally(hyper: FedTSDPHyper, state: State, cohort: Cohort) -> tuple[Stacked, Trained]:
        # w_i = LocalTrain(M . Theta_{a_i} + (1 - M) . W_i).
        server = state.server
        start = with_shared_layers(server.centers, server.label[cohort.ids], server.depth, state.clients)
        return start, train(hyper, start, cohort, training_loss(model), work)

    def with_shared_layers(centers: Stacked, label: Array, depth: Array, models: Stacked) -> Stacked:
        return select_layers(model.layers, depth, tree.take(centers, label), models, boundary)

    def receive(key: Key, hyper: FedTSDPHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (centers, label, depth, q, memory), trained = state.server, upload.rest
        models, weight, public = upload.params, upload.weight, public_images(cohort.public, n_public, public_batch)
        counts = cohort.active & trained.ok
        # I_i = the outputs on one public batch b; H = Hopkins(I).
        rows, outputs, tendency_metrics = compared(key, q, public, models, counts, cohort)
        is_fired = (tendency_metrics["hopkins"] > hyper.threshold) & (counts.sum() >= 2)
        # Two stages of DBSCAN; a new partition, and a larger sampling weight for the batch.
        partition = two_stages(hyper, outputs, models, counts, stages)
        new_label = jnp.where(is_fired, everyones_cluster(label, partition, cohort.ids), label)
        q = jnp.where(is_fired, increased_weights(q, rows, public.y.shape[0], sampling), q)
        # Theta_k = sum_{a_i = k} n_i / n_k w_i; then the shared depth is damped.
        old_centers, old_memory = inherit((centers, memory), label, new_label)
        centers, memory = members_of(combining, hyper, old_memory, old_centers, models, weight, new_label[cohort.ids])
        # Up: all parameters, which the server's forward passes need; down: the shared layers.
        one_model = tree.first(centers)
        metrics = reported(trained, tree.size(one_model), shared_size(model.layers, depth, one_model, boundary))
        metrics |= {"label": new_label[cohort.ids], "n_clusters": new_label.max() + 1}
        metrics |= {"fired": is_fired, "shared_layers": depth, **tendency_metrics}
        depth = jnp.where(is_fired, depth * hyper.psi, depth)
        return State(FedTSDPServer(centers, new_label, depth, q, memory), trained.params), metrics

    def compared(
        key: Key, q: Array, public: Examples, models: Stacked, counts: Array, cohort: Cohort
    ) -> tuple[Array, Array, Metrics]:
        """The row numbers of a batch of public images, the participants' outputs on it, and the Hopkins statistic."""
        key_batch, key_hopkins = jax.random.split(key)
        rows = draw_batch(key_batch, q, public.y.shape[0], public_batch)
        outputs = whole(client_outputs(model, models, public, rows))
        by_id = jnp.argsort(cohort.ids)  # the same clients are probed however devices share the cohort
        statistic, spread = tendency(key_hopkins, outputs[by_id], whole(counts)[by_id], n_probes, n_draws)
        return rows, outputs, {"hopkins": statistic, "hopkins_spread": spread}

    def deploy(key: Key, hyper: FedTSDPHyper, state: State, data: ClientData) -> ModelTable:
        server = state.server
        return tree.own(with_shared_layers(server.centers, server.label, server.depth, state.clients))

    def join(key: Key, hyper: FedTSDPHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        joined = held_with_least_loss(model, ModelTable(state.server.centers, state.server.label), data)
        server = state.server._replace(label=joined.row)

        def alone(models: Stacked, cohort: Cohort) -> Trained:
            return trained_locally(hyper, State(server, models), cohort)[1]

        models = train_new_clients(key, tree.stacked(joined), data, n_rounds, alone)
        return deploy(key, hyper, State(server, models), data)

    exchange = Exchange(send, receive, lambda server: tree.first(server.centers))
    return Algorithm(init, exchange.round, deploy, predictor(model), join, model.loss, exchange=exchange)
