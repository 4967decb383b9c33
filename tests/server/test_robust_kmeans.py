import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fljax.server.robust_kmeans import robust_cluster_mean, robust_kmeans
from tests.slow import slow_rows


def center_of(values, center, fraction):
    m = len(values)
    if center == "median":
        return np.median(values, axis=0)
    if m >= 3 and 0 < fraction * m < 1:
        fraction = 1 / m
    return trim_mean(values, fraction + 1e-6, axis=0)


def numpy_steps(x, seeds, center, fraction, n_steps):
    """Ghosh et al.'s loop from given seeds; an empty cluster keeps its center."""
    centers = x[seeds].astype(float)
    for _ in range(n_steps):
        label = ((x[:, None] - centers) ** 2).sum(axis=-1).argmin(axis=1)
        for k in range(len(centers)):
            if (label == k).any():
                centers[k] = center_of(x[label == k].astype(float), center, fraction)
    return centers, ((x[:, None] - centers) ** 2).sum(axis=-1).argmin(axis=1)


def restart_seeds(keys, n, k):
    """(cases, k) seeds of the only restart of each case: the k lowest of n uniform tickets."""
    tickets = jax.jit(jax.vmap(lambda key: jax.random.uniform(jax.random.split(key, 1)[0], (n,))))(keys)
    return np.argsort(np.asarray(tickets))[:, :k]


@pytest.mark.parametrize(
    ("center", "fraction"), [("trimmed", 0.3), *slow_rows(("median", 0.0), ("trimmed", 0.0), ("trimmed", 0.05))]
)
@pytest.mark.parametrize(("n", "k"), [(4, 2), *slow_rows((15, 3))])
def test_equals_numpy_from_the_same_seeds(center, fraction, n, k, renumber):
    rng = np.random.default_rng(n)
    x = (4 * rng.integers(0, 3, (130, n, 1)) + rng.normal(size=(130, n, 3))).astype(np.float32)
    keys, steps = jax.random.split(jax.random.key(1), 130), np.arange(130) % 9
    solve = lambda key, x, steps: robust_kmeans(key, x, k, center, fraction, n_init=1, n_steps=steps)  # noqa: E731
    clusterings = jax.device_get(jax.vmap(solve)(keys, x, steps))
    seeds = restart_seeds(keys, n, k)
    for case in range(130):
        centers, label = numpy_steps(x[case], seeds[case], center, fraction, steps[case])
        assert clusterings.label[case].tolist() == renumber(label)
        assigned_centers = np.asarray(clusterings.centers[case])[np.asarray(clusterings.label[case])]
        np.testing.assert_allclose(assigned_centers, centers[label], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(clusterings.inertia[case], ((x[case] - centers[label]) ** 2).sum(), rtol=1e-4)


@pytest.mark.parametrize("center", ["median", "trimmed"])
def test_one_bad_client_moves_a_center_within_the_honest_range(center):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(8, 4)), 100 + rng.normal(size=(8, 4))]).astype(np.float32)
    x[3] = [40, -40, 40, -40]  # nearer to the first group, and far outside of it
    clustering = jax.device_get(robust_kmeans(jax.random.key(0), x, 2, center, 0.1))
    assert clustering.label.tolist() == [0] * 8 + [1] * 8
    honest_x = np.delete(x[:8], 3, axis=0)
    assert ((clustering.centers[0] >= honest_x.min(axis=0)) & (clustering.centers[0] <= honest_x.max(axis=0))).all()


def test_the_restart_of_least_distances_wins_not_of_least_squares():
    # Beside the right clusters a bad client is 30 off; alone in one it leaves ten others 5 off, 30^2 > 10 5^2.
    x = np.repeat(np.float32([0, 10, 40]), [5, 5, 1])[:, None]
    assert robust_kmeans(jax.random.key(0), x, 2, "median").label.tolist() == [0] * 5 + [1] * 6


@pytest.mark.parametrize("center", ["median", "trimmed"])
def test_edges(center, traced_once):
    key = jax.random.key(0)
    traced = traced_once(
        lambda x, where, fraction: robust_kmeans(key, x, 3, center, fraction, n_steps=4, n_init=5, where=where)
    )
    of_equal_points = traced(np.ones((4, 2), np.float32), np.ones(4, bool), 0.1)
    assert (of_equal_points.label.tolist(), float(of_equal_points.inertia)) == ([0, 0, 0, 0], 0)
    x = np.float32([[0, 0], [9, 9], [np.nan, 1], [9, 9]])
    of_three_points = jax.device_get(traced(x, np.arange(4) != 2, 0.3))
    assert of_three_points.label.tolist() == [0, 1, -1, 1]
    np.testing.assert_array_equal(of_three_points.centers[:2], [[0, 0], [9, 9]])
    of_two_points = jax.device_get(traced(x + 1, np.arange(4) % 3 == 0, 0.3))
    assert of_two_points.label.tolist() == [0, -1, -1, 1]
    assert of_two_points.centers[2].tolist() in [[1, 1], [10, 10]]  # a point again
    means = robust_cluster_mean(np.ones((2, 1)), np.zeros(2, int), np.float32([[9], [7]]), center)
    np.testing.assert_array_equal(means, [[1], [7]])
    of_no_points = traced(x * np.float32(np.nan), np.zeros(4, bool), 0.3)
    assert of_no_points.label.tolist() == [-1] * 4
    assert np.isfinite(of_no_points.centers).all()
    with pytest.raises(ValueError, match="center='mean' is unknown; choose one of 'median', 'trimmed'"):
        robust_kmeans(key, x, 2, "mean")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_scaling_changes_no_label_and_models_equal_flat(seed):
    x, key = np.random.default_rng(seed).normal(size=(9, 4)).astype(np.float32), jax.random.key(seed)
    models = {"a": x[:, :1], "b": x[:, 1:].reshape(9, 3, 1)}
    clustering, of_scaled, of_models = (
        jax.device_get(robust_kmeans(key, points, 2, n_init=3)) for points in (x, 2 * x, models)
    )
    np.testing.assert_array_equal(of_scaled.label, clustering.label)
    np.testing.assert_array_equal(of_models.label, clustering.label)
    np.testing.assert_array_equal(of_models.centers["b"][..., 0], clustering.centers[:, 1:])


def test_medians_of_clusters_are_one_program_however_often_they_are_asked_for():
    x, label = np.arange(12, dtype=np.float32).reshape(6, 2), np.int32([0, 0, 1, 1, 0, 1])
    compiled = []

    def record_compilation(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    robust_cluster_mean(x, label, x[:2], "trimmed", 0.1)
    jax.monitoring.register_event_duration_secs_listener(record_compilation)
    try:
        actual = robust_cluster_mean(x + 1, label, x[:2], "trimmed", 0.4)
    finally:
        jax.monitoring.unregister_event_duration_listener(record_compilation)
    assert compiled == []
    np.testing.assert_array_equal(actual, [[3, 4], [7, 8]])
    with pytest.raises(ValueError, match=r"^fraction=0.6 is out of its range"):
        robust_cluster_mean(x, label, x[:2], "trimmed", 0.6)
