import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN

from fljax.server.dbscan import dbscan
from fljax.server.labels import canonical
from tests.slow import slow_rows

vmapped = jax.jit(jax.vmap(dbscan))


def scikit_learn(distance, eps, min_samples):
    return DBSCAN(eps=float(eps), min_samples=int(min_samples), metric="precomputed").fit(distance).labels_


@pytest.mark.parametrize("kind", ["blobs", "ties", "integers", "equal"])
@pytest.mark.parametrize(("n", "cases"), [(15, 100), *slow_rows((1, 10), (2, 40), (7, 150), (25, 150))])
def test_equals_scikit_learn(kind, n, cases, distances, renumber):
    rng = np.random.default_rng(n)
    distance = distances(kind, cases, n)
    eps = rng.choice(np.array([0.25, 0.5, 1, 1.5, 2, 3], np.float32), cases)
    min_samples = rng.integers(1, 6, cases).astype(np.int32)
    actual = np.asarray(vmapped(distance, eps, min_samples, np.ones((cases, n), bool)))
    for case in range(cases):
        expected = scikit_learn(distance[case], eps[case], min_samples[case])
        assert actual[case].tolist() == renumber(expected)


@pytest.mark.parametrize("kind", ["blobs", "ties"])
def test_masked_clients_never_matter(kind, distances, renumber):
    rng = np.random.default_rng(1)
    distance, where = distances(kind, 100, 15), rng.random((100, 15)) < 0.7
    with_nan = np.where(where[:, :, None] & where[:, None] & ~np.eye(15, dtype=bool), distance, np.nan)
    actual = np.asarray(vmapped(with_nan, np.ones(100, np.float32), np.full(100, 3, np.int32), where))
    assert (actual[~where] == -1).all()
    for case in range(100):
        mask = where[case]
        if mask.any():
            expected = scikit_learn(distance[case][np.ix_(mask, mask)], 1.0, 3)
            assert actual[case][mask].tolist() == renumber(expected)


def test_within_clusters_equals_each_cluster_by_itself(distances, renumber):
    rng = np.random.default_rng(2)
    distance, outer_label = distances("blobs", 100, 15), rng.integers(-1, 3, (100, 15))
    run = jax.jit(jax.vmap(lambda d, within: dbscan(d, 1.5, 2, within=within)))
    actual = np.asarray(run(distance, outer_label.astype(np.int32)))
    for case in range(100):
        expected = np.full(15, -1)
        for cluster in range(3):
            members = np.flatnonzero(outer_label[case] == cluster)
            if len(members):
                inner_label = scikit_learn(distance[case][np.ix_(members, members)], 1.5, 2)
                expected[members] = np.where(inner_label >= 0, 100 * cluster + inner_label, -1)
        assert actual[case].tolist() == renumber(expected)


def test_border_client_joins_the_cluster_discovered_first():
    # Client 0 is no core (3 neighbours) and at distance 2 from core 1 of {1, 2, 6} and core 3 of {3, 4, 5}.
    position = np.float32([5.0, 7.0, 7.5, 3.0, 2.5, 2.75, 7.25])
    distance = np.abs(position[:, None] - position[None, :])
    assert dbscan(distance, 2.0, 4).tolist() == [0, 0, 0, 1, 1, 1, 0]


def test_long_chain_is_one_cluster():
    position = np.random.default_rng(0).permutation(500).astype(np.float32)
    assert (np.asarray(dbscan(np.abs(position[:, None] - position[None, :]), 1.0, 2)) == 0).all()


def test_edges():
    for distance, eps, least, expected in (
        ([[0]], 0.5, 1, [0]),
        ([[0]], 0.5, 2, [-1]),
        (np.ones((3, 3)), np.inf, 3, [0, 0, 0]),
        (1 - np.eye(3), 0.0, 1, [0, 1, 2]),
    ):
        assert dbscan(np.float32(distance), eps, least).tolist() == expected
    assert dbscan(np.full((2, 2), np.nan, np.float32), 1.0, 1, np.zeros(2, bool)).tolist() == [-1, -1]


@given(st.integers(0, 10_000), st.permutations(range(9)), st.floats(0.5, 2.5))
def test_permuting_clients_permutes_core_partition(seed, order, eps):
    # With min_samples = 2 every clustered client is a core, so no border client depends on the order.
    position = np.random.default_rng(seed).normal(size=(9, 2)) * 2
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1).astype(np.float32)
    order = np.array(order)
    permuted_label, label = (
        np.asarray(dbscan(d, np.float32(eps), 2)) for d in (distance[np.ix_(order, order)], distance)
    )
    assert permuted_label.tolist() == canonical(label[order]).tolist()


@given(st.integers(0, 10_000), st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_distance_and_eps_changes_nothing(seed, scale):
    position = np.random.default_rng(seed).normal(size=(9, 2)).astype(np.float32)
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1).astype(np.float32)
    scaled_label = dbscan(distance * np.float32(scale), np.float32(0.75 * scale), 3)
    assert scaled_label.tolist() == dbscan(distance, np.float32(0.75), 3).tolist()


def test_one_trace_for_all_numbers_and_inside_scan(distances, traced_once):
    distance, eps = distances("blobs", 1, 15)[0], np.resize(np.float32([0.5, 1, 2]), 100)
    min_samples, where = np.resize(np.int32([1, 2, 3]), 100), np.arange(15) != np.arange(100)[:, None] % 15
    expected = np.asarray(vmapped(np.broadcast_to(distance, (100, 15, 15)), eps, min_samples, where))
    step = lambda carry, numbers: (carry, dbscan(distance, *numbers))  # noqa: E731
    traced = traced_once(lambda *numbers: jax.lax.scan(step, 0, numbers)[1])
    for rows in (slice(0, 3), slice(4, 7)):
        np.testing.assert_array_equal(traced(eps[rows], min_samples[rows], where[rows]), expected[rows])


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"distance has shape \(2, 3\)"):
        dbscan(jnp.zeros((2, 3)), 1.0, 1)
    with pytest.raises(ValueError, match=r"where has shape \(3,\)"):
        dbscan(jnp.zeros((2, 2)), 1.0, 1, jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"within has shape \(1,\)"):
        dbscan(jnp.zeros((2, 2)), 1.0, 1, within=jnp.zeros(1, jnp.int32))
