"""FlexCFL: groups from the common directions of the clients' first updates, found once before the first round.

Duan, Liu, Ji, Wu, Liang, Chen, Tan, Ren: Flexible Clustered Federated Learning for Client-Level Data Distribution
Shift, IEEE TPDS 2022, https://arxiv.org/abs/2108.09749; the cold start is that of FedGroup (ISPA 2021,
https://arxiv.org/abs/2010.06870). Official code: https://github.com/morningD/FlexCFL.
Some clients pretrain; the cosines of their updates with the updates' main directions are clustered by k-means; every
other client joins the group whose mean update is most similar to its own. Groups average their members; optionally,
group models are also mixed with each other.

Differences from the paper: all clients pretrain before the first round, not each when it is first sampled; this counts
as a second upload and download of the first round's participants. Clients do not migrate, as their data do not change.
The k-means is the best of 20 starts; the code leaves their number to scikit-learn, whose default was 10. Groups are
mixed by a weighted mean, as in the code; with the paper's sum, without the division, models grow without bound. A new
client joins the group with the least training loss.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.matrices import largest_eigenpairs
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, in_first_round, mean, method, traffic
from fljax.rounds.accounting import occupied
from fljax.rounds.local import train_beforehand
from fljax.rounds.uplink.private import check_not_private
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.server.aggregate import cluster_mean, mix
from fljax.server.gram import gram
from fljax.server.kmeans import kmeans
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, Params, Stacked, State, Upload, Work


@hyper
class FlexCFLHyper(LocalHyper):
    eta_g: Scalar = number(
        0.0, "weight of each other group's model, scaled to length 1, in a group's; FedGroup has 0 to 0.1", least=0
    )


@method(FlexCFLHyper, "Duan et al., IEEE TPDS 2022", "https://arxiv.org/abs/2108.09749", kind="clustered")
def flexcfl(
    model: Model,
    work: Work,
    n_clusters: Positive = 3,
    *,
    pretrain_epochs: Positive = 5,
    sample_factor: Positive = 20,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FlexCFL: ``a = kmeans(cos(dw_i, V))``, V the m main directions of the dw; ``theta_k <- mean of its w_i``.

    Then, with eta_g, ``theta_k <- (theta_k + sum_{l != k} u_l theta_l) / (1 + sum_{l != k} u_l)``, ``u_l = eta_g /
    |theta_l|``.

    Args:
        n_clusters: m, the number of groups.
        pretrain_epochs: epochs of every client before the first round.
        sample_factor: alpha; alpha m random clients form the groups.
    """
    check_not_private(work, "clients of FlexCFL also train before the first round, and epsilon counts rounds only")

    def begin(key: Key, hyper: FlexCFLHyper, data: ClientData) -> Clusters:
        key_model, key_train, key_sample, key_group = jax.random.split(key, 4)
        theta, n_clients = model.init(key_model), data.n_clients
        pretraining = work.for_epochs(pretrain_epochs)
        pretrained = train_beforehand(key_train, hyper, theta, data, model, pretraining)
        ticket = jnp.where(pretrained.ok, jax.random.uniform(key_sample, (n_clients,), jnp.float32), jnp.inf)
        formed = (jnp.argsort(jnp.argsort(ticket)) < sample_factor * n_clusters) & pretrained.ok
        inner = gram(tree.subtract(pretrained.params, tree.broadcast(theta, n_clients)), pretrained.ok)
        label = groups(key_group, inner, formed, n_clusters)
        counts = formed.astype(jnp.float32)
        return Clusters(cluster_mean(pretrained.params, counts, label, tree.broadcast(theta, n_clusters)), label)

    def sends(center: Params, cohort: Cohort) -> Metrics:
        return traffic(tree.size(center) + in_first_round(cohort, tree.size(center)))

    rounds = clustered(model, work, Rule(begin), combine=combine, weighting=weighting, sends=sends)
    halves = halves_of(rounds)

    def receive(key: Key, hyper: FlexCFLHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        new_state, metrics = halves.receive(key, hyper, state, cohort, upload)
        clusters = new_state.server
        is_occupied = occupied(clusters.label, n_clusters)
        mixed = clusters._replace(centers=inter_group_mean(clusters.centers, hyper.eta_g, is_occupied))
        return new_state._replace(server=mixed), metrics

    return with_halves(rounds, receive=receive)


def groups(key: Key, inner: Array, formed: Array, n_clusters: int) -> Array:
    """(clients,) group of each client: by k-means if it forms the groups, otherwise the nearest mean update's.

    Args:
        key: of k-means.
        inner: (clients, clients) inner products of the updates.
        formed: (clients,) bool: clients that form the groups.
        n_clusters: m.
    """
    # With inner = Q L Q', direction j is sum_i q_ij dw_i / sqrt(l_j), and <dw_i, v_j> = (inner Q)_ij / sqrt(l_j).
    forming = jnp.where(formed[:, None] & formed[None], inner, 0.0)
    squared, vectors = largest_eigenpairs(forming, n_clusters)
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(inner), 1e-30))
    cosine = tree.product(inner, vectors) / jnp.sqrt(jnp.maximum(squared, 1e-30))[None] / length[:, None]
    label = kmeans(key, jnp.where(formed[:, None], cosine, 0.0), n_clusters, n_init=20, where=formed).label
    member = jax.nn.one_hot(label, n_clusters, dtype=jnp.float32) * formed.astype(jnp.float32)[:, None]
    mean_of = member / jnp.maximum(member.sum(0), 1.0)[None]
    mean_length = jnp.sqrt(jnp.maximum((mean_of * tree.product(inner, mean_of)).sum(0), 1e-30))
    similarity = jnp.where(member.sum(0)[None] > 0, tree.product(inner, mean_of) / mean_length[None], -jnp.inf)
    return jnp.where(formed, label, jnp.argmax(similarity, axis=1).astype(jnp.int32))


def inter_group_mean(centers: Stacked, eta_g: Scalar, is_occupied: Array) -> Stacked:
    """``theta_k`` and ``eta_g sum_{l != k} theta_l / |theta_l|`` as a weighted mean; running statistics stay.

    Args:
        centers: (groups, ...) models.
        eta_g: weight of the other groups' models.
        is_occupied: (groups,) bool: groups with members; the others have no effect and stay unchanged.
    """
    trainable, statistics = tree.split_statistics(centers)
    length = jnp.sqrt(jnp.maximum(tree.squared_norms(trainable), 1e-30))
    identity, pair = jnp.eye(length.shape[0], dtype=jnp.float32), is_occupied[:, None] & is_occupied[None]
    weights = jnp.where(pair, eta_g * (1 - identity) / length[None], 0.0) + identity
    return tree.join_statistics(mix(weights / weights.sum(1, keepdims=True), trainable), statistics)
