"""Robust clustered FL, ClusterFL and group-based PFL: clusters from local solutions, models and label counts."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import squareform
from scipy.stats import trim_mean
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import fljax
from fljax import tree
from fljax.algorithms.clusterfl import clusterfl, with_cluster_penalty
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.group_pfl import group_pfl
from fljax.algorithms.group_pfl_dynamic import group_pfl_dynamic
from fljax.algorithms.robust_cfl import robust_cfl
from fljax.algorithms.standalone import standalone
from fljax.client import local_optimizer, train_clients, training_loss
from fljax.data.divergence import symmetric_kld
from fljax.data.federation import class_histogram
from fljax.data.synthetic import linear_groups
from fljax.rounds import median, trimmed_mean
from fljax.rounds.bricks import BRICKS
from fljax.rounds.cohort import sample_cohort
from fljax.rounds.local import train_beforehand
from fljax.run.one_round import as_traced, split_key
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.oracle import rows_of
from tests.slow import slow, slow_rows

ROUNDS = 3


def final(algorithm, hyper, federation, key, participation=0.5):
    return simulate(algorithm, hyper, federation, key, ROUNDS, participation=participation)[0]


def starting_at(algorithm, start):
    """``algorithm`` with another initial server model."""
    return algorithm._replace(init=lambda *arguments: algorithm.init(*arguments)._replace(server=start))


def with_huge_features(federation, client):
    """The federation in which ``client`` has features a thousand times too large."""
    rows = federation.train.index[client, : int(federation.train.size[client])]
    pool = federation.train.pool
    return federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x.at[rows].mul(1e3))))


@pytest.mark.slow
def test_clusterfl_without_penalty_is_everyone_alone(key, model, work, federation):
    actual = final(clusterfl(model, work), clusterfl.Hyper(lr=0.1, alpha=0.0, beta=0.0), federation, key).server.models
    expected = final(standalone(model, work), standalone.Hyper(lr=0.1), federation, key).clients
    chex.assert_trees_all_close(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_cluster_of_one_is_not_held_at_its_own_model(key, model, federation):
    one_step = Work(1, 64)
    server = final(
        clusterfl(model, one_step, 8), clusterfl.Hyper(lr=0.1, alpha=0.7, beta=0.7), federation, key, 1.0
    ).server
    assert len(np.unique(server.label)) == 8
    expected = final(standalone(model, one_step), standalone.Hyper(lr=0.1), federation, key, 1.0).clients
    chex.assert_trees_all_close(server.models, expected, rtol=1e-5, atol=1e-6)


def test_the_penalty_is_the_papers_trace(key):
    w, label = np.random.default_rng(0).normal(size=(7, 5)), np.array([0, 0, 0, 1, 1, 2, 2])
    means = np.stack([w[label == k].mean(axis=0) for k in range(3)])
    indicator = np.eye(3)[label] / np.sqrt(np.bincount(label))
    trace = 0.4 * np.trace(w @ w.T) - 0.3 * np.trace(indicator.T @ w @ w.T @ indicator)
    loss = with_cluster_penalty(lambda params, batch, key: (jnp.float32(0), params), 0.4, 0.3)
    penalty = jax.vmap(lambda w, mean: loss({"fc": w}, None, key, {"fc": mean})[0])
    rows = [jnp.asarray(value, jnp.float32) for value in (w, means[label])]
    np.testing.assert_allclose(penalty(*rows).sum(), trace, rtol=1e-5)
    sum_of_squares = np.square(w - means[label]).sum()
    equal_penalty = with_cluster_penalty(lambda params, batch, key: (jnp.float32(0), params), 0.4, 0.4)
    penalty = jax.vmap(lambda w, mean: equal_penalty({"fc": w}, None, key, {"fc": mean})[0])
    np.testing.assert_allclose(penalty(*rows).sum(), 0.4 * sum_of_squares, rtol=1e-5)  # the cost of k-means


def test_clusterfl_equals_numpy(key, model, federation):
    lr, alpha, beta, data = 0.2, 0.2, 0.1, federation.train
    models = [jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.init(split_key(key).init))] * 8
    means, label = models, np.zeros(8, int)
    for round in range(6):
        for i in range(8):
            rows = rows_of(data, i)
            g = oracle.gradient(models[i], np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows])
            if round > 1:  # no clusters yet in the first two
                g = oracle.combine(lambda g, w, m: g + 2 * alpha * w - 2 * beta * m, g, models[i], means[i])
            models[i] = oracle.combine(lambda w, g: w - lr * g, models[i], g)
        if round in (1, 4):
            rows_of_models = np.stack([np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(w)]) for w in models])
            label = KMeans(3, n_init=20, random_state=0).fit_predict(rows_of_models)
        means = [oracle.average(models, list((label == label_of_client).astype(float))) for label_of_client in label]
    hyper = clusterfl.Hyper(lr=lr, alpha=alpha, beta=beta, warmup=1.6, every=3.4)  # 2 and 3
    server = simulate(clusterfl(model, Work(1, 64), 3), hyper, federation, key, 6)[0].server
    assert adjusted_rand_score(server.label, label) == 1
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    chex.assert_trees_all_close(server.models, stacked, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_clusterfl_finds_the_groups_after_its_warm_up_and_can_keep_them(key, model):
    federation, hyper = (
        linear_groups(8, 2, examples=60),
        clusterfl.Hyper(lr=0.2, alpha=0.05, beta=0.05, warmup=3.0, every=jnp.inf),
    )
    metrics = simulate(clusterfl(model, Work(2, 8)), hyper, federation, key, 6)[1]
    np.testing.assert_array_equal(metrics["n_clusters"], [1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(metrics["ari"][2:], 1)
    np.testing.assert_array_equal(metrics["label"][3:], metrics["label"][2:3].repeat(3, axis=0))


@pytest.mark.slow
def test_noise_on_the_uplink_does_not_change_a_clients_own_model_of_clusterfl(key, model, work, federation):
    method = fljax.compose("clusterfl+gaussian_noise")
    hyper = method.Hyper(lr=0.1, alpha=0.0, beta=0.0, noise_std=0.5)  # held by nothing
    state = final(method(model, work), hyper, federation, key)
    expected = final(standalone(model, work), standalone.Hyper(lr=0.1), federation, key).clients
    chex.assert_trees_all_close(state.clients.own, expected, rtol=1e-6, atol=1e-7)
    noise = np.asarray(tree.flatten(tree.subtract(state.server.own.models, expected)))
    np.testing.assert_allclose(noise.std(axis=1), 0.5, rtol=0.25)  # of the last upload, not of one after another


@pytest.mark.slow
@pytest.mark.parametrize(("warmup", "every"), [(1.6, 3.0), *slow_rows((1.0, 1.6), (1.7, jnp.inf))])
def test_clusterfl_clusters_after_whole_rounds(key, model, warmup, every):
    """What a search over numbers proposes need not be whole."""
    federation = linear_groups(8, 2, examples=24)

    def run(warmup, every):
        hyper = clusterfl.Hyper(lr=0.1, alpha=0.05, beta=0.05, warmup=warmup, every=every)
        return simulate(clusterfl(model, Work(1, 8)), hyper, federation, key, 6, evaluate_every=6)

    (state, metrics), (state_of_whole_numbers, _) = run(warmup, every), run(np.round(warmup), np.round(every))
    chex.assert_trees_all_equal(state.server, state_of_whole_numbers.server)
    assert metrics["n_clusters"][-1] == 2


@pytest.mark.slow
def test_robust_clusters_untrimmed_are_averaged_as_by_fedavg(key, model, work, federation):
    algorithm, hyper = robust_cfl(model, work, 1, solve_epochs=1, n_init=1), robust_cfl.Hyper(lr=0.1, trim=0.0)
    first_centers = jitted(algorithm.init)(split_key(key).init, as_traced(hyper), federation.train).server.centers
    averaging = starting_at(fedavg(model, work, weighting="uniform"), tree.take(first_centers, 0))
    actual = tree.take(final(algorithm, hyper, federation, key).server.centers, 0)
    chex.assert_trees_all_close(
        actual, final(averaging, fedavg.Hyper(lr=0.1), federation, key).server, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_a_robust_cluster_begins_with_the_trimmed_mean_of_its_members_own_solutions(key, model, work, federation):
    algorithm, hyper = robust_cfl(model, work, 1, solve_epochs=2, n_init=1), as_traced(robust_cfl.Hyper(trim=0.3))
    centers = jitted(algorithm.init)(key, hyper, federation.train).server.centers
    key_model, key_train, _ = jax.random.split(key, 3)
    solve = jax.jit(partial(train_beforehand, model=model, work=work._replace(epochs=2)))
    solutions = solve(key_train, hyper, model.init(key_model), federation.train).params
    expected = jax.tree.map(
        lambda leaf: trim_mean(np.asarray(leaf, np.float64), 0.3)[None], solutions
    )  # 2 of 8 each way
    chex.assert_trees_all_close(centers, jax.tree.map(np.float32, expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("combine", [trimmed_mean, *slow(median)])
def test_a_bad_client_moves_a_robust_center_no_further_than_honest_ones_are(key, model, work, federation, combine):
    bad_client, hyper = 3, as_traced(robust_cfl.Hyper(lr=0.1))
    algorithm = robust_cfl(model, work, 1, combine=combine, solve_epochs=1, n_init=1)
    bad_federation = with_huge_features(federation, bad_client)
    state = jitted(algorithm.init)(key, hyper, bad_federation.train)
    cohort = sample_cohort(key, jnp.int32(0), bad_federation, 8, None)
    start = tree.everyone(tree.take(state.server.centers, 0), 8)
    optimizer = local_optimizer(hyper, work, jnp.int32(0))
    trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
    models = np.asarray(tree.flatten(trained.params))
    honest_models = np.delete(models, bad_client, axis=0)
    assert trained.ok.all()
    assert np.abs(models[bad_client]).max() > 10 * np.abs(honest_models).max()
    center = np.asarray(tree.flatten(jitted(algorithm.round)(key, hyper, state, cohort)[0].server.centers))[0]
    assert (center >= honest_models.min(axis=0) - 1e-6).all()
    assert (center <= honest_models.max(axis=0) + 1e-6).all()


@pytest.mark.slow
def test_robust_clusters_are_right_beside_a_bad_client(key, model):
    federation = with_huge_features(linear_groups(10, 2, examples=60), 2)
    method = robust_cfl + BRICKS["median"]
    metrics = simulate(method(model, Work(1, 8), 2), method.Hyper(lr=0.2), federation, key, 2)[1]
    is_honest = np.arange(10) != 2
    assert adjusted_rand_score(metrics["label"][-1][is_honest], federation.group[is_honest]) == 1
    assert np.asarray(metrics["client_accuracy"])[-1][is_honest].min() > 0.9


@pytest.mark.slow
def test_group_pfl_without_threshold_is_fedavg(key, model, work, federation):
    server = final(group_pfl(model, work), group_pfl.Hyper(lr=0.1, gamma=jnp.inf), federation, key).server
    expected = final(fedavg(model, work), fedavg.Hyper(lr=0.1), federation, key).server
    chex.assert_trees_all_close(tree.take(server.centers, 0), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_groups_of_one_are_everyone_alone(key, model, work, federation):
    server = final(group_pfl(model, work), group_pfl.Hyper(lr=0.1, gamma=0.0), federation, key).server
    expected = final(standalone(model, work), standalone.Hyper(lr=0.1), federation, key).clients
    chex.assert_trees_all_close(server.centers, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("gamma", [0.02, 0.07, 0.2])
def test_groups_are_scipys_on_the_label_distributions(key, model, work, federation, gamma):
    divergence = symmetric_kld(np.asarray(class_histogram(federation.train, 4), float))
    expected = fcluster(scipy_linkage(squareform(divergence, checks=False), "average"), gamma, "distance")
    algorithm = group_pfl(model, work)
    group = jitted(algorithm.init)(key, as_traced(group_pfl.Hyper(gamma=gamma)), federation.train).server.kept
    assert adjusted_rand_score(group, expected) == 1
    assert group[0] == 0


@pytest.mark.slow
def test_the_naive_dynamic_variant_is_fedavg_until_it_splits(key, model, work, federation):
    hyper = group_pfl_dynamic.Hyper(lr=0.1, one_group_rounds=2.0)
    metrics = simulate(group_pfl_dynamic(model, work), hyper, federation, key, ROUNDS)[1]
    averaged = simulate(fedavg(model, work), fedavg.Hyper(lr=0.1), federation, key, ROUNDS)[1]
    np.testing.assert_allclose(metrics["client_loss"][:2], averaged["client_loss"][:2], rtol=1e-5)
    # The groups start from the model that all had, so the losses before local training are equal once more.
    np.testing.assert_allclose(metrics["loss"], averaged["loss"], rtol=1e-5)
    assert not np.allclose(metrics["client_loss"][2], averaged["client_loss"][2], rtol=1e-3)
    np.testing.assert_array_equal(metrics["n_clusters"][:2], 1)
    assert metrics["n_clusters"][2] == 2


@pytest.mark.slow
def test_the_naive_dynamic_variant_splits_in_two_after_fifty_rounds(key, model, work, federation):
    """With every number at its default, as the paper has it."""
    hyper = group_pfl_dynamic.Hyper()
    metrics = simulate(group_pfl_dynamic(model, work), hyper, federation, key, 52, evaluate_every=52)[1]
    np.testing.assert_array_equal(metrics["n_clusters"], [1] * 50 + [2, 2])


def test_a_number_of_groups_cuts_the_tree_as_scipy_does(key, model, work, federation):
    divergence = symmetric_kld(np.asarray(class_histogram(federation.train, 4), float))
    expected = fcluster(scipy_linkage(squareform(divergence, checks=False), "average"), 3, "maxclust")
    group = jitted(group_pfl(model, work, n_groups=3).init)(
        key, as_traced(group_pfl.Hyper()), federation.train
    ).server.kept
    assert adjusted_rand_score(group, expected) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: clusterfl(m, w, 0), "n_clusters=0"),
        (lambda m, w: clusterfl(m, w, n_init=0), "n_init=0"),
        (lambda m, w: robust_cfl(m, w, 0), "n_clusters=0"),
        (lambda m, w: robust_cfl(m, w, solve_epochs=0), "solve_epochs=0"),
        (lambda m, w: group_pfl(m, w, weighting="fair"), "weighting='fair'"),
        (lambda m, w: group_pfl(m, w, n_groups=0), "n_groups=0"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)
