"""CGPFL: k-means on personal models finds K contexts; each personal model is held near the model of its context.

Tang, Guo, Guo: Personalized Federated Learning with Contextualized Generalization, IJCAI 2022,
https://arxiv.org/abs/2106.13044.
As pFedMe, with a global model for each cluster of clients: a client fits its personal model near its copy of its
context's model, and moves the copy towards it; the server clusters the personal models, and a context moves to the mean
of its clients' copies. With one context it is pFedMe. FeSEM clusters the models that it averages, and tests these
means; in HypCluster clients choose by loss.

This follows the paper's problem; it has not been compared with its pseudo-code. Chosen here: the personal models of
absent clients are those that they sent last; a client that has sent none is in the largest cluster; a new cluster
continues from the context of its first client; all contexts start equal. The number of contexts is given, not searched
for (CGPFL-Heur). Otherwise as `pfedme`. A new client's context is that of least training loss, and stays fixed.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.pfedme import PFedMeHyper, near_global
from fljax.choices import Positive
from fljax.rounds import (
    Clusters,
    Combining,
    Rule,
    Sent,
    Weighting,
    clustered,
    interpolated,
    mean,
    method,
    on_layers,
    regrouped,
    traffic,
)
from fljax.rounds.clustered import After
from fljax.rounds.joining import held_with_least_loss, train_new_clients
from fljax.rounds.one_shot import unseen_to_largest
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.server.kmeans import kmeans
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
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


class Personal(NamedTuple):
    """The personal models that the server has received."""

    models: Stacked  # (clients, ...) the last one of each client
    is_known: Array  # (clients,) bool: clients that have sent one


@method(PFedMeHyper, "Tang et al., IJCAI 2022", "https://arxiv.org/abs/2106.13044", kind="personalised", trains=False)
def cgpfl(
    model: Model,
    work: Work,
    n_clusters: Positive = 3,
    *,
    personal_steps: Positive = 5,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """CGPFL: ``theta_i ~ argmin f_b(theta) + lambda/2 |theta - w_i|^2``, ``w_i <- w_i - eta lambda (w_i - theta_i)``.

    ``w_i`` starts at ``Omega_{a_i}``; then ``a <- kmeans(theta)``, ``Omega_k <- Omega_k + beta (mean of w_i over a_i =
    k - Omega_k)``.

    Args:
        n_clusters: K, the number of contexts.
        personal_steps: steps of the personal model per batch.
    """
    local = near_global(model, work, personal_steps)

    def begin(key: Key, hyper: PFedMeHyper, data: ClientData) -> Clusters:
        theta, n_clients = model.init(key), data.n_clients
        contexts = tree.broadcast({"global": theta, "own": theta}, n_clusters)
        known = Personal(tree.broadcast(theta, n_clients), jnp.zeros(n_clients, bool))
        return Clusters(contexts, jnp.zeros(n_clients, jnp.int32), known)

    def after(key: Key, hyper: PFedMeHyper, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        has_sent = sent.weight > 0
        models = tree.put(clusters.kept.models, cohort.ids, sent.params["own"], has_sent)
        is_known = tree.put(clusters.kept.is_known, cohort.ids, has_sent, has_sent)
        counts = is_known & tree.all_finite(models)
        label = unseen_to_largest(kmeans(key, models, n_clusters, where=counts).label, counts)
        clusters = regrouped(clusters, label)._replace(kept=Personal(models, is_known))
        return clusters, sent._replace(label=label[cohort.ids]), {}

    def sends(center: Any, cohort: Cohort) -> Metrics:
        n_parameters = tree.size(center["global"])
        return traffic(2 * n_parameters, n_parameters)

    contexts_only = on_layers(interpolated(combine), ("global",))
    rounds = clustered(model, local, Rule(begin, after=after), combine=contexts_only, weighting=weighting, sends=sends)
    halves = halves_of(rounds)

    def init(key: Key, hyper: PFedMeHyper, data: ClientData) -> State:
        server = rounds.init(key, hyper, data).server
        return State(server, server.kept.models)

    def send(key: Key, hyper: PFedMeHyper, state: State, cohort: Cohort) -> Upload:
        upload = halves.send(key, hyper, state, cohort)
        # What the client keeps, whatever bricks make of what it sends.
        ok = upload.rest[2]
        return upload._replace(rest=(upload.rest, tree.where(ok, upload.params["own"], state.clients)))

    def receive(key: Key, hyper: PFedMeHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        rest, own = upload.rest
        new_state, metrics = halves.receive(key, hyper, state, cohort, upload._replace(rest=rest))
        return State(new_state.server, own), metrics

    def deploy(key: Key, hyper: PFedMeHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients)

    def join(key: Key, hyper: PFedMeHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        clusters = state.server
        held = held_with_least_loss(model, ModelTable(clusters.centers["global"], clusters.label), data)
        start = ModelTable(clusters.centers, held.row)

        def alone(models: Stacked, cohort: Cohort) -> Trained:
            trained = local(hyper, start, cohort)
            return trained._replace(params=trained.params["own"])

        return tree.own(train_new_clients(key, tree.stacked(held), data, n_rounds, alone))

    algorithm = rounds._replace(init=init, deploy=deploy, join=join)
    return with_halves(algorithm, send=send, receive=receive)
