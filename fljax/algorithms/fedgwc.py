"""FedGWC: clusters of clients with similar training losses, found from their rewards in common rounds.

Licciardi, Leo, Fani, Caputo, Ciccone: Interaction-Aware Gaussian Weighting for Clustered Federated Learning, ICML
2025, https://arxiv.org/abs/2502.03340. Official code: https://github.com/davedleo/FedGWC.
A client sends the losses of its first S steps. Its reward is high if they are near its cluster's mean. A matrix P keeps
each client's mean reward over the rounds in which it participated together with each other client. When P has
converged, a cluster is split by spectral clustering of P's rows.

Differences from the code: rows of P are compared; the code compares columns of the rewards divided by their sum, scaled
to [0, 1]. P has converged when the running mean of its squared changes is below eps once, without patience; one cluster
is split per round. Parts have on average at least two members, and at least as many as a round has participants, as in
the code, or 1 / max_parts of all clients if that is less, so that clients are also split with full participation.
Members have equal weights in a cluster's mean loss and variance (a mean of squares); the code weights both by examples
and, for fewer than ten participants, adds draws from their Gaussian with the variance divided by nine. Participants are
sampled from all clients; in the code, equally many from each cluster. A new client joins the cluster with the least
training loss. With full participation in every round, all pairs participate together, and only the rewards themselves
distinguish clients.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.objectives import training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, mean, method, one_cluster, regrouped, traffic
from fljax.rounds.cohort import steps_of
from fljax.rounds.trajectory import train_and_record
from fljax.rounds.uplink.private import check_not_private
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.server.cluster_scores import davies_bouldin
from fljax.server.rewards import gaussian_rewards, row_affinity
from fljax.server.spectral import spectral_embedding, spectral_labels
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, State, Trained, Upload, Work


@hyper
class FedGWCHyper(LocalHyper):
    alpha: Scalar = number(0.1, "weight of a round in P; the code has the share of clients per round", above=0, most=1)
    beta: Scalar = number(0.1, "width of the affinity exp(-beta |v_k - v_j|^2); the code has 0.1", above=0)
    eps: Scalar = number(1e-3, "P has converged when its mean squared change is below this", least=0)


class Rewards(NamedTuple):
    """What the server remembers."""

    reward: Array  # (clients, clients) P: mean reward of the row's client in rounds with the column's client
    change: Array  # (clusters,) running mean of P's squared changes, initially 1


@method(FedGWCHyper, "Licciardi et al., ICML 2025", "https://arxiv.org/abs/2502.03340", kind="clustered")
def fedgwc(
    model: Model,
    work: Work,
    *,
    n_losses: Positive = 8,
    max_parts: Positive = 4,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedGWC: ``P_kj <- (1 - alpha) P_kj + alpha r_k``, ``r_k = mean_s exp(-(l_ks - m_s)^2 / (2 sigma_s^2))``.

    A cluster is split by spectral clustering of ``exp(-beta |v_k - v_j|^2)``, v_k a row of P without k and j, into the
    number of parts with the least Davies-Bouldin score, if this score is below 1.

    Args:
        n_losses: S, number of batch losses that a client sends per round.
        max_parts: largest number of parts of one split; 1: never split.
    """

    check_not_private(work, "clients of FedGWC send losses of batches, which get no noise")

    def begin(key: Key, hyper: FedGWCHyper, data: ClientData) -> Clusters:
        n = data.n_clients
        rewards = Rewards(jnp.zeros((n, n), jnp.float32), jnp.ones(n, jnp.float32))
        return one_cluster(model.init(key), n, kept=rewards)

    def before(hyper: FedGWCHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        converged = clusters.kept.change < hyper.eps
        # With as many parts as members the score would be 0, and small clusters would fall apart.
        min_size = max(min(cohort.n_clients, clusters.label.shape[0] // max_parts), 2)
        return lax.cond(
            converged.any(), lambda: split_of(clusters, converged, hyper.beta, max_parts, min_size), lambda: clusters
        )

    def local(hyper: FedGWCHyper, start: ModelTable, cohort: Cohort) -> Trained:
        trained, losses = train_and_record(hyper, start, cohort, training_loss(model), work, n_losses)
        return trained._replace(params={"theta": trained.params, "losses": losses})

    rounds = clustered(
        model,
        local,
        Rule(begin, before),
        combine=combine,
        weighting=weighting,
        sends=lambda center, cohort: traffic(tree.size(center) + n_losses, tree.size(center)),
    )
    halves = halves_of(rounds)

    def send(key: Key, hyper: FedGWCHyper, state: State, cohort: Cohort) -> Upload:
        # Losses are not part of the update: uplink bricks clip, compress or add noise to the model only.
        upload = halves.send(key, hyper, state, cohort)
        return upload._replace(params=upload.params["theta"], rest=(upload.rest, upload.params["losses"]))

    def receive(key: Key, hyper: FedGWCHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (clusters, loss, ok), losses = upload.rest
        label, counts = upload.start.row, upload.weight > 0
        is_recorded = jnp.arange(n_losses)[None] < steps_of(cohort, work)[:, None]
        same_cluster = (label[:, None] == label[None]) & counts[None]
        reward = gaussian_rewards(losses, is_recorded & counts[:, None], same_cluster)
        pair = same_cluster & counts[:, None]
        clusters = clusters._replace(kept=new_rewards(clusters.kept, reward, pair, label, cohort, hyper.alpha))
        return halves.receive(key, hyper, state, cohort, upload._replace(rest=(clusters, loss, ok)))

    return with_halves(rounds, send=send, receive=receive, sees="each")  # each client's losses


def new_rewards(rewards: Rewards, reward: Array, pair: Array, label: Array, cohort: Cohort, alpha: Scalar) -> Rewards:
    """P and its changes after a round; entries without a participant stay."""
    rows, columns = cohort.ids[:, None], cohort.ids[None]
    old = rewards.reward[rows, columns]
    new = jnp.where(pair, (1 - alpha) * old + alpha * reward[:, None], old)
    count, n = pair.sum(1).astype(jnp.float32), rewards.change.shape[0]
    sums = jnp.zeros((2, n), jnp.float32).at[:, label].add(jnp.stack([jnp.square(new - old).sum(1), count]))
    change = (1 - alpha) * rewards.change + alpha * sums[0] / jnp.maximum(sums[1], 1.0)
    return Rewards(rewards.reward.at[rows, columns].set(new), jnp.where(sums[1] > 0, change, rewards.change))


def split_of(clusters: Clusters, converged: Array, beta: Scalar, max_parts: int, min_size: int) -> Clusters:
    """Splits the first converged cluster, if the score is below 1; the first part keeps the cluster's number.

    Args:
        clusters: before.
        converged: (clusters,) bool: clusters whose P has converged.
        beta: of the affinity.
        max_parts: largest number of parts.
        min_size: least mean number of members of a part.
    """
    label, (reward, change) = clusters.label, clusters.kept
    cluster, n = jnp.argmax(converged).astype(jnp.int32), label.shape[0]
    is_member, part, least = label == cluster, jnp.zeros(n, jnp.int32), jnp.float32(1)
    affinity = row_affinity(reward, is_member, beta)
    for n_parts in range(2, min(max_parts, n - 1) + 1):
        labels = spectral_labels(affinity, n_parts, is_member)
        score = davies_bouldin(spectral_embedding(affinity, n_parts + 1, is_member)[:, 1:], labels, n_parts)
        is_better = (score < least) & (is_member.sum() >= n_parts * min_size)
        part, least = jnp.where(is_better, labels, part), jnp.where(is_better, score, least)
    label = jnp.where(is_member & (part > 0), label.max() + part, label)
    is_new = (jnp.arange(n) == cluster) | (jnp.arange(n) > clusters.label.max())
    return regrouped(clusters, label)._replace(kept=Rewards(reward, jnp.where(is_new, 1.0, change)))
