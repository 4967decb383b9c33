"""Primitives on types narrower than float32, on whole numbers, beside NaN that does not count and far outliers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy as scipy_tree
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score, davies_bouldin_score, silhouette_score
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances
from sklearn.preprocessing import MinMaxScaler

from fljax.server import (
    best_bipartition,
    bipartition,
    clip_norm,
    cluster_mean,
    coordinate_median,
    cross_squared_l2,
    davies_bouldin,
    dbscan,
    distance_gap,
    gaussian_rewards,
    geometric_median,
    hopkins,
    inherit,
    js_divergence,
    kmeans,
    krum,
    linkage,
    model_discrepancy,
    pairwise_correlation,
    pairwise_cosine,
    pairwise_l2,
    robust_cluster_mean,
    robust_kmeans,
    row_affinity,
    separation_gap,
    shared_mask,
    silhouette,
    spectral_labels,
    trimmed_mean,
    weighted_mean,
)
from fljax.tree import all_finite
from tests.slow import slow

NOBODY = {"fc": jnp.zeros((0, 3, 2))}


@pytest.mark.parametrize(
    "call",
    [
        lambda: weighted_mean(NOBODY, jnp.zeros(0)),
        lambda: trimmed_mean(NOBODY, 0.1, jnp.zeros(0, bool)),
        lambda: krum(NOBODY, 0, jnp.zeros(0, bool)),
        lambda: pairwise_l2(NOBODY),
        lambda: kmeans(jax.random.key(0), NOBODY, 2),
        lambda: js_divergence(jnp.zeros((0, 4, 2))),
    ],
    ids=["weighted_mean", "trimmed_mean", "krum", "pairwise_l2", "kmeans", "js_divergence"],
)
def test_nobody_is_refused(call):
    with pytest.raises(ValueError, match="has no rows, one per client; give at least one"):
        call()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_a_linkage_of_more_nodes_than_the_type_counts(dtype):
    # In bfloat16 whole numbers end at 256, and three clients at mean height 3.5 are none of int32's.
    position = np.random.default_rng(0).permutation(300).astype(np.float32) * 2
    position[150:] += 900
    distance = np.abs(position[:, None] - position[None])
    rounded = np.asarray(jnp.asarray(distance, dtype).astype(jnp.float32))
    actual = np.asarray(linkage(jnp.asarray(distance, dtype), "complete"))
    expected = scipy_tree.linkage(squareform(rounded, checks=False), "complete")
    np.testing.assert_allclose(actual[:, 2], expected[:, 2], rtol=1e-5)
    assert actual.dtype == np.float32
    assert actual[-1, 3] == 300
    assert linkage(jnp.array([[0, 1, 4], [1, 0, 3], [4, 3, 0]]), "average").tolist()[1][2] == 3.5


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16])
def test_distances_of_numbers_whose_squares_leave_their_type(dtype):
    x = np.random.default_rng(1).integers(0, 200, (5, 7)).astype(dtype)
    x = x * np.array(300, dtype) if dtype != np.uint8 else x
    x = np.where(np.isfinite(x), x, 0).astype(dtype)
    float64_x = x.astype(np.float64)
    np.testing.assert_allclose(pairwise_cosine(x), cosine_similarity(float64_x), atol=1e-5)
    np.testing.assert_allclose(pairwise_l2(x), euclidean_distances(float64_x), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(
        cross_squared_l2(x, x[:2]), np.square(float64_x[:, None] - float64_x[None, :2]).sum(-1), rtol=1e-5
    )


def test_models_of_several_types():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(6, 3)).astype(np.float32), 1e3 * rng.normal(size=(6, 4)).astype(np.float32)
    models = {"a": jnp.asarray(a, jnp.bfloat16), "b": jnp.asarray(b)}
    float64_x = np.concatenate([np.asarray(models["a"].astype(jnp.float32)), b], axis=1).astype(np.float64)
    np.testing.assert_allclose(pairwise_l2(models), euclidean_distances(float64_x), rtol=1e-4)
    chosen = krum({"a": jnp.asarray(b[:, :2], jnp.float16)}, 1)["a"]
    assert any((chosen == row).all() for row in jnp.asarray(b[:, :2], jnp.float16))  # one of them, and not their mean


def test_labels_and_leaves_of_other_whole_types():
    x = np.arange(6, dtype=np.float32)[:, None]
    label = np.array([0, 1, 255, 255, 0, 1])
    empty = jnp.full((300, 1), 9.0)
    for kind in (np.uint8, np.int16, np.int32):
        means = np.asarray(cluster_mean(x, jnp.ones(6), jnp.asarray(label.astype(kind)), empty))
        np.testing.assert_array_equal(means[[0, 1, 255], 0], [2, 3, 2.5])
        assert (np.delete(means, [0, 1, 255]) == 9).all()
    noise = np.asarray(cluster_mean(x, jnp.ones(6), jnp.asarray(np.int8([-1] * 6)), empty))
    assert (noise == 9).all()
    counters = {"seen": jnp.array([3, 4, 10], jnp.int32)}
    np.testing.assert_array_equal(weighted_mean(counters, jnp.array([0.5, 0.5, 0.25]))["seen"], round(6 / 1.25))


def test_a_trimmed_mean_whose_sum_leaves_float16():
    x = np.full((9, 1), 60000, np.float16)
    np.testing.assert_array_equal(trimmed_mean(x, 0.1), x[0])


@pytest.mark.parametrize("far_value", [np.nan, 1e20, 1e38])
@pytest.mark.parametrize("center", ["median", "trimmed"])
def test_one_client_far_out_does_not_mix_the_clusters(key, far_value, center):
    rng = np.random.default_rng(3)
    group = np.arange(40) % 4
    x = (10 * np.eye(4)[group] + rng.normal(size=(40, 4))).astype(np.float32)
    x[5] = far_value
    clustering = robust_kmeans(key, x, 4, center)
    assert clustering.label[5] == -1
    assert adjusted_rand_score(np.delete(group, 5), np.delete(np.asarray(clustering.label), 5)) == 1
    assert np.isfinite(clustering.inertia)


@pytest.mark.slow
def test_nan_of_those_that_do_not_count():
    losses = jnp.array([[1.0], [2.0], [3.0], [jnp.nan]])
    is_member = jnp.array([True, True, True, False])
    is_peer = is_member[:, None] & is_member[None, :]
    expected_rewards = gaussian_rewards(losses[:3], jnp.ones((3, 1), bool), jnp.ones((3, 3), bool))
    np.testing.assert_array_equal(gaussian_rewards(losses, jnp.ones((4, 1), bool), is_peer)[:3], expected_rewards)
    reward = np.random.default_rng(4).random((4, 4)).astype(np.float32)
    expected = row_affinity(reward[:3, :3], is_member[:3], 1.0)
    for row, column in ((3, slice(None)), (slice(None), 3)):
        with_nan = reward.copy()
        with_nan[row, column] = np.nan
        np.testing.assert_allclose(row_affinity(with_nan, is_member, 1.0)[:3, :3], expected, rtol=1e-6)


def test_halves_that_have_nothing_in_common():
    similarity = jnp.array([[1.0, 0.5, -jnp.inf], [0.5, 1.0, -jnp.inf], [-jnp.inf, -jnp.inf, 1.0]])
    split = best_bipartition(similarity, jnp.array([0, 0, 0]))
    assert split.side.tolist() == [False, False, True]
    np.testing.assert_array_equal(split.cross, [-jnp.inf] * 3)
    np.testing.assert_array_equal(best_bipartition(similarity, jnp.array([0, 1, 2])).cross, [jnp.inf] * 3)


def test_hopkins_of_points_close_together(key):
    x = np.random.default_rng(5).normal(size=(30, 2)).astype(np.float32)
    np.testing.assert_allclose(hopkins(key, 1e-14 * x, 5), hopkins(key, x, 5), rtol=1e-4)


def test_weights_of_float64_keep_their_digits():
    with jax.enable_x64(True):
        x, weight = np.array([1.0, 2.0, 40.0])[:, None], np.array([0.1, 0.2, 0.4])
        np.testing.assert_allclose(weighted_mean(jnp.asarray(x), jnp.asarray(weight)), [16.5 / 0.7], rtol=1e-14)


def test_a_point_that_does_not_count_may_be_nan():
    x, label = jnp.array([[0.0], [1.0], [4.0], [5.0], [jnp.nan]]), jnp.array([0, 0, 1, 1, -1])
    # (s_1 + s_2) / |c_1 - c_2| is 1 over 4, each s of slope 1/2 and the distance of slope -1/2 or 1/2 in each point.
    score, gradient = jax.value_and_grad(davies_bouldin)(x, label, 2)
    assert score == 0.25
    np.testing.assert_allclose(gradient[:, 0], [-0.09375, 0.15625, -0.15625, 0.09375, 0], atol=1e-6)


@pytest.mark.parametrize("loss", [0.7, 100.3])
def test_clients_of_equal_losses_are_all_rewarded(loss):
    """Of seven such losses the mean of float32 is another number."""
    losses, is_peer = jnp.full((7, 2), loss, jnp.float32), jnp.ones((7, 7), bool)
    np.testing.assert_array_equal(gaussian_rewards(losses, jnp.ones((7, 2), bool), is_peer), 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16])
def test_davies_bouldin_of_as_many_points_as_the_type_does_not_count(dtype):
    x, label = np.random.default_rng(6).integers(0, 120, (256, 2)), np.arange(256) % 2
    x[label == 0] //= 4
    x = x.astype(dtype) * np.array(200 if dtype == np.float16 else 1, dtype)
    score = davies_bouldin(jnp.asarray(x), jnp.asarray(label), 2)
    np.testing.assert_allclose(score, davies_bouldin_score(x.astype(float), label), rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, *slow(jnp.int32, jnp.uint8)])
def test_a_geometric_median_of_narrow_types_is_that_of_float32(dtype):
    x = np.random.default_rng(7).integers(0, 20, (9, 3)).astype(np.float32)
    x[4] = 250
    float32_median = geometric_median(jnp.asarray(x))
    actual = geometric_median({"a": jnp.asarray(x, dtype), "b": jnp.asarray(x)})
    assert actual["a"].dtype == dtype
    median_of_float32 = geometric_median({"a": jnp.asarray(x), "b": jnp.asarray(x)})
    expected = median_of_float32["a"].astype(dtype) if dtype == jnp.bfloat16 else np.round(float32_median)
    np.testing.assert_array_equal(actual["a"], expected)
    np.testing.assert_allclose(actual["b"], float32_median, rtol=1e-3)


def test_a_radius_beyond_the_type_of_the_distances():
    position = np.array([0, 200, 100], np.uint8)
    distance = jnp.asarray(np.abs(position[:, None].astype(int) - position[None]).astype(np.uint8))
    assert dbscan(distance, 300, 2).tolist() == [0, 0, 0]  # 300 is 44 in a uint8


def test_more_clusters_than_a_uint8_counts():
    new_label = np.arange(300) % 256
    inherited = inherit(
        jnp.arange(300.0), jnp.asarray(np.zeros(300, np.uint8)), jnp.asarray(new_label.astype(np.uint8))
    )
    np.testing.assert_array_equal(inherited, [0.0] * 256 + [*range(256, 300)])


def test_divergence_of_certain_outputs_in_float16():
    outputs = jnp.array([[1, 0], [0, 1]], jnp.float16)
    np.testing.assert_allclose(js_divergence(outputs), np.log(2) * np.array([[0, 1], [1, 0]]), rtol=1e-5)


def test_a_tensor_without_channels():
    with pytest.raises(ValueError, match=r"^fc\['scale'\] is one number, without channels; choose another boundary"):
        shared_mask(("fc",), 0.5, {"fc": {"scale": jnp.float32(1), "kernel": jnp.ones((2, 2))}}, "unit-fraction")


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16])
def test_a_matrix_of_numbers_whose_differences_or_sums_leave_their_type(dtype):
    position = np.concatenate([np.arange(20) % 5, 100 + np.arange(20) % 7])
    distance, group = np.abs(position[:, None] - position[None]), np.repeat([0, 1], 20)
    if dtype == np.float16:
        distance = distance * 300  # of which two hundred leave float16
    typed_distance, label = jnp.asarray(distance.astype(dtype)), jnp.asarray(group)
    np.testing.assert_allclose(
        silhouette(typed_distance, label), silhouette_score(distance, group, metric="precomputed"), rtol=1e-5
    )
    gap = distance[group[:, None] != group[None]].min() - distance[:20, :20].max(initial=distance[20:, 20:].max())
    assert float(distance_gap(typed_distance, label)) == gap
    squares = np.square(distance[:15, :15] % 16)
    expected_correlation = np.corrcoef(distance[:15, :15][np.triu_indices(15, 1)], squares[np.triu_indices(15, 1)])[
        0, 1
    ]
    np.testing.assert_allclose(
        pairwise_correlation(typed_distance[:15, :15], jnp.asarray(squares.astype(dtype))),
        expected_correlation,
        rtol=1e-4,
    )
    similarity = (distance.max() - distance).astype(dtype)
    float64_similarity, is_same_group = similarity.astype(float), group[:, None] == group[None]
    assert (
        float(separation_gap(jnp.asarray(similarity), label))
        == float64_similarity[is_same_group].min() - float64_similarity[~is_same_group].max()
    )
    assert adjusted_rand_score(group, bipartition(jnp.asarray(similarity), jnp.zeros(40, jnp.int32))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype_a", ["float32", *slow("float64")])
def test_wide_models_of_several_types_in_64_bits(key, dtype_a):
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(2, 6, 200_000))
    a[:3], b[:3] = a[:3] + 1, b[:3] + 1
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        dtype_b = "float64" if dtype_a == "float32" else "float32"
        models = {"a": jnp.asarray(a, dtype_a), "b": jnp.asarray(b, dtype_b)}
        float64_x = np.concatenate([np.asarray(models["a"], np.float64), np.asarray(models["b"], np.float64)], axis=1)
        two_models = jax.tree.map(lambda leaf: leaf[:2], models)
        np.testing.assert_allclose(pairwise_l2(models), euclidean_distances(float64_x), rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(pairwise_cosine(models), cosine_similarity(float64_x), atol=1e-9)
        squares = euclidean_distances(float64_x, float64_x[:2]) ** 2
        np.testing.assert_allclose(cross_squared_l2(models, two_models), squares, rtol=1e-9, atol=1e-6)
        float32_x = float64_x[:, :200_000].astype(np.float32)
        np.testing.assert_allclose(
            cross_squared_l2(float32_x, float64_x[:2, :200_000]),
            euclidean_distances(float32_x, float64_x[:2, :200_000]) ** 2,
            atol=1e-2,
        )
        scaled_x = MinMaxScaler().fit_transform(float64_x.T).T
        expected = np.abs(scaled_x[:, None] - scaled_x[None]).mean(axis=-1)
        np.testing.assert_allclose(model_discrepancy(models), expected, atol=1e-6)
        assert kmeans(key, models, 2, n_init=3).label.tolist() == [0, 0, 0, 1, 1, 1]
        clustering = robust_kmeans(key, models, 2, n_init=1, n_steps=0)
        assigned_centers = np.concatenate([clustering.centers["a"], clustering.centers["b"]], axis=1)[clustering.label]
        np.testing.assert_allclose(clustering.inertia, np.square(float64_x - assigned_centers).sum(), rtol=1e-9)
        assert krum(models, 1)["a"].dtype == dtype_a
        assert np.isfinite(geometric_median(models, n_steps=2)["b"]).all()


def test_medians_and_trimmed_means_of_whole_numbers_are_rounded_as_means_are():
    x = jnp.array([[1, -3], [2, -2], [2, -2]])
    np.testing.assert_array_equal(trimmed_mean(x, 0.0), np.round(np.mean(x, axis=0)))
    np.testing.assert_array_equal(weighted_mean(x, jnp.ones(3)), np.round(np.mean(x, axis=0)))
    two_rows = jnp.array([[3, -3], [4, -4]])
    np.testing.assert_array_equal(coordinate_median(two_rows), np.round(np.median(two_rows, axis=0)))


def test_an_update_with_inf_is_clipped_to_nothing_and_one_with_nan_stays_nan():
    x = jnp.array([[jnp.inf, 1.0], [1e20, 1.0], [jnp.nan, 1.0], [3.0, 4.0]])
    np.testing.assert_allclose(clip_norm(x, 1.0), [[0, 0], [0, 0], [np.nan, 1], [0.6, 0.8]], rtol=1e-6)


def test_a_point_with_a_label_past_the_clusters_may_be_nan():
    x = jnp.array([[0.0], [1.0], [4.0], [5.0], [jnp.nan]])
    assert davies_bouldin(x, jnp.array([0, 0, 1, 1, 2]), 2) == 0.25


def test_points_with_nan_are_left_out_of_kmeans_by_a_mask(key):
    x = jnp.array([[0.0], [0.5], [5.0], [5.5], [jnp.nan]])
    clustering = kmeans(key, x, 2, where=all_finite(x))
    assert clustering.label.tolist() == [0, 0, 1, 1, -1]
    np.testing.assert_array_equal(clustering.centers, [[0.25], [5.25]])


def test_rewards_leave_the_callers_arrays_alone():
    is_taken, is_peer = np.ones((3, 1), bool), np.array([[True, True, False]] * 3)
    gaussian_rewards(jnp.array([[1.0], [2.0], [3.0]]), is_taken, is_peer)  # pyright: ignore[reportArgumentType]
    assert is_taken.all()


OP_BY_OP = {
    "median": coordinate_median,
    "trimmed": lambda x: trimmed_mean(x, 0.2),
    "cluster_median": lambda x: robust_cluster_mean(x, jnp.array([0, 0, 0, 1, 1, 1]), x[:2], "median"),
    "robust_kmeans": lambda x: robust_kmeans(jax.random.key(0), x, 2, n_init=1, n_steps=2),
    "linkage": lambda x: linkage(pairwise_l2(x[:4]), "average"),
    "spectral": lambda x: spectral_labels(jnp.exp(-pairwise_l2(x)), 2),
    "dbscan": lambda x: dbscan(pairwise_l2(x), 1.0, 2),
    "silhouette": lambda x: silhouette(pairwise_l2(x), jnp.array([0, 0, 0, 1, 1, 1])),
}


@pytest.mark.parametrize(
    "name",
    ["dbscan", *slow("trimmed", "silhouette", "median", "cluster_median", "robust_kmeans", "linkage", "spectral")],
)
def test_primitives_are_debugged_without_jit(name):
    call = OP_BY_OP[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    with jax.disable_jit():
        eager = call(x)
    chex.assert_trees_all_close(eager, call(x), rtol=1e-5, atol=1e-6)
