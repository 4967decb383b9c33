import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, jensenshannon

from fljax.server.discrepancy import layer_discrepancy, model_discrepancy
from fljax.server.distance import cross_squared_l2, pairwise_cosine, pairwise_l2, pairwise_squared_l2
from fljax.server.divergence import js_divergence, label_kld
from tests.slow import slow, slow_rows

SHAPES = [(1, 3), (20, 12), *slow_rows((2, 1), (7, 3))]


def points(rng, cases, n, d):
    """Tight groups far from each other and from the origin, with duplicates: the worst case for inner products."""
    center = 100 * rng.normal(size=(cases, 3, d)) + 1000
    x = center[np.arange(cases)[:, None], rng.integers(0, 3, (cases, n))] + 0.1 * rng.normal(size=(cases, n, d))
    x[:, n // 2] = x[:, 0]
    x[::3] = rng.normal(size=x[::3].shape)
    x[::10] = x[::10, :1]
    return x.astype(np.float32)


def assert_exactly_symmetric(matrix):
    matrix = np.asarray(matrix)
    np.testing.assert_array_equal(matrix, np.swapaxes(matrix, -1, -2))
    assert (np.diagonal(matrix, axis1=-2, axis2=-1) == 0).all()


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_l2_equals_scipy(n, d):
    x = points(np.random.default_rng(n), 260, n, d)
    expected = np.stack([cdist(a, a) for a in x.astype(float)])
    actual = jax.vmap(pairwise_l2)(x)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(pairwise_squared_l2)(jnp.asarray(x)), expected**2, rtol=2e-5)
    assert_exactly_symmetric(actual)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_cosine_equals_scipy(n, d):
    x = points(np.random.default_rng(n), 260, n, d) - np.float32(1000)
    expected = np.stack([1 - cdist(a, a, "cosine") for a in x.astype(float)])
    actual = np.asarray(jax.vmap(pairwise_cosine)(x))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_array_equal(actual, np.swapaxes(actual, 1, 2))
    np.testing.assert_array_equal(np.diagonal(actual, axis1=1, axis2=2), 1)
    assert (np.abs(actual) <= 1).all()  # of copies too, whose product rounds beyond that of their norms


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_cross_equals_scipy(n, d):
    rng = np.random.default_rng(n)
    x, centers = points(rng, 260, n, d), points(rng, 260, 4, d)
    expected = np.stack([cdist(a, b) ** 2 for a, b in zip(x.astype(float), centers.astype(float), strict=True)])
    np.testing.assert_allclose(jax.vmap(cross_squared_l2)(jnp.asarray(x), jnp.asarray(centers)), expected, rtol=1e-5)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_model_discrepancy_equals_numpy(n, d):
    x = np.random.default_rng(n).normal(size=(260, n, d)).astype(np.float32)
    x[::5, 0] = 3  # a constant model scales to zeros
    width = np.ptp(x, axis=2, keepdims=True)
    scaled_x = (x - x.min(axis=2, keepdims=True)) / np.where(width > 0, width, 1)
    expected = np.abs(scaled_x[:, :, None] - scaled_x[:, None]).mean(axis=-1)
    actual = np.asarray(jax.vmap(model_discrepancy)(x))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert_exactly_symmetric(actual)
    assert (actual <= 1).all()


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (9, 5), *slow_rows((2, 10), (6, 3))])
def test_js_equals_scipy(n, classes):
    rng = np.random.default_rng(n)
    p = rng.dirichlet(np.full(classes, 0.3), (260, n, 4)).astype(np.float32)
    p[:, n // 2] = p[:, 0]
    p[::7] = np.eye(classes, dtype=np.float32)[rng.integers(0, classes, (38, n, 4))[: len(p[::7])]]
    actual = np.asarray(jax.vmap(js_divergence)(p))
    expected = (jensenshannon(p[:, :, None].astype(float), p[:, None].astype(float), axis=-1) ** 2).mean(axis=-1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert_exactly_symmetric(actual)
    assert (actual <= np.float32(np.log(2))).all()


@pytest.mark.parametrize("n", [1, 12, *slow(2, 6)])
def test_label_kld_equals_numpy(n):
    count = np.random.default_rng(n).integers(0, 20, (260, n, 10))
    count[::9, 0] = 0
    total = count.sum(axis=-1, keepdims=True)
    p = np.where(total > 0, count / np.maximum(total, 1), 0) + 1e-4
    p /= p.sum(axis=-1, keepdims=True)
    a, b = p[:, :, None], p[:, None]
    expected = ((a * np.log(a / b)).sum(axis=-1) + (b * np.log(b / a)).sum(axis=-1)) / 2
    actual = jax.vmap(label_kld)(jnp.asarray(count))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert_exactly_symmetric(actual)


def test_hand_values():
    x = np.float32([[0, 0], [3, 4], [0, -2]])
    np.testing.assert_allclose(np.asarray(pairwise_l2(x))[1], [5, 0, np.sqrt(45)], rtol=1e-6)
    np.testing.assert_allclose(pairwise_cosine(x), [[0, 0, 0], [0, 1, -0.8], [0, -0.8, 1]], atol=1e-6)
    p = np.float32([[[1, 0]], [[0, 1]]])
    np.testing.assert_allclose(np.asarray(js_divergence(p))[0, 1], np.log(2), rtol=1e-6)
    x = np.float32([[0, 1, 2], [0, 0, 5]])
    np.testing.assert_allclose(np.asarray(model_discrepancy(x))[0, 1], 0.5 / 3, rtol=1e-6)


def test_groups_within_groups_are_refined():
    """Distances of 1e-3 inside groups of size 1 that are 1e3 apart: three levels of cancellation, and exact copies."""
    rng = np.random.default_rng(0)
    offset = sum(10.0**e * rng.normal(size=(k, 300))[np.arange(150) % k] for e, k in ((3, 2), (0, 10), (-3, 50)))
    x = offset.astype(np.float32)
    actual, expected = np.asarray(pairwise_l2(jnp.asarray(x))), cdist(x.astype(float), x.astype(float))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert (actual[0, 100], actual[0, 50]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("n", [*slow(30), 140])  # one strip, and four
def test_pytree_in_blocks_equals_flat_array_without_statistics(n):
    x = np.random.default_rng(n).normal(size=(n, 40_000)).astype(np.float32)
    stacked = {
        "a": {"kernel": jnp.asarray(x[:, :30_000]).reshape(n, 100, 300)},
        "b": {"bias": jnp.asarray(x[:, 30_000:])},
        "batch_stats": {"a": {"mean": jnp.full((n, 3), jnp.nan)}},
    }
    np.testing.assert_allclose(pairwise_l2(stacked), cdist(x, x), rtol=1e-5)
    np.testing.assert_allclose(pairwise_l2(stacked, layers=("b",)), cdist(x[:, 30_000:], x[:, 30_000:]), rtol=1e-5)
    np.testing.assert_allclose(
        cross_squared_l2(stacked, jax.tree.map(lambda leaf: leaf[:3], stacked)), cdist(x, x[:3]) ** 2, rtol=1e-5
    )
    of_flat_array = model_discrepancy(jnp.asarray(x))
    np.testing.assert_allclose(model_discrepancy(stacked), of_flat_array, rtol=1e-5)
    with pytest.raises(ValueError, match=r"layers=.*: there is no layer 'c'; choose among"):
        pairwise_cosine(stacked, layers=("c",))


@pytest.mark.parametrize(
    "measure", [pairwise_l2, pairwise_squared_l2, pairwise_cosine, model_discrepancy, js_divergence, label_kld]
)
def test_masked_rows_never_matter(measure):
    rng = np.random.default_rng(3)
    x, where = rng.dirichlet(np.ones(5), (100, 9)).astype(np.float32), rng.random((100, 9)) < 0.6
    run = jax.vmap(lambda x, where: measure(x, where=where))
    actual = np.asarray(run(np.where(where[..., None], x, np.float32(np.nan)), where))
    measure_rows = jax.jit(measure)
    for case in range(0, 100, 4):
        mask = where[case]
        block = np.ix_(mask, mask)
        if mask.any():
            np.testing.assert_allclose(
                actual[case][block], np.asarray(measure_rows(x[case]))[block], rtol=2e-5, atol=1e-6
            )
        is_outside = ~(mask[:, None] & mask[None])
        assert (actual[case][is_outside] == 0).all()


@pytest.mark.parametrize("n", [1, 9, *slow(2, 5)])
def test_layer_discrepancy_equals_numpy(n):
    rng, cases = np.random.default_rng(n), 260
    clients, centers = ({"z": rng.normal(size=(cases, m, 8)), "a": rng.normal(size=(cases, m, 4))} for m in (n, 3))
    label = rng.integers(-1, 5, (cases, n))  # -1 and above 2: in no cluster
    label[::5] = 0
    is_outside = (label < 0) | (label > 2)
    with_nan = jax.tree.map(lambda leaf: np.float32(np.where(is_outside[..., None], np.nan, leaf)), clients)
    in_layers = lambda model: {"z": {"w": model["z"][..., :6], "b": model["z"][..., 6:]}, "a": {"w": model["a"]}}  # noqa: E731
    discrepancies = jax.jit(
        jax.vmap(lambda client, cluster, label: layer_discrepancy(client, cluster, label, ("z", "a")))
    )
    actual = np.asarray(
        discrepancies(in_layers(with_nan), in_layers(jax.tree.map(np.float32, centers)), np.int32(label))
    )
    scale = lambda t: (t - t.min(-1, keepdims=True)) / np.ptp(t, axis=-1, keepdims=True)  # noqa: E731
    for column, name in enumerate(("z", "a")):
        distance = np.abs(scale(clients[name])[:, :, None] - scale(centers[name])[:, None]).mean(axis=-1)
        is_member = label[..., None] == np.arange(3)
        expected = np.where(is_member, distance, 0).sum(axis=1) / np.maximum(is_member.sum(axis=1), 1)
        np.testing.assert_allclose(actual[..., column], expected, rtol=1e-5, atol=1e-6)


measures = jax.jit(lambda x: (pairwise_l2(x), pairwise_cosine(x), model_discrepancy(x)))


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_symmetries(seed, scale):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    order = rng.permutation(6)
    scaled_x = x * np.float32(scale)
    results = jax.device_get([measures(some_x) for some_x in (x, x[order], scaled_x, scaled_x + 1)])
    for result, permuted_result in zip(*results[:2], strict=True):
        np.testing.assert_allclose(permuted_result, result[order][:, order], rtol=2e-5, atol=1e-6)
    (l2, cosine, discrepancy), (scaled_l2, scaled_cosine, _) = results[0], results[2]
    np.testing.assert_allclose(scaled_cosine, cosine, atol=2e-6)
    np.testing.assert_allclose(results[3][2], discrepancy, atol=1e-3)  # the 1 costs digits
    np.testing.assert_allclose(scaled_l2, np.float32(scale) * l2, rtol=2e-5)


def test_gradients_are_finite_at_equal_rows_and_right_elsewhere():
    gradient = jax.jit(jax.grad(lambda x: pairwise_l2(x)[0, 1] + pairwise_l2(x)[1, 2]))
    x = np.float32([[0, 0], [3, 4], [3, 4]])
    np.testing.assert_allclose(gradient(x), [[-0.6, -0.8], [0.6, 0.8], [0, 0]], atol=1e-6)
    x, matrix = (np.random.default_rng(i).normal(size=(5, 4 + i)).astype(np.float32) for i in range(2))

    @jax.jit
    def gradients(x):
        expected = jax.grad(lambda x: (matrix * jnp.square(x[:, None] - x[None]).sum(axis=-1)).sum())(x)
        actual = jax.grad(lambda x: (matrix * pairwise_squared_l2(x)).sum())(x)
        return expected, actual, [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (pairwise_cosine, model_discrepancy)]

    expected, actual, other_gradients = gradients(x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(other_gradients).all()


FOUR = np.abs(np.random.default_rng(0).normal(size=(4, 5))).astype(np.float32)


@pytest.mark.parametrize("measure", [pairwise_l2, model_discrepancy, js_divergence])
def test_one_program_for_every_mask(measure, traced_once):
    traced = traced_once(lambda x, where: measure(x, where=where))
    assert np.asarray(traced(FOUR, np.ones(4, bool)))[0, 3] > 0
    assert np.asarray(traced(FOUR, np.arange(4) < 2))[0, 3] == 0


def test_inside_scan_with_traced_smoothing():
    step = lambda c, numbers: (c, (label_kld(FOUR, numbers[0])[0, 1], pairwise_l2(numbers[1] * FOUR)[0, 1]))  # noqa: E731
    _, (kld, l2) = jax.lax.scan(step, 0, (np.float32([1e-4, 1e-2]), np.float32([1, 2])))
    kld, l2 = np.asarray(kld), np.asarray(l2)
    assert kld[0] > kld[1]
    np.testing.assert_allclose(l2[1], 2 * l2[0], rtol=1e-6)


def weighted_gradient(measure, x):
    """Of a sum in which entries have different weights, so that no slope is 0 by symmetry."""
    return np.asarray(jax.grad(lambda x: (measure(x) * jnp.arange(1.0, 1.0 + measure(x).size).reshape(-1, 3)).sum())(x))


@pytest.mark.parametrize("measure", [model_discrepancy, js_divergence, label_kld])
def test_gradients_beside_a_client_that_does_not_count_and_holds_nan(measure):
    x = np.random.default_rng(5).random((3, 6)).astype(np.float32)
    expected = weighted_gradient(measure, x)
    x_with_nan = jnp.asarray(np.insert(x, 1, np.nan, axis=0))
    counted = np.array([0, 2, 3])
    where = jnp.asarray(np.arange(4) != 1)
    actual = weighted_gradient(lambda x: measure(x, where=where)[counted][:, counted], x_with_nan)
    np.testing.assert_allclose(actual[counted], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(actual[1], 0)


def test_gradients_of_layers_beside_a_client_in_no_cluster_that_holds_nan():
    rng = np.random.default_rng(6)
    x, centers = (rng.random((n, 6)).astype(np.float32) for n in (3, 2))
    label, weight = np.array([1, 0, 1]), jnp.array([[1.0], [2.0]])

    def weighted_discrepancy(x, centers, label):
        return (weight * layer_discrepancy({"a": x}, {"a": centers}, label, ("a",))).sum()

    expected = jax.grad(weighted_discrepancy, (0, 1))(x, centers, label)
    for noise in (-1, 2):
        arguments_with_nan = np.insert(x, 1, np.nan, axis=0), centers, np.insert(label, 1, noise)
        client_gradient, center_gradient = jax.grad(weighted_discrepancy, (0, 1))(*arguments_with_nan)
        np.testing.assert_allclose(np.delete(client_gradient, 1, axis=0), expected[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(client_gradient[1], 0)
        np.testing.assert_allclose(center_gradient, expected[1], rtol=1e-5, atol=1e-7)


def test_a_mask_of_numbers():
    x = np.random.default_rng(7).dirichlet(np.ones(3), 4).astype(np.float32)
    numbers = jnp.array([1.0, 0.0, 1.0, 1.0])
    for measure in (pairwise_l2, js_divergence, label_kld):
        distance = np.asarray(measure(x, where=numbers))
        np.testing.assert_array_equal(distance, measure(x, where=numbers > 0))
        assert (distance[1] == 0).all()
        assert (distance[0, 2:] > 0).all()


def test_centers_of_other_leaves_or_shapes_are_refused():
    x = jnp.ones((3, 4))
    with pytest.raises(ValueError, match=r"centers has the leaves \['c'\]; expected \['a'\], those of x"):
        cross_squared_l2({"a": x}, {"c": x})
    with pytest.raises(ValueError, match=r"centers\['a'\] has shape \(2, 2, 2\); expected \(rows, 4\)"):
        cross_squared_l2({"a": x}, {"a": jnp.ones((2, 2, 2))})
    with pytest.raises(ValueError, match=r"label has shape \(2,\); expected \(3,\)"):
        layer_discrepancy({"a": x}, {"a": x}, jnp.zeros(2, jnp.int32), ("a",))
    with pytest.raises(ValueError, match=r"layers=.*: there is no layer 'b'; choose among"):
        layer_discrepancy({"a": x, "b": x}, {"a": x}, jnp.zeros(3, jnp.int32), ("a", "b"))


def test_layers_in_a_list():
    x = {"a": jnp.array([[0.0], [1.0]]), "b": jnp.array([[0.0], [2.0]])}
    assert pairwise_l2(x, layers=["b"])[0, 1] == 2  # pyright: ignore[reportArgumentType]
