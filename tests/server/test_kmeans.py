import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans as ScikitLearn
from sklearn.cluster import kmeans_plusplus
from threadpoolctl import threadpool_limits

from fljax.server.kmeans import _best_restart, _direct, kmeans, plus_plus
from tests.slow import slow, slow_rows


def scikit_learn(x, k, n_init=20):
    with threadpool_limits(1):  # its threads cost more than they save on small problems
        return ScikitLearn(k, n_init=n_init, random_state=0).fit(x).inertia_


def blobs(cases, n, d, k, spread=0.3, seed=0):
    rng = np.random.default_rng(seed + n)
    center = 3 * rng.normal(size=(cases, k, d))
    return (
        center[np.arange(cases)[:, None], rng.integers(0, k, (cases, n))] + spread * rng.normal(size=(cases, n, d))
    ).astype(np.float32)


def inertia_of(x, label):
    x = x.astype(float)
    return sum(((x[label == k] - x[label == k].mean(axis=0)) ** 2).sum() for k in np.unique(label[label >= 0]))


@partial(jax.jit, static_argnums=(1, 2))
def _solve(x, k, n_init, options):
    keys = jax.random.split(jax.random.key(0), len(x))
    return jax.vmap(lambda key, x, m: kmeans(key, x, k, n_init=n_init, **m))(keys, x, options)


def solve(x, k, n_init=20, **options):
    return jax.device_get(_solve(x, k, n_init, options))


