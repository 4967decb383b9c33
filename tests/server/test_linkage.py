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
def _linked(method):
    return jax.jit(jax.vmap(lambda d, *rest: linkage(d, method, *rest)))


def many(distance, method, *rest):
    return np.asarray(_linked(method)(distance, *rest))


many_cut, many_cut_k = jax.jit(jax.vmap(cut)), jax.jit(jax.vmap(cut_k))


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize(("n", "cases"), [SHAPES[2], *slow_rows(*SHAPES[:2], *SHAPES[3:])])
def test_equals_scipy(method, n, cases, distances):
    distance = distances("blobs", cases, n)
    tree = many(distance, method)
    for case in range(cases):
        expected = scipy_linkage(distance[case], method)
        np.testing.assert_allclose(tree[case][:, 2], expected[:, 2], rtol=1e-5)
        assert (tree[case][:, [0, 1, 3]] == expected[:, [0, 1, 3]]).all()


@pytest.mark.parametrize("kind", ["ties", *slow("integers", "equal")])
@pytest.mark.parametrize("method", ["single", "complete"])  # a mean of ties is rounded differently in float64
def test_heights_equal_scipy_with_ties(method, kind, distances):
    distance = distances(kind, CASES, N)
    tree = many(distance, method)
    for case in range(CASES):
        np.testing.assert_array_equal(tree[case][:, 2], scipy_linkage(distance[case], method)[:, 2].astype(np.float32))
        assert scipy_tree.is_valid_linkage(tree[case].astype(float))


@pytest.mark.parametrize("kind", ["ties", "equal", *slow("integers")])
@pytest.mark.parametrize("method", get_args(Method))
def test_every_merge_joins_the_nearest_two_clusters(method, kind, distances):
    between = {"single": np.min, "complete": np.max, "average": np.mean}[method]
    distance = distances(kind, CASES, N)
    for case, tree in enumerate(many(distance, method)[:30]):
        clusters = {i: [i] for i in range(N)}
        for i, (a, b, height, size) in enumerate(tree):
            spans = {
                (p, q): between(distance[case][np.ix_(clusters[p], clusters[q])].astype(float))
                for p in clusters
                for q in clusters
                if p < q
            }
            np.testing.assert_allclose([spans[a, b], height], min(spans.values()), rtol=1e-6)
            clusters[N + i] = clusters.pop(int(a)) + clusters.pop(int(b))
            assert size == len(clusters[N + i])


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("kind", ["ties", *slow("blobs")])
def test_cut_equals_fcluster(method, kind, distances, renumber):
    rng = np.random.default_rng(0)
    tree = many(distances(kind, CASES, N), method)
    height = rng.choice(np.array([0.0, 0.5, 1.0, 2.0, 5.0, 100.0], np.float32), CASES)
    height[:50] = tree[:50, 6, 2]  # exactly at a merge: it is made
    got = np.asarray(many_cut(tree, height))
    for case in range(CASES):
        expected = scipy_tree.fcluster(tree[case].astype(float), float(height[case]), "distance")
        assert got[case].tolist() == renumber(expected)


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_cut_k_equals_cut_tree(method, distances, renumber):
    tree = many(distances("blobs", CASES, N), method)
    k = np.arange(CASES, dtype=np.int32) % N + 1
    got = np.asarray(many_cut_k(tree, k))
    for case in range(CASES):
        expected = scipy_tree.cut_tree(tree[case].astype(float), n_clusters=k[case])[:, 0]
        assert got[case].tolist() == renumber(expected)


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_masked_clients_never_matter(method, distances, renumber):
    rng = np.random.default_rng(1)
    distance, where = distances("blobs", CASES, N), rng.random((CASES, N)) < 0.6
    where[:, :2] = True
    poisoned = np.where(where[:, :, None] & where[:, None], distance, np.nan)
    tree = many(poisoned, method, where)
    label = np.asarray(many_cut_k(tree, np.full(CASES, 2, np.int32), where))
    low = np.asarray(many_cut(tree, np.full(CASES, np.inf, np.float32), where))
    for case, mask in enumerate(where):
        expected = scipy_linkage(distance[case][np.ix_(mask, mask)], method)
        np.testing.assert_allclose(tree[case][: mask.sum() - 1, 2], expected[:, 2], rtol=1e-5)
        assert np.isinf(tree[case][mask.sum() - 1 :, 2]).all()
        assert label[case][mask].tolist() == renumber(scipy_tree.cut_tree(expected, n_clusters=2)[:, 0])
        assert (low[case] == np.where(mask, 0, -1)).all()
    assert (label[~where] == -1).all()


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_within_clusters_equals_each_cluster_by_itself(method, distances, renumber):
    rng = np.random.default_rng(2)
    distance, outer = distances("blobs", CASES, N), rng.integers(-1, 3, (CASES, N)).astype(np.int32)
    tree = many(distance, method, np.ones((CASES, N), bool), outer)
    low = np.asarray(many_cut(tree, np.full(CASES, 1.5, np.float32)))
    two = np.asarray(many_cut_k(tree, np.full(CASES, 2, np.int32), None, outer))
    for case in range(100):
        alone = np.flatnonzero(outer[case] < 0)
        assert all((low[case] == low[case][i]).sum() == 1 for i in alone)
        for cluster in range(3):
            member = np.flatnonzero(outer[case] == cluster)
            if len(member) > 1:
                inner = scipy_linkage(distance[case][np.ix_(member, member)], method)
                flat = scipy_tree.fcluster(inner, 1.5, "distance")
                assert renumber(low[case][member]) == renumber(flat)
                assert renumber(two[case][member]) == renumber(scipy_tree.cut_tree(inner, n_clusters=2)[:, 0])
                assert set(low[case][member]).isdisjoint(np.delete(low[case], member))
    all_of_them = np.asarray(many_cut(tree, np.full(CASES, np.inf, np.float32)))
    alone = np.where(outer < 0, 10 + np.arange(N), outer)
    assert all_of_them.tolist() == [renumber(label) for label in alone]


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_one_client(method):
    tree = linkage(jnp.zeros((1, 1)), method)
    assert tree.shape == (0, 4)
    assert cut(tree, 1.0).tolist() == cut_k(tree, 1).tolist() == [0]
    assert cut_k(tree, 2, within=jnp.zeros(1, jnp.int32)).tolist() == [0]


