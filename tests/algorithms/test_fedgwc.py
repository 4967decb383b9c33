"""FedGWC: its rewards and its matrix in NumPy, and how it parts a cluster by scikit-learn."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import adjusted_rand_score, davies_bouldin_score

from fljax import tree
from fljax.algorithms import compose
from fljax.algorithms.fedgwc import Rewards, fedgwc, split_of
from fljax.data.synthetic import linear_groups
from fljax.rounds import Clusters
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced
from fljax.server.rewards import gaussian_rewards, row_affinity
from fljax.types import Work
from tests import oracle
from tests.algorithms.normalised import batch_normalised
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference  # noqa: F401
from tests.slow import slow_rows

ALPHA, BETA = 0.3, 0.5


@jax.jit
def draw_cohort(key, round, federation):
    """Half of the clients, of whom each drops out with probability 1/4."""
    return sample_cohort(key, round, federation, 4, 0.25)


def rewards_in_numpy(losses):
    """Rewards of the clients of one cluster, which may have different numbers of losses; a single client has 1."""
    rewards = [[] for _ in losses]
    for step in range(max(map(len, losses))):
        ids = [i for i, client_losses in enumerate(losses) if len(client_losses) > step]
        step_losses = np.array([losses[i][step] for i in ids])
        for i, value in zip(
            ids, np.exp(-((step_losses - step_losses.mean()) ** 2) / (2 * max(step_losses.var(), 1e-16))), strict=True
        ):
            rewards[i].append(value)
    return [np.mean(values) for values in rewards]


def test_fedgwc_in_numpy(key, model, federation, reference):  # noqa: F811
    """Four of eight clients a round, some of whom drop out, of unequal steps, in four clusters that stay as they are.

    A client that is alone of its cluster has the reward 1; a cluster of which nobody takes part keeps what it has.
    """
    label, n_rounds, numbers_of_members, lengths = np.array([0, 1, 0, 1, 0, 0, 2, 3]), 5, set(), set()
    centers, p, change = [reference.start] * 8, np.zeros((8, 8)), np.ones(8)
    for round in range(n_rounds):
        cohort = draw_cohort(reference.keys.cohort, np.int32(round), federation)
        participants = [
            (int(i), cohort.key[position]) for position, i in enumerate(cohort.ids) if cohort.active[position]
        ]
        sent, losses = {}, {}
        for i, k in participants:
            w, losses[i] = centers[label[i]], []
            for x, y in reference.batches(i, k):
                losses[i].append(oracle.training_loss(w, x, y))
                w = oracle.combine(lambda w, g: w - LR * g, w, oracle.gradient(w, x, y))
            sent[i] = w
            lengths.add(min(len(losses[i]), 5))
        for k in set(label):
            ids = [i for i in sent if label[i] == k]
            numbers_of_members.add(len(ids))
            if not ids:
                continue
            old_p = p.copy()
            for i, reward in zip(ids, rewards_in_numpy([losses[i][:5] for i in ids]), strict=True):
                p[i, ids] = (1 - ALPHA) * p[i, ids] + ALPHA * reward
            change[k] = (1 - ALPHA) * change[k] + ALPHA * np.square(p - old_p)[np.ix_(ids, ids)].mean()
            centers[k] = oracle.average([sent[i] for i in ids], [float(reference.size[i]) for i in ids])
    algorithm, hyper = fedgwc(model, WORK, n_losses=5, max_parts=1), fedgwc.Hyper(lr=LR, alpha=ALPHA, eps=0.0)
    start = jitted(algorithm.init)(reference.keys.init, hyper, federation.train)
    start = start._replace(server=start.server._replace(label=jnp.asarray(label, jnp.int32)))
    state, _ = simulate(
        algorithm._replace(init=lambda *_: start), hyper, federation, key, n_rounds, participation=0.5, dropout=0.25
    )
    assert_models(state.server.centers, centers)
    np.testing.assert_allclose(state.server.kept.reward, p, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.server.kept.change, change, rtol=1e-4)
    assert numbers_of_members >= {0, 1, 2, 3}
    assert len(lengths) > 1


def test_rewards_are_those_within_a_cluster():
    losses = np.random.default_rng(0).normal(size=(6, 3))
    label = np.array([0, 1, 0, 1, 0, 0])
    is_counted = np.array([True, True, True, True, True, False])
    is_peer = (label[:, None] == label[None]) & is_counted[None]
    rewards = np.asarray(
        jax.jit(gaussian_rewards)(losses.astype(np.float32), is_counted[:, None] & np.ones((6, 3), bool), is_peer)
    )
    for cluster in range(2):
        ids = np.flatnonzero((label == cluster) & is_counted)
        np.testing.assert_allclose(rewards[ids], rewards_in_numpy(losses[ids]), rtol=1e-4)


@pytest.mark.parametrize(
    ("n_groups", "nearer", "seed", "order"),
    [(3, 0.6, 1, (2, 3, 4)), (4, 0.6, 2, (2, 4, 3)), (3, 0.4, 4, (3, 4, 2))],
)
def test_a_settled_cluster_is_parted_as_scikit_learn_parts_it(n_groups, nearer, seed, order):
    """The second of three clusters; ``order`` is that of the numbers of parts by their score."""
    rng, n = np.random.default_rng(seed), 14
    is_member = np.arange(n) % 7 > 0
    group = np.arange(n) % n_groups
    p = np.clip(0.3 + nearer * (group[:, None] == group[None]) + 0.1 * rng.normal(size=(n, n)), 0, 1)
    members = np.flatnonzero(is_member)
    expected_affinity = np.zeros((len(members), len(members)))
    for a, k in enumerate(members):
        for b, j in enumerate(members):
            other_members = [c for c in members if c not in (k, j)]
            expected_affinity[a, b] = np.exp(-BETA * np.square(p[k, other_members] - p[j, other_members]).sum())
    np.fill_diagonal(expected_affinity, 1)
    actual_affinity = np.asarray(jax.jit(row_affinity)(p.astype(np.float32), is_member, BETA))
    np.testing.assert_allclose(actual_affinity[np.ix_(members, members)], expected_affinity, rtol=1e-4, atol=1e-5)
    scores, labels = [], []
    for n_parts in (2, 3, 4):
        options = {"affinity": "precomputed", "random_state": 0}
        labels.append(SpectralClustering(n_parts, assign_labels="cluster_qr", **options).fit_predict(expected_affinity))
        embedded = SpectralEmbedding(n_parts, **options).fit_transform(expected_affinity)
        scores.append(davies_bouldin_score(embedded, labels[-1]))
    best = labels[int(np.argmin(scores))]
    assert min(scores) < 1
    assert tuple((np.argsort(scores) + 2).tolist()) == order
    label, centers = (
        np.where(is_member, 1, np.arange(n) // 7 * 2).astype(np.int32),
        {"w": np.arange(n, dtype=np.float32)},
    )
    clusters = Clusters(centers, label, Rewards(p.astype(np.float32), np.full(n, 0.5, np.float32)))
    next_clusters = jax.device_get(jax.jit(split_of, static_argnums=3)(clusters, np.arange(n) == 1, BETA, 4, 3))
    assert adjusted_rand_score(best, np.asarray(next_clusters.label)[members]) == 1
    np.testing.assert_array_equal(next_clusters.label[~is_member], [0, 2])
    n_new = len(set(best)) - 1
    assert set(np.asarray(next_clusters.label)[members].tolist()) == {1, *range(3, 3 + n_new)}
    np.testing.assert_array_equal(
        next_clusters.centers["w"][: 3 + n_new], [0, 1, 2, *[1] * n_new]
    )  # parts begin with its model
    np.testing.assert_array_equal(next_clusters.kept.change[: 3 + n_new], [0.5, 1, 0.5, *[1] * n_new])


def test_a_cluster_without_parts_stays_whole():
    n = 8
    p = np.random.default_rng(2).uniform(size=(n, n))
    rewards = Rewards(p.astype(np.float32), np.zeros(n, np.float32))
    clusters = Clusters({"w": np.arange(n, dtype=np.float32)}, np.zeros(n, np.int32), rewards)
    next_clusters = jax.jit(split_of, static_argnums=3)(clusters, np.arange(n) == 0, 0.1, 2, 2)
    assert np.asarray(next_clusters.label).max() == 0
    assert float(next_clusters.kept.change[0]) == 1


@pytest.mark.parametrize(
    ("n_members", "n_enough", "n_parts"), slow_rows((7, 2, 3), (3, 2, 1), (2, 2, 1), (4, 2, 2), (7, 4, 1))
)
def test_parts_have_enough_members_on_average(n_members, n_enough, n_parts):
    """Rewards of pure noise: with as many parts as members the score would be 0."""
    rng, n = np.random.default_rng(3), 12
    p = 0.6 + 0.02 * rng.normal(size=(10, n, n)).astype(np.float32)
    label = np.where(np.arange(n) < n_members, 1, 0).astype(np.int32)

    def next_label(p):
        clusters = Clusters({"w": jnp.arange(n, dtype=jnp.float32)}, label, Rewards(p, jnp.full(n, 0.5, jnp.float32)))
        return split_of(clusters, jnp.arange(n) == 1, 0.1, 4, n_enough).label

    labels = np.asarray(jax.jit(jax.vmap(next_label))(p))[:, :n_members]
    assert max(len(set(row.tolist())) for row in labels) == n_parts


@pytest.mark.slow
def test_parts_are_as_large_as_a_round_or_a_share_of_all_and_never_of_one(key, model, federation):
    """Of 12 clients and at most four parts: 3 where all take part, else as many as take part, but not below 2.

    Five members are two parts of 2 or more but not of 3; seven are two of 3. Rewards part them clearly.
    """
    federation, algorithm = linear_groups(12, 2, examples=8), fedgwc(model, Work(1, 8))
    hyper, old_label = as_traced(fedgwc.Hyper(lr=0.1, eps=0.1, beta=1.0)), np.where(np.arange(12) < 5, 0, 1)
    start = jitted(algorithm.init)(key, hyper, federation.train)
    half_of = np.arange(12) % 2
    reward = (half_of[:, None] == half_of).astype(np.float32)

    @partial(jax.jit, static_argnums=0)
    def split_at(n_participants, settled_cluster):
        """The clients' clusters when the round begins; what is trained in it is not asked for."""
        rewards = Rewards(reward, jnp.where(jnp.arange(12) == settled_cluster, 0.0, 1.0))
        state = start._replace(server=start.server._replace(label=jnp.asarray(old_label, jnp.int32), kept=rewards))
        cohort = sample_cohort(key, 0, federation, n_participants, None)
        return algorithm.round(key, hyper, state, cohort)[0].server.label

    split_label = old_label + 2 * half_of
    for n_participants, settled_cluster, stays in ((12, 0, True), (12, 1, False), (2, 0, False), (1, 0, False)):
        expected = old_label if stays else np.where(old_label == settled_cluster, split_label, old_label)
        label = split_at(n_participants, settled_cluster)
        assert adjusted_rand_score(expected, label) == 1, (n_participants, settled_cluster)