def partitions(n, k):
    """Every labelling of n points with at most k clusters, canonical."""
    return np.array(
        [
            label
            for label in itertools.product(range(k), repeat=n)
            if all(c <= len(set(label[:i])) for i, c in enumerate(label))
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("d", [*slow(2), 9])  # fewer and more dimensions than points: the two ways to compute
@pytest.mark.parametrize(("n", "k"), [(6, 3), *slow_rows((1, 1), (2, 2), (5, 2))])
def test_reaches_the_optimum_of_nearly_all_problems(n, k, d):
    x = blobs(130, n, d, 3, spread=1.5)
    x[::5] = np.round(x[::5])
    clusterings = solve(x, k)
    labellings = partitions(n, k)
    least_inertia = np.array([min(inertia_of(a, label) for label in labellings) for a in x])
    inertias = [inertia_of(a, label) for a, label in zip(x, np.asarray(clusterings.label), strict=True)]
    np.testing.assert_allclose(clusterings.inertia, inertias, rtol=1e-5, atol=1e-5)
    is_worse = (
        np.asarray(clusterings.inertia) > least_inertia * (1 + 1e-5) + 1e-5
    )  # Lloyd ends in a local optimum now and then
    assert is_worse.mean() <= 0.02
    assert (np.asarray(clusterings.inertia) <= least_inertia * 1.05 + 1e-5).all()


@pytest.mark.parametrize(("n", "d"), [(40, 2), *slow_rows((30, 100))])
def test_as_good_as_scikit_learn(n, d):
    x = blobs(25, n, d, 4, spread=1.0)
    clusterings = solve(x, 4)
    expected = np.array([scikit_learn(a, 4) for a in x])
    assert (np.asarray(clusterings.inertia) <= expected * 1.01).all()  # both are local optima, the best of 20
    assert np.asarray(clusterings.inertia).mean() <= expected.mean() * 1.001


@pytest.mark.parametrize("d", [40, *slow(2)])
def test_separated_groups_are_found_and_labels_canonical(d, renumber):
    rng = np.random.default_rng(d)
    group = rng.integers(0, 3, (150, 14))
    group[:, :3] = [2, 0, 1]
    x = 50 * np.eye(3, d)[group] if d > 2 else 50 * np.array([[0, 0], [0, 1], [1, 0]])[group]
    noisy_x = (x + 1000 + rng.normal(size=x.shape)).astype(np.float32)
    clusterings = solve(noisy_x, 3, where=np.ones((150, 14), bool))
    for case in range(150):
        assert clusterings.label[case].tolist() == renumber(group[case])
        for k in range(3):
            is_member = np.asarray(clusterings.label[case]) == k
            np.testing.assert_allclose(
                clusterings.centers[case, k], (x + 1000)[case][is_member].mean(axis=0), atol=4
            )  # 4 sd of the noise


@jax.jit
def inertia_gradient(x):
    """Two clusters of four points, and the slope of the inertia."""

    def inertia(x):
        clustering = kmeans(jax.random.key(0), x, 2)
        return clustering.inertia, clustering

    gradient, clustering = jax.grad(inertia, has_aux=True)(x)
    return clustering, gradient


def test_hand_values():
    x = np.float32([[0, 0], [0, 0.5], [0.5, 0], [1, 1]])  # three near the origin and one apart
    clustering = inertia_gradient(x)[0]
    assert clustering.label.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(clustering.centers, [[1 / 6, 1 / 6], [1, 1]], rtol=1e-6)
    np.testing.assert_allclose(clustering.inertia, 1 / 3, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.int32, np.uint8, bool])
def test_centers_of_whole_numbers_are_means(kind):
    x = np.float32([[0, 0], [0, 0], [0, 1], [1, 1]])
    of_whole_numbers, of_floats = (kmeans(jax.random.key(0), jnp.asarray(points), 2) for points in (x.astype(kind), x))
    assert of_whole_numbers.centers.dtype == np.float32
    np.testing.assert_array_equal(of_whole_numbers.label, of_floats.label)
    np.testing.assert_allclose(of_whole_numbers.centers, of_floats.centers, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("d", [30, *slow(1)])
def test_equal_points_few_points_and_one_cluster(d):
    key = jax.random.key(0)
    of_equal_points = jax.device_get(kmeans(key, np.full((6, d), 2.5, np.float32), 5, where=np.ones(6, bool)))
    assert (of_equal_points.label.tolist(), float(of_equal_points.inertia)) == ([0] * 6, 0.0)
    np.testing.assert_array_equal(of_equal_points.centers, np.full((5, d), 2.5))
    positions = np.arange(6, dtype=np.float32)[:, None] * np.ones((1, d), np.float32)
    of_few_points = jax.device_get(kmeans(key, positions, 5, where=np.arange(6) < 3))
    assert (of_few_points.label.tolist(), float(of_few_points.inertia)) == ([0, 1, 2, -1, -1, -1], 0.0)
    np.testing.assert_allclose(of_few_points.centers[3:], 1, rtol=1e-6)  # the overall mean
    one_cluster = jax.device_get(kmeans(key, positions[:4], 1))
    np.testing.assert_allclose((one_cluster.inertia, one_cluster.centers[0, 0]), (5 * d, 1.5), rtol=1e-5)


def test_every_cluster_is_used_where_points_are_distinct():
    x = np.concatenate([blobs(200, 12, 2, 2, spread=1e-3), blobs(200, 12, 20, 2, spread=1e-3)[..., :2]])
    assert (np.asarray(solve(x, 6, n_init=1).label).max(axis=1) == 5).all()


def test_seeds_are_drawn_in_proportion_to_their_squared_distance():
    """One random number a seed, on a grid: as often as k-means++ says, and never a point that does not count."""
    position, where = jnp.float32([0, 50, 1, 3, 90]), jnp.array([True, False, True, True, False])
    share = np.arange(1, 1001, dtype=np.float32) / 1000  # 1.0 with it
    draws = np.stack([np.full_like(share, 0.2), share], axis=1)[..., None]
    seeds_of = lambda draws: plus_plus(draws, lambda i: (position[i][:, None] - position[None]) ** 2, where)  # noqa: E731
    seeds = np.asarray(jax.jit(jax.vmap(seeds_of))(draws))
    assert (seeds[:, 0] == 0).all()  # the first third of the numbers
    counts = np.bincount(seeds[:, 1], minlength=5)
    assert (counts[[0, 1, 4]] == 0).all()
    np.testing.assert_allclose(counts[[2, 3]], [100, 900], atol=1)  # where a number is on the edge


@pytest.mark.parametrize("d", [40, *slow(2)])
def test_masked_points_never_matter(d):
    x, where = blobs(150, 14, d, 3), np.random.default_rng(1).random((150, 14)) < 0.6
    where[0] = False
    clusterings = solve(np.where(where[..., None], x, np.nan), 3, where=where)
    assert (np.asarray(clusterings.label)[~where] == -1).all()
    assert (np.asarray(clusterings.label)[where] >= 0).all()
    assert np.isfinite(clusterings.centers).all()
    for case in range(0, 150, 15):
        counted_points = x[case][where[case]]
        if len(counted_points) > 3:
            expected = scikit_learn(counted_points, 3, 10)
            np.testing.assert_allclose(
                clusterings.inertia[case], expected, rtol=1e-3
            )  # well separated: both are optimal


@pytest.mark.slow
def test_models_cluster_as_their_flat_parameters():
    x = blobs(1, 12, 50, 3)[0]
    stacked = {"a": {"w": x[:, :48].reshape(12, 6, 8)}, "b": {"w": x[:, 48:]}, "batch_stats": {"a": {"m": x[:, :1]}}}
    of_flat, of_models = (jax.device_get(kmeans(jax.random.key(1), models, 3)) for models in (x, stacked))
    np.testing.assert_array_equal(of_flat.label, of_models.label)
    np.testing.assert_allclose(
        of_models.centers["a"]["w"].reshape(3, 48), of_flat.centers[:, :48], rtol=1e-5, atol=1e-6
    )
    assert of_models.centers["batch_stats"]["a"]["m"].shape == (3, 1)


@given(st.integers(0, 10**6))
def test_symmetries_and_local_optimality(seed):
    rng = np.random.default_rng(seed)
    x, order, key = rng.normal(size=(15, 3)).astype(np.float32), rng.permutation(15), jax.random.key(seed)
    solve = lambda x: kmeans(key, x, 3, n_init=200)  # noqa: E731  # restarts enough to reach the optimum
    clustering = solve(x)
    distance = ((x[:, None] - np.asarray(clustering.centers)) ** 2).sum(axis=-1)
    np.testing.assert_allclose(distance[np.arange(15), clustering.label], distance.min(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(clustering.inertia, distance.min(axis=1).sum(), rtol=1e-5)
    np.testing.assert_allclose(solve(x[order]).inertia, clustering.inertia, rtol=0.05)  # other draws
    np.testing.assert_array_equal(solve(4 * x).label, clustering.label)


def test_zero_steps_return_the_seeding_and_others_are_lloyds(renumber):
    x = blobs(1, 200, 2, 6, spread=1)[0]
    actual = np.mean([kmeans(jax.random.key(i), x, 6, n_init=1, n_steps=0).inertia for i in range(40)])
    expected = []
    for i in range(40):
        seeds, _ = kmeans_plusplus(x, 6, random_state=i)
        expected.append(inertia_of(x, ((x[:, None] - seeds) ** 2).sum(axis=-1).argmin(axis=1)))
    assert actual <= 1.1 * np.mean(
        expected
    )  # greedy seeding as scikit-learn's; the means of 40 differ by a few per cent
    # The draws of the only restart: of three for each seed the one that lowers the sum most is kept.
    draws = 1 - jax.random.uniform(jax.random.key(0), (6, 3))
    squared_distance = jnp.asarray(((x[:, None] - x) ** 2).sum(axis=-1))
    seeds = x[plus_plus(draws, lambda i: squared_distance[i], jnp.ones(200, bool))]
    label = np.array(renumber(((x[:, None] - seeds) ** 2).sum(axis=-1).argmin(axis=1)))
    assert kmeans(jax.random.key(0), x, 6, n_init=1, n_steps=0).label.tolist() == label.tolist()
    for n_steps in (1, 2):
        means = np.stack([x[label == k].mean(axis=0) for k in range(6)])
        label = renumber(((x[:, None] - means) ** 2).sum(axis=-1).argmin(axis=1))
        assert kmeans(jax.random.key(0), x, 6, n_init=1, n_steps=n_steps).label.tolist() == label
        label = np.array(label)


@pytest.mark.slow
def test_restarts_one_after_another_are_those_side_by_side():
    """As a CPU runs them, and an accelerator."""
    x, is_counted = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)), jnp.float32), jnp.ones(40, bool)

    @jax.jit
    def restarts(x):
        geometry = _direct(x, is_counted, 4)
        inertias = [
            _best_restart(jax.random.key(0), geometry, is_counted, 4, 5, jnp.int32(100), in_loop)
            for in_loop in (False, True)
        ]
        return jnp.stack(inertias)

    side_by_side, one_after_another = restarts(x)
    assert len(set(side_by_side.tolist())) == 4
    np.testing.assert_array_equal(side_by_side, one_after_another)


def test_gradient_with_labels_held():
    x = np.float32([[0, 0], [2, 0], [10, 0], [14, 0]])
    for padded_x in (x, np.pad(x, ((0, 0), (0, 6)))):
        gradient = np.asarray(inertia_gradient(padded_x)[1])  # 2 (x_i - mean)
        np.testing.assert_allclose(gradient[:, 0], [-2, 2, -4, 4], rtol=1e-5)


def test_one_program_and_inside_scan(traced_once):
    """Under `scan` as alone, and traced once for all keys, points, masks and numbers of steps."""
    x, where = blobs(3, 10, 4, 2), np.arange(10) > np.int32([-1, 2, 3])[:, None]
    keys, steps = jax.random.split(jax.random.key(0), 3), np.int32([5, 50, 100])
    traced = traced_once(
        lambda *arguments: jax.lax.scan(
            lambda c, case: (c, kmeans(*case[:2], 2, n_init=3, n_steps=case[2], where=case[3]).label), 0, arguments
        )
    )
    for order in (np.arange(3), np.array([1, 2, 0])):
        _, label = traced(keys[order], x[order], steps[order], where[order])
        expected = [kmeans(keys[i], x[i], 2, n_init=3, n_steps=steps[i], where=where[i]).label for i in order]
        np.testing.assert_array_equal(label, expected)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="n_clusters=0 is not positive; choose n_clusters >= 1"):
        kmeans(jax.random.key(0), jnp.ones((3, 2)), 0)
    with pytest.raises(ValueError, match="n_init=0 is not positive; choose n_init >= 1"):
        kmeans(jax.random.key(0), jnp.ones((3, 2)), 2, n_init=0)
    with pytest.raises(ValueError, match="where has shape"):
        kmeans(jax.random.key(0), jnp.ones((3, 2)), 2, where=jnp.ones(2, bool))
