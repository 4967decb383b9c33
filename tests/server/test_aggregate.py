import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fljax
from fljax import tree
from fljax.server import aggregate
from fljax.server.aggregate import cluster_mean, mix, mix_layers, weighted_mean
from tests.slow import slow, slow_rows

RTOL = 1e-5  # sums over clients in float32


def models(rng, cases, n, d=7):
    x = rng.normal(size=(cases, n, d)).astype(np.float32)
    return {"a": {"kernel": x[..., :6].reshape(cases, n, 2, 3), "bias": x[..., 6:]}}


def as_rows(stacked, cases, n):
    return np.concatenate([np.asarray(leaf).reshape(cases, n, -1) for leaf in jax.tree.leaves(stacked)], axis=-1)


@pytest.mark.parametrize("n", [1, 30, *slow(2, 5)])
def test_weighted_mean_equals_numpy_average(n):
    rng, cases = np.random.default_rng(n), 250
    stacked, weight = models(rng, cases, n), rng.integers(0, 5, (cases, n))
    weight[:, 0] += weight.sum(axis=1) == 0
    with_nan = jax.tree.map(
        lambda leaf: np.where(weight.reshape(weight.shape + (1,) * (leaf.ndim - 2)) > 0, leaf, np.nan), stacked
    )
    actual = jax.vmap(weighted_mean)(with_nan, jnp.asarray(weight))
    x = as_rows(stacked, cases, n)
    expected = np.stack([np.average(a, axis=0, weights=w) for a, w in zip(x, weight, strict=True)])
    np.testing.assert_allclose(
        as_rows(jax.tree.map(lambda leaf: leaf[:, None], actual), cases, 1)[:, 0], expected, rtol=RTOL, atol=1e-6
    )


@pytest.mark.parametrize(("n", "n_clusters"), [(1, 1), (30, 5), *slow_rows((2, 3), (9, 4))])
def test_cluster_mean_equals_numpy_and_keeps_empty_rows(n, n_clusters):
    rng, cases = np.random.default_rng(n), 260
    stacked, empty = models(rng, cases, n), models(rng, cases, n_clusters)
    weight, label = rng.integers(0, 4, (cases, n)), rng.integers(-1, n_clusters + 1, (cases, n))
    is_counted = (weight > 0) & (label >= 0) & (label < n_clusters)
    with_nan = jax.tree.map(
        lambda leaf: np.where(is_counted.reshape(is_counted.shape + (1,) * (leaf.ndim - 2)), leaf, np.nan), stacked
    )
    actual = as_rows(
        jax.vmap(cluster_mean)(with_nan, jnp.asarray(weight), jnp.asarray(label), empty), cases, n_clusters
    )
    x, expected = as_rows(stacked, cases, n), as_rows(empty, cases, n_clusters).copy()
    for case in range(cases):
        for k in range(n_clusters):
            is_member = is_counted[case] & (label[case] == k)
            if is_member.any():
                expected[case, k] = np.average(x[case, is_member], axis=0, weights=weight[case, is_member])
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=1e-6)


def test_hand_values():
    x = np.float32([[0, 4], [3, 1], [np.nan, 0]])
    np.testing.assert_array_equal(weighted_mean(x, jnp.array([1, 2, 0])), [2.0, 2.0])  # (0 + 2*3)/3, (4 + 2*1)/3
    np.testing.assert_array_equal(weighted_mean(x, np.zeros(3, np.float32)), [0.0, 0.0])
    np.testing.assert_array_equal(weighted_mean(x, np.zeros(3, np.float32), jnp.array([5.0, 6.0])), [5.0, 6.0])
    np.testing.assert_array_equal(mix(jnp.array([[1.0, -1.0, 0.0]]), x), [[-3.0, 3.0]])


def test_equal_models_come_back():
    x = jnp.full((7, 3), 0.1)
    np.testing.assert_allclose(weighted_mean(x, jnp.ones(7, bool)), np.float32([0.1] * 3), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 1000, 9000])  # one block, and several with a remainder
def test_mix_equals_numpy_matmul_in_blocks(p):
    rng = np.random.default_rng(p)
    x, matrix = rng.normal(size=(300, p)).astype(np.float32), rng.random((40, 300)).astype(np.float32)
    matrix[:, 7], x[7] = 0, np.nan
    actual = mix(jnp.asarray(matrix), {"w": jnp.asarray(x)})["w"]
    np.testing.assert_allclose(
        actual, matrix.astype(float) @ np.nan_to_num(x), rtol=RTOL, atol=1e-4
    )  # 300 terms of size 1


@pytest.mark.parametrize(("n", "rows"), [(1, 1), (5, 2), *slow_rows((2, 3), (12, 12))])
def test_mix_equals_numpy_on_random_problems(n, rows):
    rng = np.random.default_rng(n)
    x, matrix = rng.normal(size=(260, n, 6)).astype(np.float32), rng.random((260, rows, n)).astype(np.float32)
    matrix /= matrix.sum(axis=2, keepdims=True)
    is_unused = rng.random((260, n)) < 0.2
    matrix = np.where(is_unused[:, None], 0, matrix)
    with_nan = jnp.asarray(np.where(is_unused[..., None], np.nan, x))
    actual = jax.vmap(mix)(jnp.asarray(matrix), {"a": with_nan[..., :2], "b": {"w": with_nan[..., 2:]}})
    expected = np.einsum("crn,cnd->crd", matrix.astype(float), x)
    np.testing.assert_allclose(np.concatenate([actual["a"], actual["b"]["w"]], axis=-1), expected, rtol=RTOL, atol=1e-6)


