import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from fljax.server import assign
from tests.slow import slow_rows

# Each compiled once for its shapes: op by op they would be a hundred small programs.
example_shares, lowest_loss, mixture_weights, nearest_center, responsibilities, soft_weights = map(
    jax.jit,
    (
        assign.example_shares,
        assign.lowest_loss,
        assign.mixture_weights,
        assign.nearest_center,
        assign.responsibilities,
        assign.soft_weights,
    ),
)


@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 2), (20, 4, 5), *slow_rows((2, 3, 1), (9, 9, 3))])
def test_nearest_center_equals_scipy(n, k, d):
    rng = np.random.default_rng(n)
    x, centers = rng.integers(-3, 4, (260, n, d)), rng.integers(-3, 4, (260, k, d))  # many exact ties
    actual = jax.vmap(nearest_center)(x.astype(np.float32), centers.astype(np.float32))
    expected = [cdist(a, b, "sqeuclidean").argmin(axis=1) for a, b in zip(x, centers, strict=True)]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (10, 3), (10, 8)])
def test_lowest_loss_equals_nanargmin(n, k):
    rng = np.random.default_rng(k)
    loss = rng.integers(0, 3, (260, n, k)).astype(np.float32)
    loss[rng.random(loss.shape) < 0.2] = np.nan
    expected = np.where(np.isnan(loss).all(axis=-1), 0, np.nanargmin(np.where(np.isnan(loss), 9, loss), axis=-1))
    actual = lowest_loss(loss)
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == np.int32


def test_ties_nan_and_equal_centers_go_to_the_lowest_index():
    loss = np.float32([[np.nan, 2, 2], [np.nan, np.nan, np.nan], [np.inf, np.inf, np.nan], [1, -np.inf, 0]])
    assert lowest_loss(loss).tolist() == [1, 0, 0, 1]
    center = {"w": np.full((3, 200), 0.1, np.float32), "batch_stats": {"w": np.full((3, 1), np.nan, np.float32)}}
    assert nearest_center(center, center).tolist() == [0, 0, 0]
    centers_with_nan = np.float32([[np.nan] * 3, [1] * 3])
    assert nearest_center(np.ones((2, 3), np.float32), centers_with_nan).tolist() == [1, 1]


@given(st.integers(0, 10**6))
def test_assignment_ignores_a_common_loss_and_follows_renaming(seed):
    rng = np.random.default_rng(seed)
    loss, names = rng.permutation(20).reshape(5, 4).astype(np.float32), rng.permutation(4)
    np.testing.assert_array_equal(lowest_loss(loss + 64), lowest_loss(loss))
    np.testing.assert_array_equal(names[np.asarray(lowest_loss(loss[:, names]))], lowest_loss(loss))


def test_fedsoft_by_hand():
    loss = np.float32([[[1, 2, 3], [1, 2, 3], [5, 2, 3], [np.nan, np.nan, 0]]])
    actual = example_shares(loss, np.int32([[1, 1, 1, 0]]))  # 2 votes for 0, 1 vote for 1; the padding votes for nobody
    votes = np.array([2 / 3, 1 / 3, 1e-4])
    np.testing.assert_allclose(np.asarray(actual)[0], votes / votes.sum(), rtol=1e-6)
    share = np.float32([[0.5, 0.5], [0.25, 0.75], [np.nan, np.nan]])
    np.testing.assert_allclose(soft_weights(share, np.int32([10, 20, 0])), [[0.5, 0.5, 0], [0.25, 0.75, 0]], rtol=1e-6)
    np.testing.assert_array_equal(soft_weights(share, np.zeros(3, np.int32)), np.zeros((2, 3)))


@pytest.mark.parametrize(("examples", "k"), [(5, 2), *slow_rows((1, 1), (12, 4))])
def test_fedsoft_equals_numpy(examples, k):
    rng = np.random.default_rng(k)
    loss, weight = rng.random((350, 3, examples, k)).astype(np.float32), rng.integers(0, 2, (350, 3, examples))
    with_nan = np.where(weight[..., None] > 0, loss, np.nan)
    actual = example_shares(with_nan, weight)
    votes = (np.eye(k)[loss.argmin(axis=-1)] * weight[..., None]).sum(axis=2)
    share = np.where(votes > 0, votes / np.maximum(weight.sum(axis=-1), 1)[..., None], 1e-4)
    np.testing.assert_allclose(actual, share / share.sum(axis=-1, keepdims=True), rtol=1e-5)
    size = rng.integers(1, 9, (350, 3))
    np.testing.assert_allclose(np.asarray(jax.vmap(soft_weights)(actual, size)).sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize(("examples", "learners"), [(4, 2), *slow_rows((1, 1), (9, 3))])
def test_fedem_equals_numpy(examples, learners):
    rng = np.random.default_rng(learners)
    loss = 5 * rng.random((350, 3, examples, learners)).astype(np.float32)
    mixture = rng.dirichlet(np.ones(learners), (350, 3)).astype(np.float32)
    weight = rng.integers(0, 2, (350, 3, examples))
    unnormalised = mixture[:, :, None] * np.exp(-loss.astype(float))
    q = np.asarray(responsibilities(loss, mixture))
    np.testing.assert_allclose(q, unnormalised / unnormalised.sum(axis=-1, keepdims=True), rtol=1e-5)
    actual = mixture_weights(np.where(weight[..., None] > 0, q, np.float32(np.nan)), weight, mixture)
    n_counted = weight.sum(axis=-1)[..., None]
    expected = np.where(
        n_counted > 0, (np.asarray(q) * weight[..., None]).sum(axis=2) / np.maximum(n_counted, 1), mixture
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_fedem_edges():
    mixture = np.float32([[0.25, 0.75, 0.0]])
    of_equal_losses = responsibilities(np.full((1, 2, 3), 7, np.float32), mixture)
    np.testing.assert_allclose(of_equal_losses, np.broadcast_to(mixture[:, None], (1, 2, 3)), rtol=1e-6)
    q = np.asarray(responsibilities(np.float32([[[np.nan, 900, 0], [np.nan, np.inf, 0]]]), mixture))
    np.testing.assert_allclose(q[0], [[0, 1, 0], [0.25, 0.75, 0]], atol=1e-6)
    gradient = jax.jit(jax.grad(lambda loss: responsibilities(loss, mixture)[0, 0, 0]))
    assert np.isfinite(gradient(np.float32([[[1, 2, np.nan]]]))).all()


def test_one_program_and_inside_scan(traced_once):
    traced, weight = traced_once(assign.example_shares), np.ones((2, 3), np.float32)
    for value, floor in ((1, 1e-4), (0, 1e-3)):
        traced(np.full((2, 3, 2), value, np.float32), weight, floor)
    centers = np.float32([[0], [1]])
    _, label = jax.lax.scan(lambda c, x: (c, nearest_center(x, centers)), 0, np.float32([[[0.2]], [[0.9]]]))
    assert np.asarray(label)[:, 0].tolist() == [0, 1]


def test_a_list_of_losses_is_refused():
    with pytest.raises(ValueError, match="loss is of type list, not an array"):
        lowest_loss([[1.0, 2.0]])
