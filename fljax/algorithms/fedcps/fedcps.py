"""FedCPS: personalised models near one of k cluster models, whose base layers all clients share.

Yang et al.: FedCPS: A Dual Optimization Model for Federated Learning Based on Clustering and Personalization Strategy,
Computers, Materials & Continua 2025, https://doi.org/10.32604/cmc.2025.060709.
Each client joins the cluster model with the least loss on fresh samples of its own data and trains from it, held near
it by a proximal term of weight lambda_i. Each cluster averages what its members send; the base layers are averaged over
all clients.

Differences from the paper, which contradicts itself in several places: the update sent is w - theta, so that averaging
moves towards the clients; less data means a larger lambda; only base layers are averaged across clusters. The paper
gives no estimators for lambda = sigma^2 / (n^2 tau^2). Here sigma^2 is the variance of the client's batch gradients at
theta, n is relative to the federation's mean size, and tau^2 is a running mean per cluster of how far members drift in
one epoch without the proximal term; lambda is 0 until the first measurement, and tau^2 stays above a tenth of it. On
real images the ratio is a few times 1/lr for all clients, hence the factor ``strength``; lambda is clipped at 1/lr,
beyond which a step overshoots. With personal layers, the cluster's part ("middle") needs its own size, otherwise all
cluster models would be equal. The base is the mean over all participants, as in the paper's text, or with
``shared_mean="models"`` over the k models, as in its Algorithm 2, lines 16-17. Two values of ``lambda_mode`` are not
from the paper. "per_client": a single tau^2 for a cluster cannot distinguish its clients. "relative": the noise of a
client's gradients over the recent noise of its cluster's members. In the paper's figure, lambda rises for clients with
few examples and falls for the others, as here with "relative"; with "adaptive" both rise
(``experiments/fedcps_lambda.py``), because the proximal term brings members closer to each other and lowers tau^2.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.algorithms.fedcps.broadcast import is_open, sends
from fljax.algorithms.fedcps.means import SharedMean, means
from fljax.algorithms.fedcps.proximal import (
    FLOORS,
    LambdaMode,
    Spread,
    no_spread,
    spread_of,
    strength,
    training,
    update_spread,
)
from fljax.algorithms.fedcps.roles import LayerSharing, layer_roles
from fljax.choices import Positive
from fljax.client.measure import client_loss
from fljax.client.objectives import predictor
from fljax.client.sample import fresh_examples
from fljax.keys import descend
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import Combining, Sent, check_not_private, client_weight, mean, method
from fljax.rounds.accounting import n_occupied
from fljax.rounds.cohort import everyone
from fljax.rounds.combine import as_combine, memory_of
from fljax.rounds.combine_parts import over_everybody
from fljax.rounds.first_models import DrawHyper, balanced_draw
from fljax.rounds.sharing import replace_layers, split
from fljax.server.assign import lowest_loss
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
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

BESIDE_TRAINING = 0x1DE7
"""Folded into a client's key for the examples of the comparison, and for the epoch without the proximal term."""


@hyper
class FedCPSHyper(DrawHyper):
    """Hyperparameters of FedCPS.

    lambda_i is ``strength`` ("fixed"), ``strength (mean n / n_i)^2`` ("n_only"),
    ``strength (mean n / n_i)^2 sigma_i^2 / tau^2`` ("adaptive"), the same with the client's own ``tau_i^2``
    ("per_client"), or with the cluster's mean of ``(mean n / n_i)^2 sigma_i^2`` as tau^2 ("relative"), so that
    ``strength`` is the mean lambda.
    """

    strength: Scalar = number(0.01, "factor of every client's lambda; 0: no proximal term", least=0)
    memory: Scalar = number(0.9, "memory of the running mean of tau^2", least=0, below=1)
    n_stable: Scalar = number(
        5.0,
        "rounds without a change of identity after which clients receive only their own cluster's model; inf: never",
        least=0,
        infinite=True,
    )
    n_reopen: Scalar = number(20.0, "after that, all models are sent once per this many rounds", least=1, infinite=True)
    max_norm: Scalar | None = number(
        10.0, "gradients, including the proximal term, are clipped to this norm; None: not clipped", above=0
    )


class FedCPSServer(NamedTuple):
    """What the server keeps."""

    theta: Stacked  # (clusters, ...), base layers equal in every row
    spread: Spread  # of every cluster's members
    quiet: Array  # () int32 rounds in a row without a change of identity
    round: Array  # () int32 rounds done
    mean_size: Array  # () examples per client over the whole federation
    memory: Any = ()  # the state of `combine`