def test_mix_layers_uses_each_layers_matrix_and_statistics_follow():
    x = jnp.arange(6.0).reshape(3, 2)
    stacked = {"a": {"w": x}, "b": {"w": x + 10}, "batch_stats": {"b": {"mean": x}}}
    takes_first, takes_last = jnp.array([[1.0, 0, 0]]), jnp.array([[0, 0, 1.0]])
    actual = mix_layers({"a": takes_first, "b": takes_last}, stacked)
    np.testing.assert_array_equal(actual["a"]["w"], x[:1])
    np.testing.assert_array_equal(actual["b"]["w"], x[2:] + 10)
    np.testing.assert_array_equal(actual["batch_stats"]["b"]["mean"], x[2:])
    with pytest.raises(ValueError, match="matrices are given for"):
        mix_layers({"a": takes_first}, stacked)


def test_wrong_shapes_are_named():
    x = jnp.ones((3, 2))
    with pytest.raises(ValueError, match="weight has shape"):
        weighted_mean(x, jnp.ones(2))
    with pytest.raises(ValueError, match="label has shape"):
        cluster_mean(x, jnp.ones(3), jnp.zeros(2, jnp.int32), x)
    with pytest.raises(ValueError, match="matrix has shape"):
        mix(jnp.ones((2, 2)), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_means_of_few_among_many_clusters_are_those_of_all(dtype):
    """Where most clusters have no client, each mean is made in a place of its own and put where it belongs."""
    rng, n, n_clusters, width = np.random.default_rng(3), 12, 400, 200  # more numbers than are made as one product
    x, empty = (jnp.asarray(rng.normal(size=(rows, width)) * 9, dtype) for rows in (n, n_clusters))
    label = np.array([399, 0, 7, 399, 7, -1, 400, 250, 0, 31, 31, 8], np.int32)
    weight = np.array([1, 2, 0, 3, 0, 1, 1, 5, 2, 1, 0, 0], np.float32)  # nobody of clusters 7 and 8 counts
    is_left_out = np.isin(label, [-1, 400]) | (weight == 0)
    with_nan = x if dtype == "int32" else jnp.where(is_left_out[:, None], jnp.nan, x).astype(x.dtype)
    actual = cluster_mean(with_nan, weight, label, empty)
    assert actual.dtype == x.dtype
    expected = jax.jit(aggregate._means_of_all)(with_nan, weight, label, empty)
    np.testing.assert_allclose(*(np.asarray(means, np.float32) for means in (actual, expected)), rtol=RTOL, atol=1e-6)
    other_clusters = np.setdiff1d(np.arange(n_clusters), [399, 0, 250, 31])
    np.testing.assert_array_equal(np.asarray(actual)[other_clusters], np.asarray(empty)[other_clusters])


def test_a_mean_costs_by_the_clients_and_not_by_clusters_that_have_none():
    x, label, weight = jnp.ones((20, 100)), jnp.arange(20, dtype=jnp.int32), jnp.ones(20)

    def n_operations(n_clusters):
        cost = jax.jit(cluster_mean).lower(x, weight, label, jnp.zeros((n_clusters, 100))).cost_analysis()
        return cost["flops"]

    assert n_operations(5000) < 2 * n_operations(20)


def test_means_of_few_have_the_gradient_of_means_of_all():
    x = jnp.asarray(np.random.default_rng(4).normal(size=(4, 300)), jnp.float32)
    label, weight, empty = jnp.array([5, 5, 299, 5]), jnp.array([1.0, 2.0, 3.0, 0.0]), jnp.zeros((300, 300))

    def total(means):
        return lambda x, w: jnp.square(means(x, w, label, empty)).sum()

    actual, expected = (
        jax.jit(jax.grad(total(means), argnums=(0, 1)))(x, weight)
        for means in (inspect.unwrap(cluster_mean), aggregate._means_of_all)
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 10**6))
def test_symmetries(seed):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(6, 4)).astype(np.float32), rng.random(6).astype(np.float32)
    label, empty = rng.integers(0, 3, 6).astype(np.int32), np.zeros((4, 4), np.float32)
    order, names = rng.permutation(6), rng.permutation(4).astype(np.int32)
    mean = np.asarray(cluster_mean(x, weight, label, empty))
    np.testing.assert_array_equal(cluster_mean(x, 2 * weight, label, empty), mean)
    np.testing.assert_allclose(cluster_mean(x[order], weight[order], label[order], empty), mean, rtol=RTOL, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(cluster_mean(x, weight, names[label], empty))[names], mean)
    mean_of_all = np.asarray(weighted_mean(x, weight))
    assert (mean_of_all >= x.min(axis=0) - 1e-6).all()
    assert (mean_of_all <= x.max(axis=0) + 1e-6).all()


