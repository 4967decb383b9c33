import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from fljax.server.bipartition import best_bipartition, bipartition, split
from fljax.server.labels import canonical
from tests.slow import slow, slow_rows


def cosines(rng, cases, n, d=3):
    x = rng.normal(size=(cases, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return (x @ x.transpose(0, 2, 1)).astype(np.float32)


def bipartitions(n):
    """Every bipartition of n clients, client 0 on the first side."""
    return [np.array((False, *sides)) for sides in itertools.product([False, True], repeat=n - 1) if any(sides)]


def optimum(similarity):
    """min over bipartitions of the largest similarity across, by brute force."""
    return min(similarity[np.ix_(side, ~side)].max() for side in bipartitions(len(similarity)))


@cache
def vmapped(function, linkage="single"):
    return jax.jit(jax.vmap(lambda similarity, label, where: function(similarity, label, linkage, where)))


def one_cluster(cases, n):
    """One cluster, and a mask of all."""
    return np.zeros((cases, n), np.int32), np.ones((cases, n), bool)


N, CASES = 7, 200
"""Of most tests, which share their programs."""


@pytest.mark.parametrize("tied", [True, *slow(False)])
@pytest.mark.parametrize(("n", "cases"), [(N, CASES), *slow_rows((2, 50), (5, 300))])
def test_single_linkage_finds_the_optimum(n, cases, tied):
    similarity = cosines(np.random.default_rng(n), cases, n)
    if tied:
        similarity = np.round(similarity * 2) / 2
    side, cross = map(np.asarray, vmapped(best_bipartition)(similarity, *one_cluster(cases, n)))
    for case in range(cases):
        assert not side[case][0]
        assert side[case].any()
        assert similarity[case][np.ix_(side[case], ~side[case])].max() == optimum(similarity[case])
        assert (cross[case] == optimum(similarity[case])).all()


def test_every_cluster_is_split_by_itself():
    rng = np.random.default_rng(1)
    similarity, label = cosines(rng, CASES, N), rng.integers(-1, 3, (CASES, N)).astype(np.int32)
    arguments = similarity, label, np.ones((CASES, N), bool)
    side, cross = map(np.asarray, vmapped(best_bipartition)(*arguments))
    next_label = np.asarray(vmapped(bipartition)(*arguments))
    for case in range(CASES):
        for cluster in range(-1, 3):
            members = np.flatnonzero(label[case] == cluster)
            similarity_inside = similarity[case][np.ix_(members, members)]
            if cluster < 0 or len(members) < 2:
                assert not side[case][members].any()
                assert np.isposinf(cross[case][members]).all()
                assert len(set(next_label[case][members])) <= 1
            else:
                members_side = side[case][members]
                assert (
                    similarity_inside[np.ix_(members_side, ~members_side)].max()
                    == optimum(similarity_inside)
                    == cross[case][members[0]]
                )
                assert len(set(next_label[case][members])) == 2
        assert ((next_label[case] < 0) == (label[case] < 0)).all()


@pytest.mark.parametrize(("n", "cases"), [(N, CASES), *slow_rows((4, 300), (12, 700))])
def test_complete_linkage_equals_scikit_learn(n, cases, renumber):
    similarity = cosines(np.random.default_rng(n), cases, n)
    actual = np.asarray(vmapped(bipartition, "complete")(similarity, *one_cluster(cases, n)))
    oracle = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    for case in range(cases):
        assert actual[case].tolist() == renumber(oracle.fit_predict(-similarity[case]))


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_both_find_two_groups_with_a_positive_gap(linkage):
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, (CASES, N))
    group[:, 0], group[:, 1] = 0, 1
    is_same_group = group[:, :, None] == group[:, None]
    noise = rng.uniform(0, 0.4, (CASES, N, N))
    similarity = np.where(is_same_group, 0.5, -0.5) + (noise + noise.transpose(0, 2, 1)) / 2
    actual = np.asarray(vmapped(bipartition, linkage)(similarity.astype(np.float32), *one_cluster(CASES, N)))
    assert (actual == (group != group[:, :1])).all()


def test_masked_clients_never_matter(renumber):
    rng = np.random.default_rng(4)
    similarity, where = cosines(rng, CASES, N), rng.random((CASES, N)) < 0.6
    with_nan = np.where(where[:, :, None] & where[:, None], similarity, np.nan)
    arguments = with_nan, np.zeros((CASES, N), np.int32), where
    label, (side, cross) = jax.device_get((vmapped(bipartition)(*arguments), vmapped(best_bipartition)(*arguments)))
    assert (label[~where] == -1).all()
    assert not side[~where].any()
    assert np.isposinf(cross[~where]).all()
    for case, mask in enumerate(where):
        if mask.sum() > 1:
            assert (cross[case][mask] == optimum(similarity[case][np.ix_(mask, mask)])).all()
            assert renumber(label[case][mask]) == renumber(side[case][mask].astype(int))


@pytest.mark.slow
def test_all_equal_and_few_clients():
    assert bipartition(np.ones((1, 1), np.float32), np.zeros(1, np.int32)).tolist() == [0]
    assert bipartition(np.ones((2, 2), np.float32), np.zeros(2, np.int32)).tolist() == [0, 1]
    for linkage in ("single", "complete"):
        label = bipartition(np.ones((8, 8), np.float32), np.int32([0, 0, 0, 1, 1, 2, 2, 2]), linkage)
        assert np.asarray(label).max() == 5


def test_the_acceptance_test_per_cluster():
    # Cluster 0 splits at similarity 0.9 and cluster 1 at -0.5: sqrt((1 - alpha) / 2) is 0.22 and 0.87.
    similarity = np.float32([[1, 0.9, 0, 0], [0.9, 1, 0, 0], [0, 0, 1, -0.5], [0, 0, -0.5, 1]])
    label = np.int32([0, 0, 1, 1])
    side, cross = map(np.asarray, best_bipartition(similarity, label))
    accept = np.sqrt(np.clip((1 - cross) / 2, 0, 1)) > 0.5
    assert accept.tolist() == [False, False, True, True]
    assert split(label, side, accept).tolist() == [0, 0, 1, 2]
    assert split(label, side, False).tolist() == [0, 0, 1, 1]


@given(
    st.lists(st.integers(-1, 3), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_a_split_never_merges(label, side, accept):
    next_label = split(np.int32(label), np.array(side), np.array(accept)).tolist()
    for i, j in itertools.combinations(range(8), 2):
        is_together = label[i] == label[j] >= 0 and (side[i] and accept[i]) == (side[j] and accept[j])
        assert (next_label[i] == next_label[j] >= 0) == is_together


@given(st.integers(0, 10_000), st.permutations(range(8)), st.sampled_from(["single", "complete"]))
def test_permutation_renaming_and_scale(seed, order, linkage):
    rng = np.random.default_rng(seed)
    similarity, label = cosines(rng, 1, 8)[0], rng.integers(0, 3, 8).astype(np.int32)
    order = np.array(order)
    expected = canonical(np.asarray(bipartition(similarity, label, linkage))[order]).tolist()
    permuted = np.float32(0.25) * similarity[np.ix_(order, order)]
    renamed_label = np.int32(7 - label[order])
    assert bipartition(permuted, renamed_label, linkage).tolist() == expected


def test_recursion_inside_scan_refines_until_all_are_alone(traced_once):
    similarity = cosines(np.random.default_rng(5), 1, 8)[0]

    def step(label, _):
        label = bipartition(similarity, label)
        return label, label

    traced = traced_once(lambda label: jax.lax.scan(step, label, length=8))
    last_label, labels = traced(np.zeros(8, np.int32))
    assert traced(np.arange(8, dtype=np.int32))[0].tolist() == last_label.tolist() == list(range(8))
    label = np.zeros(8, np.int32)
    for label_in_scan in np.asarray(labels):
        label = bipartition(similarity, label)
        assert label_in_scan.tolist() == label.tolist()


def test_gradient_is_that_of_the_closest_pair():
    similarity = np.float32([[1, 0.5, -0.5], [0.5, 1, 0.25], [-0.5, 0.25, 1]])
    gradient_of = jax.jit(jax.grad(lambda s: best_bipartition(s, jnp.zeros(3, jnp.int32)).cross[0]))
    gradient = np.asarray(gradient_of(similarity))
    assert (gradient != 0).tolist() == [[False, False, False], [False, False, True], [False, True, False]]
    assert gradient.sum() == 1


def test_errors_name_the_field():
    with pytest.raises(ValueError, match="linkage='average' is unknown; choose one of 'single', 'complete'"):
        bipartition(jnp.ones((2, 2)), jnp.zeros(2, jnp.int32), "average")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"label has shape \(3,\)"):
        bipartition(jnp.ones((2, 2)), jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"accept has shape \(3,\); expected \(\) or \(2,\)"):
        split(jnp.zeros(2, jnp.int32), jnp.zeros(2, bool), jnp.ones(3, bool))
