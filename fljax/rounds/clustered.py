"""The skeleton of methods with hard clusters: each client is in one, and each cluster has a model.

::

    a       <- before(hyper, clusters, cohort)      assignment before local training
    w_i     <- local(hyper, Theta_{a_i}, cohort)    local training
                                                    (here uplink bricks apply, see `fljax.rounds.uplink`)
    a       <- after(key, hyper, clusters, sent, cohort)   assignment with the models known
    Theta_k <- combine(members' w_i)                aggregation inside each cluster
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import check_kind
from fljax.client.objectives import predictor
from fljax.rounds.accounting import Weighting, client_weight, in_first_round, occupied, traffic
from fljax.rounds.averaging import Deploy
from fljax.rounds.combine import Combining, as_combine, mean, members_of, memory_of
from fljax.rounds.joining import join_cluster
from fljax.rounds.local import Local, local_of
from fljax.rounds.round_metrics import NOT_A_CLUSTER
from fljax.server.inherit import inherit
from fljax.shown import repr_with_shapes
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Upload,
    Work,
)


class Clusters(NamedTuple):
    """The server's clusters: their models, and each client's cluster."""

    centers: Stacked  # (clusters, ...) Theta
    label: Array  # (clients,) int32 a, of all clients of the federation; -1: in no cluster
    kept: Any = ()  # the state of a rule
    memory: Any = ()  # (clusters, ...) the state of `combine`

    __repr__ = repr_with_shapes


class Sent(NamedTuple):
    """The models that are combined into the clusters' new models: the participants', unless a rule changes them."""

    params: Stacked  # (rows, ...)
    weight: Array  # (rows,) omega_i; 0: does not count
    label: Array  # (rows,) int32 cluster of each row


After = tuple[Clusters, Sent, Metrics]
"""What a rule's ``after`` returns."""


def one_cluster(params: Params, n_clients: int, n_clusters: int | None = None, kept: Any = ()) -> Clusters:
    """All clients in the first of ``n_clusters`` clusters (None: as many as clients), all with the model ``params``."""
    return Clusters(tree.broadcast(params, n_clusters or n_clients), jnp.zeros(n_clients, jnp.int32), kept)


def regrouped(clusters: Clusters, label: Array) -> Clusters:
    """``clusters`` with the new assignment ``label`` (clients,).

    Each new cluster takes over the model and the state of `combine` from the old cluster of its member with the lowest
    id, among members that were in a cluster; if no member was, it keeps those of its row.
    """
    centers, memory = inherit((clusters.centers, clusters.memory), clusters.label, label)
    return clusters._replace(centers=centers, memory=memory, label=label)


def check_labels(state: Any) -> None:
    """Checks the concrete labels of a run's initial state.

    Raises:
        ValueError: a rule has assigned a client to a cluster that does not exist.
    """
    for part in jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, Clusters)):
        if isinstance(part, Clusters) and getattr(part.label, "is_fully_addressable", True):
            label, n_clusters = np.asarray(part.label), tree.n_rows(part.centers)
            if label.min() < -1 or label.max() >= n_clusters:
                raise ValueError(
                    f"a rule begins with labels {label.min()} to {label.max()} and {n_clusters} models; give 0 to "
                    f"{n_clusters - 1}, or -1 for a client in no cluster"
                )


def as_they_are(hyper: Any, clusters: Clusters, cohort: Cohort) -> Clusters:
    """A rule's ``before`` that changes nothing."""
    return clusters