@pytest.mark.slow
def test_with_two_groups_of_clients_clusters_do_not_go_to_pieces(key, model):
    hyper = fedgwc.Hyper(lr=0.05, alpha=0.3, eps=2e-3)
    federation = linear_groups(12, 2, examples=40)
    metrics = simulate(fedgwc(model, Work(1, 8)), hyper, federation, key, 150, participation=0.5, evaluate_every=150)[1]
    assert 1 < metrics["n_clusters"][-1] <= 6  # twelve, each alone, where nothing bars it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("brick", "numbers"),
    [
        ("clip_update", {"clip": 0.5}),
        *slow_rows(("top_k", {}), ("median", {}), ("momentum", {"server_lr": 1.0}), ("exp", {})),
    ],
)
def test_bricks_do_to_one_cluster_what_they_do_to_fedavg(key, brick, numbers):
    """The losses that are sent too are no part of the update, and running statistics are found in it."""
    network, federation = batch_normalised((4, 4, 1), 4, hidden=6), linear_groups(8, 2, examples=24, ragged=0.4)

    def result_of(name, **more_numbers):
        method = compose(f"{name}+{brick}")
        algorithm, hyper = method(network, Work(1, 8)), method.Hyper(lr=0.1, **numbers, **more_numbers)
        state, metrics = simulate(algorithm, hyper, federation, key, 2, evaluate_every=2)
        return tree.stacked(algorithm.deploy(key, hyper, state, federation.train)), metrics["uplink"]

    (actual, uplink), (expected, uplink_of_fedavg) = result_of("fedgwc", eps=0.0), result_of("fedavg")
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(uplink, uplink_of_fedavg + 8, rtol=1e-6)
