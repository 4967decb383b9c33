from functools import cache
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy as scipy_tree
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import squareform

from fljax.server.labels import canonical
from fljax.server.linkage import Method, linkage
from fljax.server.tree_cuts import cut, cut_k
from tests.slow import slow, slow_rows

N, CASES = 10, 350
"""Of most tests, which share their programs."""
SHAPES = [(2, 50), (3, 100), (N, CASES), (30, 500)]  # a thousand cases in all


def scipy_linkage(distance, method):
    return scipy_tree.linkage(squareform(distance.astype(float), checks=False), method)


@cache
def _jitted_linkage(method):
    return jax.jit(jax.vmap(lambda d, *masks: linkage(d, method, *masks)))


def vmapped(distance, method, *masks):
    return np.asarray(_jitted_linkage(method)(distance, *masks))


vmapped_cut, vmapped_cut_k = jax.jit(jax.vmap(cut)), jax.jit(jax.vmap(cut_k))


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize(("n", "cases"), [SHAPES[2], *slow_rows(*SHAPES[:2], *SHAPES[3:])])
def test_equals_scipy(method, n, cases, distances):
    distance = distances("blobs", cases, n)
    tree = vmapped(distance, method)
    for case in range(cases):
        expected = scipy_linkage(distance[case], method)
        np.testing.assert_allclose(tree[case][:, 2], expected[:, 2], rtol=1e-5)
        assert (tree[case][:, [0, 1, 3]] == expected[:, [0, 1, 3]]).all()


@pytest.mark.parametrize("kind", ["ties", *slow("integers", "equal")])
@pytest.mark.parametrize("method", ["single", "complete"])  # a mean of ties is rounded differently in float64
def test_heights_equal_scipy_with_ties(method, kind, distances):
    distance = distances(kind, CASES, N)
    tree = vmapped(distance, method)
    for case in range(CASES):
        np.testing.assert_array_equal(tree[case][:, 2], scipy_linkage(distance[case], method)[:, 2].astype(np.float32))
        assert scipy_tree.is_valid_linkage(tree[case].astype(float))