def test_a_mean_of_equal_distances_is_not_lower_for_rounding():
    # (2 a + a) / 3 is below a in float32, here and there: a merge would come before those it is made of.
    distance = (1 - np.eye(N, dtype=np.float32)) * np.random.default_rng(0).random((CASES, 1, 1), np.float32)
    tree = many(distance, "average")
    assert all(scipy_tree.is_valid_linkage(one.astype(float)) for one in tree)
    assert (tree[:, :, 2] >= distance[:, :1, 1]).all()


def test_hand_values():
    # Places 0, 1, 4: the first two at 1; then means (4 + 3) / 2, the nearest 3 and the farthest 4.
    place = np.float32([0, 4, 1])
    distance = np.abs(place[:, None] - place[None, :])
    for method, top in {"average": 3.5, "single": 3.0, "complete": 4.0}.items():
        assert linkage(distance, method).tolist() == [[0, 2, 1, 2], [1, 3, top, 3]]


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
def test_long_chains_of_merges(method):
    # Gaps that grow: every merge adds one client to the same cluster, the deepest tree there is.
    place = np.cumsum(np.arange(1, 201, dtype=np.float32))
    distance = np.abs(place[:, None] - place[None])
    tree = np.asarray(linkage(jnp.asarray(distance), method))
    np.testing.assert_allclose(tree[:, 2], scipy_linkage(distance, method)[:, 2], rtol=1e-5)
    assert (np.asarray(cut(tree, np.inf)) == 0).all()


@pytest.mark.parametrize("method", ["average", *slow("single", "complete")])
@given(seed=st.integers(0, 10_000), order=st.permutations(range(9)), scale=st.sampled_from([0.25, 1.0, 512.0]))
def test_permutation_and_scale(method, seed, order, scale):
    place = np.random.default_rng(seed).normal(size=(9, 3))
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1).astype(np.float32)
    order = np.array(order)
    moved = np.float32(scale) * distance[np.ix_(order, order)]
    tree, moved = (np.asarray(linkage(d, method)) for d in (distance, moved))
    np.testing.assert_allclose(moved[:, 2], scale * tree[:, 2], rtol=1e-6)
    assert cut_k(moved, 4).tolist() == canonical(np.asarray(cut_k(tree, 4))[order]).tolist()


@given(st.integers(0, 10_000), st.floats(0, 3), st.floats(0, 3))
def test_a_lower_cut_refines_a_higher_one(seed, a, b):
    place = np.random.default_rng(seed).normal(size=(9, 2)).astype(np.float32)
    tree = linkage(jnp.asarray(np.linalg.norm(place[:, None] - place[None], axis=-1)), "average")
    fine, coarse = (np.asarray(cut(tree, jnp.float32(h))) for h in sorted((a, b)))
    assert len({*zip(fine.tolist(), coarse.tolist(), strict=True)}) == len(set(fine.tolist()))


def test_one_trace_for_all_numbers_and_inside_scan(distances, traced_once):
    def step(distance, given):
        where, height, k = given
        tree = linkage(distance, "average", where)
        return distance, (cut(tree, height, where), cut_k(tree, k, where))

    traced = traced_once(lambda distance, *given: jax.lax.scan(step, distance, given)[1])
    distance, where = distances("blobs", CASES, N), np.stack([np.arange(N) != i % N for i in range(CASES)])
    height, k = np.resize(np.float32([0.5, 1, 2]), CASES), np.resize(np.int32([1, 2, 3]), CASES)
    tree = many(np.broadcast_to(distance[0], distance.shape), "average", where)
    alone = np.asarray(many_cut(tree, height, where)), np.asarray(many_cut_k(tree, k, where))
    for rows in (slice(0, 3), slice(3, 6)):
        scanned = traced(distance[0], where[rows], height[rows], k[rows])
        np.testing.assert_array_equal(scanned, [found[rows] for found in alone])


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
    place = np.array([0.0, 1.0, 50.0, 4.0, 6.0])
    distance = np.abs(place[:, None] - place[None, :]).astype(np.float32)
    distance[2] = distance[:, 2] = np.nan
    others = np.delete(np.arange(5), 2)
    with_it, without = linkage(distance, method), linkage(distance[np.ix_(others, others)], method)
    np.testing.assert_allclose(with_it[:3, 2], without[:, 2])
    assert np.isinf(with_it[3, 2])
    np.testing.assert_array_equal(cut_k(with_it, 2), [0, 0, 1, 0, 0])
