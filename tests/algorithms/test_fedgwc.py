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
def drawn(key, round, federation):
    """Half of the clients, of whom each drops out with probability 1/4."""
    return sample_cohort(key, round, federation, 4, 0.25)


def rewards_in_numpy(losses):
    """Of clients of one cluster, whose losses may be of different lengths; one alone has 1."""
    found = [[] for _ in losses]
    for step in range(max(map(len, losses))):
        who = [i for i, own in enumerate(losses) if len(own) > step]
        at = np.array([losses[i][step] for i in who])
        for i, value in zip(who, np.exp(-((at - at.mean()) ** 2) / (2 * max(at.var(), 1e-16))), strict=True):
            found[i].append(value)
    return [np.mean(values) for values in found]


def test_fedgwc_in_numpy(key, model, federation, reference):  # noqa: F811
    """Four of eight clients a round, some of whom drop out, of unequal steps, in four clusters that stay as they are.

    A client that is alone of its cluster has the reward 1; a cluster of which nobody takes part keeps what it has.
    """
    label, n_rounds, met, lengths = np.array([0, 1, 0, 1, 0, 0, 2, 3]), 5, set(), set()
    centers, p, change = [reference.start] * 8, np.zeros((8, 8)), np.ones(8)
    for round in range(n_rounds):
        cohort = drawn(reference.keys.cohort, np.int32(round), federation)
        there = [(int(i), cohort.key[place]) for place, i in enumerate(cohort.ids) if cohort.active[place]]
        sent, losses = {}, {}
        for i, k in there:
            w, losses[i] = centers[label[i]], []
            for x, y in reference.batches(i, k):
                losses[i].append(oracle.training_loss(w, x, y))
                w = oracle.combine(lambda w, g: w - LR * g, w, oracle.gradient(w, x, y))
            sent[i] = w
            lengths.add(min(len(losses[i]), 5))
        for k in set(label):
            ids = [i for i in sent if label[i] == k]
            met.add(len(ids))
            if not ids:
                continue
            before = p.copy()
            for i, reward in zip(ids, rewards_in_numpy([losses[i][:5] for i in ids]), strict=True):
                p[i, ids] = (1 - ALPHA) * p[i, ids] + ALPHA * reward
            change[k] = (1 - ALPHA) * change[k] + ALPHA * np.square(p - before)[np.ix_(ids, ids)].mean()
            centers[k] = oracle.average([sent[i] for i in ids], [float(reference.size[i]) for i in ids])
    algorithm, hyper = fedgwc(model, WORK, n_losses=5, max_parts=1), fedgwc.Hyper(lr=LR, alpha=ALPHA, eps=0.0)
    begun = jitted(algorithm.init)(reference.keys.init, hyper, federation.train)
    begun = begun._replace(server=begun.server._replace(label=jnp.asarray(label, jnp.int32)))
    state, _ = simulate(
        algorithm._replace(init=lambda *_: begun), hyper, federation, key, n_rounds, participation=0.5, dropout=0.25
    )
    assert_models(state.server.centers, centers)
    np.testing.assert_allclose(state.server.kept.reward, p, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.server.kept.change, change, rtol=1e-4)
    assert met >= {0, 1, 2, 3}
    assert len(lengths) > 1


def test_rewards_are_those_within_a_cluster():
    losses = np.random.default_rng(0).normal(size=(6, 3))
    own = np.array([0, 1, 0, 1, 0, 0])
    counts = np.array([True, True, True, True, True, False])
    together = (own[:, None] == own[None]) & counts[None]
    found = np.asarray(
        jax.jit(gaussian_rewards)(losses.astype(np.float32), counts[:, None] & np.ones((6, 3), bool), together)
    )
    for cluster in range(2):
        who = np.flatnonzero((own == cluster) & counts)
        np.testing.assert_allclose(found[who], rewards_in_numpy(losses[who]), rtol=1e-4)