@pytest.mark.parametrize("kind", ["ties", "equal", *slow("integers")])
@pytest.mark.parametrize("method", get_args(Method))
def test_every_merge_joins_the_nearest_two_clusters(method, kind, distances):
    reduce_distances = {"single": np.min, "complete": np.max, "average": np.mean}[method]
    distance = distances(kind, CASES, N)
    for case, tree in enumerate(vmapped(distance, method)[:30]):
        clusters = {i: [i] for i in range(N)}
        for i, (a, b, height, size) in enumerate(tree):
            cluster_distances = {
                (p, q): reduce_distances(distance[case][np.ix_(clusters[p], clusters[q])].astype(float))
                for p in clusters
                for q in clusters
                if p < q
            }
            np.testing.assert_allclose([cluster_distances[a, b], height], min(cluster_distances.values()), rtol=1e-6)
            clusters[N + i] = clusters.pop(int(a)) + clusters.pop(int(b))
            assert size == len(clusters[N + i])


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("kind", ["ties", *slow("blobs")])
def test_cut_equals_fcluster(method, kind, distances, renumber):
    rng = np.random.default_rng(0)
    tree = vmapped(distances(kind, CASES, N), method)
    height = rng.choice(np.array([0.0, 0.5, 1.0, 2.0, 5.0, 100.0], np.float32), CASES)
    height[:50] = tree[:50, 6, 2]  # exactly at a merge: it is made
    actual = np.asarray(vmapped_cut(tree, height))
    for case in range(CASES):
        expected = scipy_tree.fcluster(tree[case].astype(float), float(height[case]), "distance")
        assert actual[case].tolist() == renumber(expected)


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_cut_k_equals_cut_tree(method, distances, renumber):
    tree = vmapped(distances("blobs", CASES, N), method)
    k = np.arange(CASES, dtype=np.int32) % N + 1
    actual = np.asarray(vmapped_cut_k(tree, k))
    for case in range(CASES):
        expected = scipy_tree.cut_tree(tree[case].astype(float), n_clusters=k[case])[:, 0]
        assert actual[case].tolist() == renumber(expected)


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_masked_clients_never_matter(method, distances, renumber):
    rng = np.random.default_rng(1)
    distance, where = distances("blobs", CASES, N), rng.random((CASES, N)) < 0.6
    where[:, :2] = True
    with_nan = np.where(where[:, :, None] & where[:, None], distance, np.nan)
    tree = vmapped(with_nan, method, where)
    label = np.asarray(vmapped_cut_k(tree, np.full(CASES, 2, np.int32), where))
    label_at_inf = np.asarray(vmapped_cut(tree, np.full(CASES, np.inf, np.float32), where))
    for case, mask in enumerate(where):
        expected = scipy_linkage(distance[case][np.ix_(mask, mask)], method)
        np.testing.assert_allclose(tree[case][: mask.sum() - 1, 2], expected[:, 2], rtol=1e-5)
        assert np.isinf(tree[case][mask.sum() - 1 :, 2]).all()
        assert label[case][mask].tolist() == renumber(scipy_tree.cut_tree(expected, n_clusters=2)[:, 0])
        assert (label_at_inf[case] == np.where(mask, 0, -1)).all()
    assert (label[~where] == -1).all()


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_within_clusters_equals_each_cluster_by_itself(method, distances, renumber):
    rng = np.random.default_rng(2)
    distance, outer_label = distances("blobs", CASES, N), rng.integers(-1, 3, (CASES, N)).astype(np.int32)
    tree = vmapped(distance, method, np.ones((CASES, N), bool), outer_label)
    low_label = np.asarray(vmapped_cut(tree, np.full(CASES, 1.5, np.float32)))
    label_of_2 = np.asarray(vmapped_cut_k(tree, np.full(CASES, 2, np.int32), None, outer_label))
    for case in range(100):
        in_no_cluster = np.flatnonzero(outer_label[case] < 0)
        assert all((low_label[case] == low_label[case][i]).sum() == 1 for i in in_no_cluster)
        for cluster in range(3):
            members = np.flatnonzero(outer_label[case] == cluster)
            if len(members) > 1:
                inner_tree = scipy_linkage(distance[case][np.ix_(members, members)], method)
                expected = scipy_tree.fcluster(inner_tree, 1.5, "distance")
                assert renumber(low_label[case][members]) == renumber(expected)
                assert renumber(label_of_2[case][members]) == renumber(
                    scipy_tree.cut_tree(inner_tree, n_clusters=2)[:, 0]
                )
                assert set(low_label[case][members]).isdisjoint(np.delete(low_label[case], members))
    label_at_inf = np.asarray(vmapped_cut(tree, np.full(CASES, np.inf, np.float32)))
    label_with_singletons = np.where(outer_label < 0, 10 + np.arange(N), outer_label)
    assert label_at_inf.tolist() == [renumber(label) for label in label_with_singletons]


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_one_client(method):
    tree = linkage(jnp.zeros((1, 1)), method)
    assert tree.shape == (0, 4)
    assert cut(tree, 1.0).tolist() == cut_k(tree, 1).tolist() == [0]
    assert cut_k(tree, 2, within=jnp.zeros(1, jnp.int32)).tolist() == [0]


def test_a_mean_of_equal_distances_is_not_lower_for_rounding():
    # (2 a + a) / 3 is below a in float32, here and there: a merge would come before those it is made of.
    distance = (1 - np.eye(N, dtype=np.float32)) * np.random.default_rng(0).random((CASES, 1, 1), np.float32)
    tree = vmapped(distance, "average")
    assert all(scipy_tree.is_valid_linkage(case_tree.astype(float)) for case_tree in tree)
    assert (tree[:, :, 2] >= distance[:, :1, 1]).all()