class FedCPSClient(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) W
    label: Array  # (clients,) int32 identity; -1: not yet observed
    distance: Any = ()  # "per_client": (clients,) distance of W to its cluster's model, see `distance`; 0: unknown


class Personal(NamedTuple):
    """The clients' side of a round."""

    kept: FedCPSClient
    lam: Array  # (clients,) lambda_i
    drift: Array  # (clients,) `distance` after one epoch without the proximal term
    trained: Trained


@method(FedCPSHyper, "Yang et al., CMC 2025", "https://doi.org/10.32604/cmc.2025.060709", kind="personalised")
def fedcps(
    model: Model,
    work: Work,
    n_clusters: Positive = 2,
    *,
    sharing: LayerSharing = "shared_base",
    n_middle: int | None = None,
    n_personal: int | None = None,
    shared_mean: SharedMean = "participants",
    lambda_mode: LambdaMode = "adaptive",
    identity_examples: Positive | None = 50,
    deployed: Literal["own", "fresh", "cluster"] = "fresh",
    combine: Combining = mean,
) -> Algorithm:
    """FedCPS with k = ``n_clusters`` cluster models.

    Args:
        n_clusters: k; the paper's best is 2.
        sharing: "shared_base" averages the base over all clients and the top per cluster; "personal_layers" also keeps
            each client's last layers with the client; "none" shares all layers per cluster, as IFCA.
        n_middle: number of the cluster's layers, at least 1. None: 2 for "shared_base", as in the paper, 1 for
            "personal_layers".
        n_personal: number of the client's own layers, for "personal_layers" only. None: 1.
        shared_mean: the base is the mean over all "participants", or over the k cluster "models" with equal weights
            (Algorithm 2, lines 16-17).
        lambda_mode: "fixed", "n_only", "adaptive", "per_client" or "relative", see `FedCPSHyper`.
        identity_examples: fresh examples on which a client compares the cluster models; None: all its examples.
        deployed: the model that a client is tested with. "fresh": trained for the test from the present cluster models
            (the paper's final round), so that clients that have not participated lately are up to date; every test
            costs a round of all clients. "own": the model that it last trained. "cluster": its cluster's model.
        combine: how the server combines the members' top layers of each cluster, and all clients' base layers.

    Raises:
        ValueError: the numbers of layers do not fit the network, or gradients are private but lambda is not.
    """
    if lambda_mode not in ("fixed", "n_only"):
        check_not_private(work, f"with lambda_mode={lambda_mode!r} lambda depends on clients' gradients, without noise")
    with_distance = lambda_mode == "per_client"
    roles = layer_roles(model.layers, sharing, n_middle, n_personal)
    combining = over_everybody(combine, roles.base) if shared_mean == "participants" else as_combine(combine)
    held_near = partial(training, model, work, roles.base + roles.middle)

    def init(key: Key, hyper: FedCPSHyper, data: ClientData) -> State:
        common, n_clients = model.init(key), data.n_clients
        tops = model._replace(init=lambda key: replace_layers(model.init(key), roles.base + roles.personal, common))
        theta = balanced_draw(key, tops, n_clusters, hyper.min_share, data)
        spread, mean_size = no_spread(n_clusters, with_distance), data.size.astype(jnp.float32).mean()
        memory = memory_of(combining, hyper, travelling(theta))
        server = FedCPSServer(theta, spread, jnp.int32(0), jnp.int32(0), mean_size, memory)
        models, label = tree.broadcast(tree.first(theta), n_clients), jnp.full(n_clients, -1, jnp.int32)
        distance = jnp.zeros(n_clients, jnp.float32) if with_distance else ()
        return State(server, FedCPSClient(models, label, distance))

    def send(key: Key, hyper: FedCPSHyper, state: State, cohort: Cohort) -> Upload:
        server, clients = state
        chooses = is_open(hyper, server.quiet) | (clients.label < 0)
        personal = personalise(hyper, server, clients, cohort, chooses)
        weight = client_weight("uniform", cohort, personal.trained.ok)
        theta = ModelTable(travelling(server.theta), personal.kept.label)
        return Upload(theta, travelling(personal.trained.params), weight, (personal, chooses))

    def personalise(
        hyper: FedCPSHyper,
        server: FedCPSServer,
        clients: FedCPSClient,
        cohort: Cohort,
        chooses: Array,
        measured: bool = True,
    ) -> Personal:
        # Identity: a_i = argmin_j F_i(theta_j) on fresh samples, among the models that the client received.
        key_fresh, key_adapt = jax.vmap(lambda key: descend(key, BESIDE_TRAINING, np.arange(2)), out_axes=1)(cohort.key)
        data = cohort.data
        identity_data = data if identity_examples is None else fresh_examples(key_fresh, data, identity_examples)
        label = jnp.where(chooses, lowest_loss(losses(server.theta, clients.model, identity_data)), clients.label)
        theta = ModelTable(server.theta, label)
        start = with_personal(theta, clients.model)
        size = jnp.maximum(data.size, 1).astype(jnp.float32) / server.mean_size
        tau2, extra_cohort = spread_of(server.spread, label, clients.distance), cohort._replace(key=key_adapt)
        lam, noise = strength(model, work, lambda_mode, hyper, start, size, tau2, extra_cohort)
        # PLU: w <- w - eta (grad F_i(w) + lambda_i (w - theta)).
        with_drift = measured and lambda_mode in ("adaptive", "per_client")
        trained, own_distance, drift = held_near(hyper, start, theta, lam, cohort, key_adapt if with_drift else None)
        drift = drift if with_drift else noise
        own_distance = jnp.where(trained.ok, own_distance, clients.distance) if with_distance else clients.distance
        return Personal(FedCPSClient(trained.params, label, own_distance), lam, drift, trained)

    def losses(theta: Stacked, models: Stacked, data: ClientData) -> Array:
        """F_i of every cluster model, completed by the client's own personal layers: (clients, clusters)."""
        n_clients = data.n_clients

        def of_cluster(j: Array) -> Array:
            return client_loss(model, with_personal(tree.everyone(tree.take(theta, j), n_clients), models), data)

        return lax.map(of_cluster, jnp.arange(n_clusters)).T

    def with_personal(theta: ModelTable, models: Stacked) -> ModelTable:
        """The cluster models that clients hold, with each client's own personal layers."""
        return tree.own(replace_layers(tree.stacked(theta), roles.personal, models)) if roles.personal else theta

    def travelling(params: Stacked) -> Stacked:
        """The layers that are sent; the other layers stay with the client."""
        return split(params, roles.personal)[0]

    def receive(key: Key, hyper: FedCPSHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (server, clients), weight = state, upload.weight
        (new, lam, drift, trained), chooses = upload.rest
        # theta_j <- theta_j + mean of Delta_i = w_i - theta_j over its members: the mean of their w_i. Weight sharing:
        # theta_j[base] <- mean of w_i[base] over all participants.
        sent = Sent(upload.params, weight, new.label)
        theta, memory = means(combining, hyper, server.memory, server.theta, sent, roles, shared_mean)
        changed = (weight > 0) & (clients.label >= 0) & (new.label != clients.label)
        spread = server.spread
        if lambda_mode in FLOORS:
            floor = FLOORS[lambda_mode]
            spread = update_spread(spread, drift, weight, new.label, hyper.memory, new.distance, floor)
        quiet = jnp.where(changed.any(), 0, server.quiet + 1)
        metrics = {"loss": trained.loss, "ok": trained.ok, "label": new.label, "lambda": lam}
        metrics |= {"n_clusters": n_occupied(new.label, cohort, n_clusters), "n_changed": changed.sum(dtype=jnp.int32)}
        metrics |= sends(theta, roles, chooses, lambda_mode)
        return State(FedCPSServer(theta, spread, quiet, cohort.round + 1, server.mean_size, memory), new), metrics

    def deploy(key: Key, hyper: FedCPSHyper, state: State, data: ClientData) -> ModelTable:
        server, clients = state
        if deployed == "own":
            return tree.own(clients.model)
        if deployed == "fresh":
            all_choose = jnp.ones(data.n_clients, bool)
            cohort = everyone(key, server.round, data)
            personal = personalise(hyper, server, clients, cohort, all_choose, measured=False)
            return tree.own(personal.trained.params)
        label = lowest_loss(losses(server.theta, clients.model, data))
        return with_personal(ModelTable(server.theta, label), clients.model)

    exchange = Exchange(send, receive, lambda server: travelling(tree.first(server.theta)))
    return Algorithm(init, exchange.round, deploy, predictor(model), loss=model.loss, exchange=exchange)
