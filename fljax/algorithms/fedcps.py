"""FedCPS: personalised models near one of k cluster models whose base layers everyone shares.

Yang et al.: FedCPS, personalised federated learning with clustering, proximal updates and weight sharing, Computers,
Materials & Continua 2025.
Each client joins the cluster model with the least loss on fresh samples of its own data and trains from it, held near
it with a strength lambda_i of its own; clusters average what their members send, everyone's base layers are averaged.

Differences from the paper, which contradicts itself in several places: the update sent is w - theta, so that averaging
moves towards the clients; less data means a larger lambda; only base layers are averaged across clusters. Estimators
for lambda = sigma^2 / (n^2 tau^2) are not given there. Here sigma^2 is the variance of the client's batch gradients at
theta, n is relative to the federation's mean size, and tau^2 is a running mean per cluster of how far members drift in
one epoch without the pull. It starts at the first measurement (until then nobody is pulled) and is kept above a tenth
of it. The ratio is a few times 1/lr for everyone on real images, hence the factor ``strength``. lambda is clipped to
[0, 1/lr]: beyond that a step overshoots. With personal layers the cluster's part ("middle")
needs a size of its own, or all cluster models would be equal and the choice between them a tie.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import client_weight, traffic
from fljax.algorithms.ifca import balanced_draw
from fljax.algorithms.layerwise import SHARING, layer_roles, n_floats, replace
from fljax.algorithms.pull import Spread, adaptive_pull, clip_pull, no_spread, pulled, update_spread
from fljax.client import client_loss, predictor, train_clients, training_loss
from fljax.client.optimizer import clipped_optimizer
from fljax.client.sample import fresh_examples
from fljax.client.spread import gradient_variance
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.assign import lowest_loss
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

CHOICES = {
    "sharing": SHARING,
    "lambda_mode": ("fixed", "n_only", "adaptive"),
    "deployed": ("own", "fresh", "cluster"),
}


class FedCPSHyper(NamedTuple):
    """Numbers of FedCPS.

    lr: clients' learning rate, > 0.
    strength: lambda_i is ``strength`` ("fixed"), ``strength (mean n / n_i)^2`` ("n_only") or, "adaptive",
        ``strength (mean n / n_i)^2 sigma_i^2 / tau^2``, >= 0.
    memory: of the running mean of tau^2, in [0, 1).
    n_stable: rounds without a change of identity after which clients get only their own cluster's model; inf: never.
    n_reopen: then every so many rounds all models are sent again and identities checked, >= 1.
    min_share: least share of the clients that each initial model must win, in [0, 1/k]; 0 takes the first draw.
    max_norm: gradients, the pull's included, are clipped to this norm, > 0; None: not clipped. The code the paper
        builds on has 10.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    strength: Array | float = 0.01
    memory: Array | float = 0.9
    n_stable: Array | float = 5.0
    n_reopen: Array | float = 20.0
    min_share: Array | float = 0.1
    max_norm: Array | float | None = 10.0
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class FedCPSServer(NamedTuple):
    """What the server keeps."""

    theta: Stacked  # (clusters, ...), base layers equal in every row
    spread: Spread  # tau^2 of every cluster
    quiet: Array  # () int32 rounds in a row without a change of identity
    round: Array  # () int32 rounds done
    mean_size: Array  # () examples per client over the whole federation


class FedCPSClient(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) W
    label: Array  # (clients,) int32 identity; -1: not yet observed


class Personal(NamedTuple):
    """The clients' side of a round."""

    trained: Trained
    label: Array  # (clients,) int32
    pull: Array  # (clients,) lambda_i
    drift: Array  # (clients,) squared drift of one epoch without the pull, per parameter