def test_hand_values():
    # Places 0, 1, 4: the first two at 1; then means (4 + 3) / 2, the nearest 3 and the farthest 4.
    position = np.float32([0, 4, 1])
    distance = np.abs(position[:, None] - position[None, :])
    for method, top_height in {"average": 3.5, "single": 3.0, "complete": 4.0}.items():
        assert linkage(distance, method).tolist() == [[0, 2, 1, 2], [1, 3, top_height, 3]]


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_long_chains_of_merges(method):
    # Gaps that grow: every merge adds one client to the same cluster, the deepest tree there is.
    position = np.cumsum(np.arange(1, 201, dtype=np.float32))
    distance = np.abs(position[:, None] - position[None])
    tree = np.asarray(linkage(jnp.asarray(distance), method))
    np.testing.assert_allclose(tree[:, 2], scipy_linkage(distance, method)[:, 2], rtol=1e-5)
    assert (np.asarray(cut(tree, np.inf)) == 0).all()


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
@given(seed=st.integers(0, 10_000), order=st.permutations(range(9)), scale=st.sampled_from([0.25, 1.0, 512.0]))
def test_permutation_and_scale(method, seed, order, scale):
    position = np.random.default_rng(seed).normal(size=(9, 3))
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1).astype(np.float32)
    order = np.array(order)
    permuted_distance = np.float32(scale) * distance[np.ix_(order, order)]
    tree, permuted_tree = (np.asarray(linkage(d, method)) for d in (distance, permuted_distance))
    np.testing.assert_allclose(permuted_tree[:, 2], scale * tree[:, 2], rtol=1e-6)
    assert cut_k(permuted_tree, 4).tolist() == canonical(np.asarray(cut_k(tree, 4))[order]).tolist()


@given(st.integers(0, 10_000), st.floats(0, 3), st.floats(0, 3))
def test_a_lower_cut_refines_a_higher_one(seed, a, b):
    position = np.random.default_rng(seed).normal(size=(9, 2)).astype(np.float32)
    tree = linkage(jnp.asarray(np.linalg.norm(position[:, None] - position[None], axis=-1)), "average")
    lower_label, higher_label = (np.asarray(cut(tree, jnp.float32(h))) for h in sorted((a, b)))
    assert len({*zip(lower_label.tolist(), higher_label.tolist(), strict=True)}) == len(set(lower_label.tolist()))


def test_one_trace_for_all_numbers_and_inside_scan(distances, traced_once):
    def step(distance, arguments):
        where, height, k = arguments
        tree = linkage(distance, "average", where)
        return distance, (cut(tree, height, where), cut_k(tree, k, where))

    traced = traced_once(lambda distance, *arguments: jax.lax.scan(step, distance, arguments)[1])
    distance, where = distances("blobs", CASES, N), np.stack([np.arange(N) != i % N for i in range(CASES)])
    height, k = np.resize(np.float32([0.5, 1, 2]), CASES), np.resize(np.int32([1, 2, 3]), CASES)
    tree = vmapped(np.broadcast_to(distance[0], distance.shape), "average", where)
    expected = np.asarray(vmapped_cut(tree, height, where)), np.asarray(vmapped_cut_k(tree, k, where))
    for rows in (slice(0, 3), slice(3, 6)):
        actual = traced(distance[0], where[rows], height[rows], k[rows])
        np.testing.assert_array_equal(actual, [labels[rows] for labels in expected])


def test_errors_name_the_field():
    with pytest.raises(ValueError, match="method='ward' is unknown; choose one of 'single', 'complete', 'average'"):
        linkage(jnp.zeros((2, 2)), "ward")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"distance has shape \(2,\)"):
        linkage(jnp.zeros(2), "single")
    with pytest.raises(ValueError, match=r"tree has shape \(2, 3\)"):
        cut(jnp.zeros((2, 3)), 1.0)
    with pytest.raises(ValueError, match=r"within has shape \(2,\)"):
        cut_k(jnp.zeros((2, 4)), 1, within=jnp.zeros(2, jnp.int32))


@pytest.mark.parametrize("method", get_args(Method))
def test_a_distance_that_is_none_is_the_farthest(method):
    position = np.array([0.0, 1.0, 50.0, 4.0, 6.0])
    distance = np.abs(position[:, None] - position[None, :]).astype(np.float32)
    distance[2] = distance[:, 2] = np.nan
    other_clients = np.delete(np.arange(5), 2)
    tree_with_nan, tree_of_others = (
        linkage(distance, method),
        linkage(distance[np.ix_(other_clients, other_clients)], method),
    )
    np.testing.assert_allclose(tree_with_nan[:3, 2], tree_of_others[:, 2])
    assert np.isinf(tree_with_nan[3, 2])
    np.testing.assert_array_equal(cut_k(tree_with_nan, 2), [0, 0, 1, 0, 0])