def test_compiles_once_in_scan_and_has_the_right_gradient(traced_once):
    x, empty = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros((2, 3), np.float32)
    step = traced_once(inspect.unwrap(cluster_mean))
    for label in ([0, 0, 1, 1], [0, -1, 0, 0]):
        step(x, np.ones(4, np.float32), np.int32(label), empty)
    _, means = jax.lax.scan(
        lambda c, w: (c, cluster_mean(x, w, jnp.array([0, 0, 1, 1]), empty)), 0, np.ones((3, 4), np.float32)
    )
    np.testing.assert_array_equal(np.asarray(means)[2], [[1.5, 2.5, 3.5], [7.5, 8.5, 9.5]])
    gradient = jax.jit(jax.grad(lambda w: weighted_mean(x, w)[0]))(
        np.ones(4, np.float32)
    )  # (x_i - mean) / sum of weights
    np.testing.assert_allclose(gradient, (x[:, 0] - 4.5) / 4, rtol=1e-6)


def test_low_precision_leaves_keep_their_dtype():
    x = {"w": jnp.ones((3, 2), jnp.bfloat16)}
    actual = weighted_mean(x, jnp.ones(3))
    assert actual["w"].dtype == jnp.bfloat16
    assert tree.n_rows(mix(jnp.ones((5, 3)), x)) == 5


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_means_are_rounded_once(dtype):
    """Sums of many examples are beyond float16, and in bfloat16 they have two digits."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(3, 1, (40, 500)).astype(dtype), rng.integers(1, 6000, 40).astype(np.float32)
    expected = np.average(x.astype(np.float64), axis=0, weights=weight)
    mean = np.asarray(weighted_mean(x, weight)).astype(np.float64)
    np.testing.assert_allclose(mean, expected, rtol=0.51 * float(jnp.finfo(dtype).eps))


def test_a_client_that_is_not_finite_leaves_other_clusters_alone_once_it_has_no_weight():
    x = np.array([[1, 2], [3, 4], [np.nan, 6], [7, np.inf], [9, 10]], np.float32)
    weight, label, empty = jnp.array([1.0, 3, 1, 1, 1]), jnp.array([0, 0, 0, 1, 1]), jnp.zeros((2, 2))
    actual = cluster_mean(x, jnp.where(tree.all_finite(x), weight, 0), label, empty)
    np.testing.assert_array_equal(actual, [np.average(x[:2], axis=0, weights=[1, 3]), x[4]])


def test_a_fallback_of_other_shapes_or_leaves_is_refused():
    x, weight, label = jnp.ones((3, 2)), jnp.zeros(3), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match=r"empty has shape \(3, 2\); expected \(2,\), to go with stacked"):
        weighted_mean(x, weight, empty=x)
    with pytest.raises(ValueError, match=r"empty has the leaves \['b'\]; expected \['a'\], those of stacked"):
        weighted_mean({"a": x}, weight, empty={"b": x[0]})
    with pytest.raises(ValueError, match=r"empty has shape \(2, 1\); expected \(2, 2\)"):
        cluster_mean(x, weight, label, jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"empty\['b'\] has shape \(1, 2\); expected 2 rows, as many as empty\['a'\]"):
        cluster_mean({"a": x, "b": x}, weight, label, {"a": x[:2], "b": x[:1]})


def test_a_fallback_takes_the_dtype_of_the_models():
    x = jnp.ones((3, 2), jnp.bfloat16)
    actual = weighted_mean(x, jnp.zeros(3), empty=jnp.array([1.5, 2.5]))
    assert actual.dtype == jnp.bfloat16
    assert actual.tolist() == [1.5, 2.5]


def test_matrices_of_layers_with_different_rows_are_refused():
    x = jnp.ones((3, 2))
    with pytest.raises(ValueError, match=r"matrices\['b'\] has shape \(2, 3\); expected \(1, 3\)"):
        mix_layers({"a": jnp.ones((1, 3)), "b": jnp.ones((2, 3))}, {"a": x, "b": x})


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fljax.server.weighted_mean(x, np.ones(2, np.float32)),
        lambda x: fljax.server.mix(x, np.ones((2, 2), np.float32)),
        lambda x: fljax.server.cluster_mean(x, np.ones(2, np.float32), np.int32([0, 0]), x),
        fljax.server.pairwise_l2,
        fljax.server.pairwise_cosine,
        fljax.server.coordinate_median,
        fljax.server.geometric_median,
    ],
)
def test_complex_numbers_are_refused_and_not_halved(call):
    with pytest.raises(ValueError, match="dtype complex64; give real numbers"):
        call(np.array([[1 + 2j, 0.3 + 0.4j], [0.2 - 1j, 1.6]], np.complex64))


def test_labels_are_whole_numbers():
    with pytest.raises(ValueError, match="label has dtype float32; give cluster numbers"):
        fljax.server.cluster_mean(
            np.ones((2, 3), np.float32), np.ones(2, np.float32), np.float32([0.5, 1]), np.ones((2, 3), np.float32)
        )