@cache
def fedcps(
    model: Model,
    work: Work,
    n_clusters: int = 2,
    *,
    sharing: str = "shared_base",
    n_middle: int | None = None,
    n_personal: int | None = None,
    lambda_mode: str = "adaptive",
    identity_examples: int | None = 50,
    deployed: str = "fresh",
) -> Algorithm:
    """FedCPS with k = ``n_clusters`` cluster models.

    Args:
        model: the network.
        work: local effort.
        n_clusters: k; the paper's best is 2.
        sharing: "shared_base" averages the base over everyone and the top per cluster; "personal_layers" keeps each
            client's last layers to itself as well; "none" shares all layers per cluster, as IFCA.
        n_middle: layers of the cluster, at least 1. None: the paper's 2 for "shared_base", 1 for "personal_layers".
        n_personal: layers of the client, for "personal_layers" only. None: 1.
        lambda_mode: "fixed", "n_only" or "adaptive", see `FedCPSHyper.strength`.
        identity_examples: fresh examples on which a client compares the cluster models; None: all it has.
        deployed: clients are tested with a model trained for the test from the present cluster models, so that those
            who have not taken part lately are up to date ("fresh", the paper's final round; every test costs a round
            of everyone), with the one they last trained ("own"), or with their cluster's ("cluster").

    Raises:
        ValueError: an unknown option, or numbers of layers that do not fit the network.
    """
    _check(n_clusters, identity_examples, sharing=sharing, lambda_mode=lambda_mode, deployed=deployed)
    roles = layer_roles(model.layers, sharing, n_middle, n_personal)
    sent = roles.base + roles.middle
    loss = pulled(training_loss(model), sent)

    def init(key: Key, hyper: FedCPSHyper, data: ClientData) -> State:
        common = model.init(key)

        def beginning(key: Key) -> Params:
            return replace(model.init(key), roles.base + roles.personal, common)

        theta = balanced_draw(key, model._replace(init=beginning), n_clusters, hyper.min_share, data)
        n_clients = data.size.shape[0]
        mean_size = data.size.astype(jnp.float32).mean()
        server = FedCPSServer(theta, no_spread(n_clusters), jnp.int32(0), jnp.int32(0), mean_size)
        own = tree.broadcast(tree.take(theta, jnp.int32(0)), n_clients)
        return State(server, FedCPSClient(own, jnp.full(n_clients, -1, jnp.int32)))

    def round(key: Key, hyper: FedCPSHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        server, clients = state
        is_open = _is_open(hyper, server.quiet) | (clients.label < 0)
        done = personalise(cohort.key, hyper, server, clients, cohort.data, is_open)
        weight = client_weight("uniform", cohort, done.trained.ok)
        # theta_j <- theta_j + mean of Delta_i = w_i - theta_j over its members: the mean of their w_i.
        theta = cluster_mean(done.trained.params, weight, done.label, empty=server.theta)
        theta = replace(theta, roles.personal, server.theta)
        # Weight sharing: theta_j[base] <- mean of w_i[base] over all participants.
        shared = weighted_mean(done.trained.params, weight, empty=tree.take(server.theta, jnp.int32(0)))
        theta = replace(theta, roles.base, tree.broadcast(shared, n_clusters))
        changed = (weight > 0) & (clients.label >= 0) & (done.label != clients.label)
        quiet = jnp.where(changed.any(), 0, server.quiet + 1)
        spread = server.spread
        if lambda_mode == "adaptive":
            spread = update_spread(spread, done.drift, weight, done.label, hyper.memory)
        server = FedCPSServer(theta, spread, quiet, cohort.round + 1, server.mean_size)
        metrics = {"loss": done.trained.loss, "ok": done.trained.ok, "label": done.label, "lambda": done.pull}
        metrics |= {"n_clusters": (jnp.bincount(done.label, length=n_clusters) > 0).sum(), "n_changed": changed.sum()}
        return State(server, FedCPSClient(done.trained.params, done.label)), metrics | sends(theta, is_open)

    def personalise(
        key: Array, hyper: FedCPSHyper, server: FedCPSServer, clients: FedCPSClient, data: ClientData, is_open: Array
    ) -> Personal:
        # Identity: a_i = argmin_j F_i(theta_j) on fresh samples, among the models that the client was sent.
        key_fresh, key_adapt = jax.vmap(partial(jax.random.split, num=2), out_axes=1)(jax.vmap(_beside)(key))
        some = data if identity_examples is None else fresh_examples(key_fresh, data, identity_examples)
        label = jnp.where(is_open, lowest_loss(losses(server.theta, clients.model, some)), clients.label)
        theta = ModelTable(server.theta, label)
        start = with_personal(theta, clients.model)
        drift = pull = jnp.zeros(label.shape[0])
        if lambda_mode == "adaptive":
            drift, ratio = adapt(key_adapt, hyper, server, start, label, data)
            pull = hyper.strength * ratio
        elif lambda_mode == "fixed":
            pull = pull + hyper.strength
        else:
            pull = hyper.strength / relative_size(server, data) ** 2
        pull = clip_pull(pull, hyper, server.round)
        # PLU: w <- w - eta (grad F_i(w) + lambda_i (w - theta)).
        optimizer = clipped_optimizer(hyper, work, server.round)
        return Personal(train_clients(key, start, data, loss, optimizer, work, theta, pull), label, pull, drift)

    def with_personal(theta: ModelTable, own: Stacked) -> Stacked | ModelTable:
        """The cluster models that clients hold, with each client's own personal layers."""
        return replace(tree.take(*theta), roles.personal, own) if roles.personal else theta

    def losses(theta: Stacked, own: Stacked, data: ClientData) -> Array:
        """F_i of every cluster model, completed by the client's own personal layers: (clients, clusters)."""
        n_clients = data.size.shape[0]

        def of_cluster(j: Array) -> Array:
            return client_loss(model, with_personal(tree.everyone(tree.take(theta, j), n_clients), own), data)

        return lax.map(of_cluster, jnp.arange(n_clusters)).T

    def adapt(
        key: Array, hyper: FedCPSHyper, server: FedCPSServer, start: Stacked | ModelTable, label: Array, data: ClientData
    ) -> tuple[Array, Array]:
        """Drift in one epoch without the pull, and sigma_i^2 / (n_i^2 tau^2)."""
        plain, one_epoch = training_loss(model), work._replace(epochs=1)
        free = train_clients(key, start, data, plain, clipped_optimizer(hyper, work, server.round), one_epoch)
        moved = tree.subtract(tree.select(free.params, sent), tree.select(tree.take(server.theta, label), sent))
        drift = jax.vmap(tree.squared_norm)(moved) / n_floats(tree.take(server.theta, jnp.int32(0)), sent)
        sigma2 = gradient_variance(key, start, data, plain, work.batch_size)
        ratio = adaptive_pull(sigma2, server.spread.tau2[label], relative_size(server, data))
        return jnp.where(free.ok, drift, jnp.nan), ratio

    def sends(theta: Stacked, is_open: Array) -> Metrics:
        """Base once and the middle of every cluster, or only of the client's own; an id, and the scalars of lambda."""
        one = tree.take(theta, jnp.int32(0))
        base, middle, scalar = n_floats(one, roles.base), n_floats(one, roles.middle), int(lambda_mode == "adaptive")
        n_sent = jnp.where(is_open, n_clusters, 1)
        return traffic(base + middle + 1 + scalar, (base + n_sent * (middle + scalar)).astype(jnp.float32))

    def deploy(key: Key, hyper: FedCPSHyper, state: State, data: ClientData) -> ModelTable:
        server, clients = state
        if deployed == "own":
            return tree.own(clients.model)
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(data.size.shape[0]))
        if deployed == "fresh":
            everyone = jnp.ones(data.size.shape[0], bool)
            return tree.own(personalise(keys, hyper, server, clients, data, everyone).trained.params)
        label = lowest_loss(losses(server.theta, clients.model, data))
        held = with_personal(ModelTable(server.theta, label), clients.model)
        return held if isinstance(held, ModelTable) else tree.own(held)

    return Algorithm(init, round, deploy, predictor(model))


def relative_size(server: FedCPSServer, data: ClientData) -> Array:
    """n_i / mean n, (clients,)."""
    return jnp.maximum(data.size, 1).astype(jnp.float32) / server.mean_size


def _beside(key: Key) -> Key:
    """A key for what a client draws beside its training, which has ``key`` itself."""
    return jax.random.fold_in(key, 1)


def _is_open(hyper: FedCPSHyper, quiet: Array) -> Array:
    """Whether all cluster models are sent: until identities have been stable, then every n_reopen-th round."""
    since = quiet.astype(jnp.float32) - hyper.n_stable
    return (since < 0) | (jnp.mod(since + 1, hyper.n_reopen) == 0)


def _check(n_clusters: int, identity_examples: int | None, **names: str) -> None:
    if n_clusters < 1:
        raise ValueError(f"n_clusters={n_clusters} is not positive; choose n_clusters >= 1")
    if identity_examples is not None and identity_examples < 1:
        raise ValueError(f"identity_examples={identity_examples} is not positive; choose 1 or more, or None for all")
    for name, given in names.items():
        if given not in CHOICES[name]:
            raise ValueError(f"{name}={given!r} is unknown; choose one of {', '.join(map(repr, CHOICES[name]))}")
