"""FLIS: clients whose models predict alike on the server's own examples are averaged, in clusters that may overlap.

Morafah, Vahidian, Wang, Lin: FLIS: Clustered Federated Learning via Inference Similarity for Non-IID Data Distribution,
2022, https://arxiv.org/abs/2208.09754. Official code: https://github.com/MMorafah/FLIS.
This is FLIS DC. In each round a participant trains the model with the least loss among those of the last round; the
server then compares what the received models predict for its own examples (`Federation.public`), and averages every
participant with all those who predict alike: as many new models as participants. FLIS HC, with one hierarchical
clustering, is `flhc` with ``distance="predictions"``.

Differences from the code: a participant chooses by loss on its training data; in the code, by accuracy on its test
data. All clients are tested with the model that they would choose; in the code, with the one that they trained last.
The server's examples are unlabelled; in the code, 2500 test images with equally many of each class.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.placement import whole
from fljax.rounds import Clusters, Rule, Sent, Weighting, clustered, method, traffic
from fljax.rounds.clustered import After
from fljax.rounds.inference import agreement, check_classifies, predicted
from fljax.rounds.joining import held_with_least_loss
from fljax.server.aggregate import mix
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, ModelTable, State, Work


@hyper
class FLISHyper(LocalHyper):
    threshold: Scalar = number(
        0.4,
        "least share of the server's examples that two clients predict alike, to be averaged; 0 is FedAvg",
        least=0,
        most=1,
    )


class Models(NamedTuple):
    """Which of the server's models there are: one for each participant of the last round that anybody was in."""

    there: Array  # (clients,) bool
    asked: Array  # () how many a participant has received in this round, to choose from


@method(FLISHyper, "Morafah et al., 2022", "https://arxiv.org/abs/2208.09754", kind="clustered", sends=True)
def flis(model: Model, work: Work, *, n_public: Positive = 2500, weighting: Weighting = "size") -> Algorithm:
    """FLIS DC: ``a_i = argmin_k F_i(theta_k)``; ``theta_k <- mean of w_i over i with S_ki >= threshold``.

    S_ij is the share of the server's examples that w_i and w_j predict alike. The federation must have public data.

    Args:
        n_public: the first n_public public examples are used, or all if there are fewer.
    """
    check_classifies(model, "flis")

    def begin(key: Key, hyper: FLISHyper, data: ClientData) -> Clusters:
        n_clients = data.n_clients
        models = Models(jnp.arange(n_clients) == 0, jnp.float32(1))
        return Clusters(tree.broadcast(model.init(key), n_clients), jnp.zeros(n_clients, jnp.int32), models)

    def choices(clusters: Clusters, data: ClientData) -> ModelTable:
        there, slots = clusters.kept.there, jnp.arange(clusters.label.shape[0], dtype=jnp.int32)
        held = jnp.where(there, slots, jnp.argmax(there).astype(jnp.int32))
        return held_with_least_loss(model, ModelTable(clusters.centers, held), data)

    def before(hyper: FLISHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        label = jnp.where(cohort.active, choices(clusters, cohort.data).row, -1)
        models = clusters.kept._replace(asked=clusters.kept.there.sum().astype(jnp.float32))
        return clusters._replace(label=jnp.full_like(clusters.label, -1).at[cohort.ids].set(label), kept=models)

    def after(key: Key, hyper: FLISHyper, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        weight = whole(sent.weight)
        has_sent = weight > 0
        # A_ij = S_ij >= threshold; theta_i = sum_j A_ij omega_j w_j / sum_j A_ij omega_j.
        similarity = agreement(predicted(model, sent.params, cohort, n_public, "flis"))
        share = jnp.where(similarity >= hyper.threshold, weight[None], 0.0)
        means = mix(share / jnp.maximum(share.sum(1, keepdims=True), 1e-30), sent.params)
        there = jnp.zeros_like(clusters.kept.there).at[cohort.ids].set(has_sent)
        models = clusters.kept._replace(there=jnp.where(has_sent.any(), there, clusters.kept.there))
        n_parameters = tree.size(tree.first(clusters.centers))
        new = Sent(means, has_sent.astype(jnp.float32), cohort.ids)
        return clusters._replace(kept=models), new, traffic(n_parameters, n_parameters * models.asked)

    def deploy(key: Key, hyper: FLISHyper, state: State, data: ClientData) -> ModelTable:
        return choices(state.server, data)

    return clustered(model, work, Rule(begin, before, after), weighting=weighting, deploy=deploy)