def as_sent(key: Key, hyper: Any, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
    """A rule's ``after`` that changes nothing."""
    return clusters, sent, {}


def a_model_each_way(center: Params, cohort: Cohort) -> Metrics:
    """The traffic of a participant that receives its cluster's model and sends its own."""
    return traffic(tree.size(center))


@checked_kinds
def with_first_upload(floats: Callable[[Params, Cohort], int]) -> Callable[[Params, Cohort], Metrics]:
    """`a_model_each_way`, plus ``floats(center, cohort)`` that a participant sends once, in the first round."""

    def sends(center: Params, cohort: Cohort) -> Metrics:
        return traffic(tree.size(center) + in_first_round(cohort, floats(center, cohort)), tree.size(center))

    return sends


class Rule(NamedTuple):
    """The assignment of clients to clusters, before and after local training.

    ``begin(key, hyper, data) -> Clusters`` before the first round;
    ``before(hyper, clusters, cohort) -> Clusters`` from the participants' data or the round number;
    ``after(key, hyper, clusters, sent, cohort) -> (Clusters, Sent, Metrics)`` from what the participants sent. Clusters
    without members keep the centers that it returns; its metrics are added to the round's, or replace them.
    """

    begin: Callable[[Key, Any, ClientData], Clusters]
    before: Callable[[Any, Clusters, Cohort], Clusters] = as_they_are
    after: Callable[[Key, Any, Clusters, Sent, Cohort], After] = as_sent


def as_clusters(name: str, value: Any, n_clients: int) -> Clusters:
    """The clusters that a rule's function ``name`` returned, with int32 labels.

    Raises:
        ValueError: it did not return `Clusters`, its labels are not one whole number per client of the federation, or
            its centers do not have one row per cluster.
    """
    check_kind(f"what a rule's {name} returned", value, Clusters, "give the centers and each client's label")
    if len({jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(value.centers)}) > 1:
        raise ValueError(
            f"a rule's {name} returned centers without a row for each cluster; return those of all clusters together, "
            "as jax.vmap(model.init)(jax.random.split(key, n_clusters))"
        )
    return value._replace(label=as_labels(f"a rule's {name}", value.label, n_clients))


def as_labels(what: str, value: Any, n_clients: int) -> Array:
    """(clients,) int32, the labels that a user's function returned.

    Raises:
        ValueError: they are not one whole number per client of the federation.
    """
    label = value if isinstance(value, Array) else np.asarray(value)
    if label.shape != (n_clients,) or not jnp.issubdtype(label.dtype, jnp.integer):
        raise ValueError(
            f"{what} returned labels of shape {label.shape} and dtype {label.dtype}; return whole numbers of shape "
            f"(clients,) = ({n_clients},)"
        )
    return jnp.asarray(label, jnp.int32)


@checked_kinds
def clustered(
    model: Model,
    local: Local | Work,
    rule: Rule,
    *,
    combine: Combining = mean,
    weighting: Weighting = "size",
    rows: Callable[[Any, Clusters, Cohort], tuple[Any, ...]] = lambda hyper, clusters, cohort: (),
    sends: Callable[[Params, Cohort], Metrics] = a_model_each_way,
    deploy: Deploy | None = None,
) -> Algorithm:
    """A method whose server keeps one model per cluster of clients.

    ``State.server`` is `Clusters`; nothing is kept per client.

    Args:
        model: the network.
        local: ``(hyper, start, cohort, *rows) -> Trained``, the clients' part of a round, see `fljax.rounds.local`; a
            `Work`: they train on ``model.loss``.
        rule: assigns clients to clusters.
        combine: ``(hyper, shared, received, weight) -> shared`` or a `Combine`: how the server combines the models of
            one cluster's members.
        weighting: of the members, "size" (omega_i = n_i) or "uniform" (omega_i = 1).
        rows: ``(hyper, clusters, cohort) -> tuple``, what the clients' loss needs besides the batch, one row per
            participant; passed on to ``local``.
        sends: ``(center, cohort) -> dict``, a participant's traffic per round, from one cluster model; see `traffic`.
        deploy: ``(key, hyper, state, data) -> ModelTable``, the models that clients are tested with; None: each client
            holds its cluster's model.

    Returns:
        The algorithm. A new client holds the cluster model with the least loss on its training data, among the models
        that have a client; if ``deploy`` is given, it is deployed to like the others. A client of label -1 counts for
        no cluster and, without ``deploy``, is not tested: its metrics are NaN. `least_loss_model` is a ``deploy``.
    """
    train, combining = local_of(local, model), as_combine(combine)

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        clusters = as_clusters("begin", rule.begin(key, hyper, data), data.n_clients)
        return State(clusters._replace(memory=memory_of(combining, hyper, clusters.centers)), ())

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        clusters = as_clusters("before", rule.before(hyper, state.server, cohort), state.server.label.shape[0])
        start = ModelTable(clusters.centers, clusters.label[cohort.ids])
        trained = train(hyper, start, cohort, *rows(hyper, clusters, cohort))
        weight = client_weight(weighting, cohort, trained.ok)
        return Upload(start, trained.params, weight, (clusters, trained.loss, trained.ok))

    def after(key: Key, hyper: Any, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        result = rule.after(key, hyper, clusters, sent, cohort)
        if not (isinstance(result, tuple) and [*map(type, result)] == [Clusters, Sent, dict]):
            kinds = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
            raise ValueError(f"a rule's after returned {kinds}; return Clusters, Sent and a dict of metrics")
        return (as_clusters("after", result[0], clusters.label.shape[0]), *result[1:])

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        clusters, loss, ok = upload.rest
        sent = Sent(upload.params, upload.weight, upload.start.row)
        clusters, sent, metrics = after(key, hyper, clusters, sent, cohort)
        centers, memory = members_of(combining, hyper, clusters.memory, clusters.centers, *sent)
        n_slots = tree.n_rows(centers)
        label = clusters.label[cohort.ids]
        label = jnp.where((label < -1) | (label >= n_slots), NOT_A_CLUSTER, label)
        n_occupied = occupied(clusters.label, n_slots).sum(dtype=jnp.int32)
        round_metrics = {"loss": loss, "ok": ok, "label": label, "n_clusters": n_occupied}
        round_metrics |= sends(tree.first(centers), cohort)
        return State(clusters._replace(centers=centers, memory=memory), ()), round_metrics | metrics

    def held(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.centers, state.server.label)

    join = join_cluster(model, held) if deploy is None else None
    sees = "sum" if combining.sums and rule.after is as_sent else "each"
    exchange = Exchange(send, receive, lambda clusters: tree.first(clusters.centers), sees)
    return Algorithm(init, exchange.round, deploy or held, predictor(model), join, model.loss, exchange=exchange)