@pytest.mark.parametrize(
    ("n_groups", "nearer", "seed", "order"),
    [(3, 0.6, 1, (2, 3, 4)), (4, 0.6, 2, (2, 4, 3)), (3, 0.4, 4, (3, 4, 2))],
)
def test_a_settled_cluster_is_parted_as_scikit_learn_parts_it(n_groups, nearer, seed, order):
    """The second of three clusters; ``order`` is that of the numbers of parts by their score."""
    rng, n = np.random.default_rng(seed), 14
    member = np.arange(n) % 7 > 0
    group = np.arange(n) % n_groups
    p = np.clip(0.3 + nearer * (group[:, None] == group[None]) + 0.1 * rng.normal(size=(n, n)), 0, 1)
    who = np.flatnonzero(member)
    alike = np.zeros((len(who), len(who)))
    for a, k in enumerate(who):
        for b, j in enumerate(who):
            others = [c for c in who if c not in (k, j)]
            alike[a, b] = np.exp(-BETA * np.square(p[k, others] - p[j, others]).sum())
    np.fill_diagonal(alike, 1)
    ours = np.asarray(jax.jit(row_affinity)(p.astype(np.float32), member, BETA))
    np.testing.assert_allclose(ours[np.ix_(who, who)], alike, rtol=1e-4, atol=1e-5)
    scores, labels = [], []
    for parts in (2, 3, 4):
        options = {"affinity": "precomputed", "random_state": 0}
        labels.append(SpectralClustering(parts, assign_labels="cluster_qr", **options).fit_predict(alike))
        embedded = SpectralEmbedding(parts, **options).fit_transform(alike)
        scores.append(davies_bouldin_score(embedded, labels[-1]))
    best = labels[int(np.argmin(scores))]
    assert min(scores) < 1
    assert tuple((np.argsort(scores) + 2).tolist()) == order
    label, centers = np.where(member, 1, np.arange(n) // 7 * 2).astype(np.int32), {"w": np.arange(n, dtype=np.float32)}
    clusters = Clusters(centers, label, Rewards(p.astype(np.float32), np.full(n, 0.5, np.float32)))
    after = jax.device_get(jax.jit(split_of, static_argnums=3)(clusters, np.arange(n) == 1, BETA, 4, 3))
    assert adjusted_rand_score(best, np.asarray(after.label)[who]) == 1
    np.testing.assert_array_equal(after.label[~member], [0, 2])
    n_new = len(set(best)) - 1
    assert set(np.asarray(after.label)[who].tolist()) == {1, *range(3, 3 + n_new)}
    np.testing.assert_array_equal(
        after.centers["w"][: 3 + n_new], [0, 1, 2, *[1] * n_new]
    )  # parts begin with its model
    np.testing.assert_array_equal(after.kept.change[: 3 + n_new], [0.5, 1, 0.5, *[1] * n_new])


def test_a_cluster_without_parts_stays_whole():
    n = 8
    p = np.random.default_rng(2).uniform(size=(n, n))
    rewards = Rewards(p.astype(np.float32), np.zeros(n, np.float32))
    clusters = Clusters({"w": np.arange(n, dtype=np.float32)}, np.zeros(n, np.int32), rewards)
    after = jax.jit(split_of, static_argnums=3)(clusters, np.arange(n) == 0, 0.1, 2, 2)
    assert np.asarray(after.label).max() == 0
    assert float(after.kept.change[0]) == 1


@pytest.mark.parametrize(
    ("n_members", "enough", "most"), [(3, 2, 1), (7, 2, 3), *slow_rows((2, 2, 1), (4, 2, 2), (7, 4, 1))]
)
def test_parts_have_enough_members_on_average(n_members, enough, most):
    """Rewards of pure noise: with as many parts as members the score would be 0."""
    rng, n = np.random.default_rng(3), 12
    p = 0.6 + 0.02 * rng.normal(size=(10, n, n)).astype(np.float32)
    label = np.where(np.arange(n) < n_members, 1, 0).astype(np.int32)

    def after(p):
        clusters = Clusters({"w": jnp.arange(n, dtype=jnp.float32)}, label, Rewards(p, jnp.full(n, 0.5, jnp.float32)))
        return split_of(clusters, jnp.arange(n) == 1, 0.1, 4, enough).label

    found = np.asarray(jax.jit(jax.vmap(after))(p))[:, :n_members]
    assert max(len(set(row.tolist())) for row in found) == most


@pytest.mark.slow
def test_parts_are_as_large_as_a_round_or_a_share_of_all_and_never_of_one(key, model, federation):
    """Of 12 clients and at most four parts: 3 where all take part, else as many as take part, but not below 2.

    Five members are two parts of 2 or more but not of 3; seven are two of 3. Rewards part them clearly.
    """
    federation, algorithm = linear_groups(12, 2, examples=8), fedgwc(model, Work(1, 8))
    hyper, first = as_traced(fedgwc.Hyper(lr=0.1, eps=0.1, beta=1.0)), np.where(np.arange(12) < 5, 0, 1)
    begun = jitted(algorithm.init)(key, hyper, federation.train)
    half = np.arange(12) % 2
    reward = (half[:, None] == half).astype(np.float32)

    @partial(jax.jit, static_argnums=0)
    def parts(n_participants, settled):
        """The clients' clusters when the round begins; what is trained in it is not asked for."""
        rewards = Rewards(reward, jnp.where(jnp.arange(12) == settled, 0.0, 1.0))
        state = begun._replace(server=begun.server._replace(label=jnp.asarray(first, jnp.int32), kept=rewards))
        cohort = sample_cohort(key, 0, federation, n_participants, None)
        return algorithm.round(key, hyper, state, cohort)[0].server.label

    apart = first + 2 * half
    for n_participants, settled, whole in ((12, 0, True), (12, 1, False), (2, 0, False), (1, 0, False)):
        expected = first if whole else np.where(first == settled, apart, first)
        label = parts(n_participants, settled)
        assert adjusted_rand_score(expected, label) == 1, (n_participants, settled)


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

    def after(name, **own):
        made = compose(f"{name}+{brick}")
        algorithm, hyper = made(network, Work(1, 8)), made.Hyper(lr=0.1, **numbers, **own)
        state, metrics = simulate(algorithm, hyper, federation, key, 2, evaluate_every=2)
        return tree.stacked(algorithm.deploy(key, hyper, state, federation.train)), metrics["uplink"]

    (ours, sent), (theirs, sent_by_fedavg) = after("fedgwc", eps=0.0), after("fedavg")
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sent, sent_by_fedavg + 8, rtol=1e-6)
