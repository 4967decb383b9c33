from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import trim_mean

from fljax.server.bulyan import bulyan
from fljax.server.geometric_median import geometric_median
from fljax.server.krum import krum, krum_scores, multi_krum
from fljax.server.robust import clip_norm, coordinate_median, n_trimmed, trimmed_mean
from tests.slow import slow, slow_rows


def problems(cases, n, d=3, seed=0):
    """Values with ties, and masks with at least one participant; what is masked is NaN."""
    rng = np.random.default_rng(seed + n)
    x = np.round(rng.normal(size=(cases, n, d)), 1).astype(np.float32)
    where = rng.random((cases, n)) < 0.7
    where[::4] = True
    where[:, 0] |= ~where.any(axis=1)
    return x, where, np.where(where[..., None], x, np.float32(np.nan))


@cache
def vmapped(rule):
    """``rule`` for many problems at once."""
    return jax.jit(jax.vmap(rule))


@pytest.mark.parametrize("n", [1, 8, *slow(2, 3, 21)])
def test_median_equals_numpy(n):
    x, where, with_nan = problems(220, n)
    actual = vmapped(coordinate_median)(with_nan, where)
    expected = np.stack([np.median(a[w], axis=0) for a, w in zip(x, where, strict=True)])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 8, *slow(2, 3, 21)])
def test_trimmed_mean_equals_scipy(n):
    x, where, with_nan = problems(220, n)
    fraction = np.random.default_rng(n).choice(np.float32([0, 0.05, 0.1, 0.25, 0.4]), 220)
    actual = np.asarray(vmapped(trimmed_mean)(with_nan, fraction, where))
    for case in range(220):
        values, f = x[case][where[case]].astype(float), float(fraction[case])
        m = len(values)
        if m >= 3 and 0 < f * m < 1:  # at least one entry on each side
            f = 1 / m
        np.testing.assert_allclose(actual[case], trim_mean(values, f + 1e-6 / m, axis=0), rtol=1e-5, atol=1e-6)


def test_number_trimmed():
    """Five per cent of nineteen is nobody, so one; never more than leaves an entry; half is the median."""
    cases = {
        (0.05, 19): 1,
        (0.05, 2): 0,
        (0.05, 40): 2,
        (0.0, 50): 0,
        (0.3, 10): 3,
        (0.5, 10): 4,
        (0.5, 11): 5,
        (0.1, 0): 0,
        (0.42, 150): 63,  # float32 has the product a rounding below
    }
    for (fraction, n), expected in cases.items():
        assert int(n_trimmed(fraction, jnp.int32(n))) == expected
    x = jnp.array([[1.0], [2], [4], [100]])
    np.testing.assert_array_equal(trimmed_mean(x, 0.5), coordinate_median(x))
    np.testing.assert_array_equal(trimmed_mean(x, 0.0), [26.75])


def test_order_statistics_of_special_values():
    x = jnp.array([[-jnp.inf], [-0.0], [0.0], [1e-40], [jnp.inf]])
    np.testing.assert_array_equal(coordinate_median(x), [0.0])
    assert coordinate_median(jnp.array([[-jnp.inf], [-jnp.inf], [1.0]])) == -jnp.inf
    np.testing.assert_array_equal(coordinate_median(jnp.array([[1.0], [3.0], [jnp.nan]])), [3.0])  # NaN is the largest
    np.testing.assert_array_equal(trimmed_mean(jnp.array([[1.0], [3.0], [jnp.nan]]), 0.1), [3.0])
    np.testing.assert_array_equal(coordinate_median(jnp.ones((3, 2), jnp.bfloat16)), np.ones(2))


@pytest.mark.parametrize("rule", [coordinate_median, lambda x, w, e: trimmed_mean(x, 0.1, w, e), geometric_median])
def test_pytrees_and_nobody(rule):
    x = {"a": {"w": jnp.arange(12.0).reshape(3, 2, 2)}, "batch_stats": {"a": {"mean": jnp.ones((3, 2))}}}
    empty = jax.tree.map(lambda leaf: leaf[0] - 7, x)
    if rule is geometric_median:
        run = lambda where, e: geometric_median(x, None, where, e)  # noqa: E731
    else:
        run = lambda where, e: rule(x, where, e)  # noqa: E731
    is_counted = jnp.zeros(3, bool)
    jax.tree.map(np.testing.assert_array_equal, run(is_counted, empty), empty)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(run(is_counted, None)))
    np.testing.assert_allclose(run(jnp.ones(3, bool), None)["a"]["w"], x["a"]["w"][1], rtol=1e-5)
    np.testing.assert_array_equal(run(jnp.array([False, True, False]), None)["a"]["w"], x["a"]["w"][1])


@pytest.mark.parametrize("p", [70_001, *slow(50_000)])  # several blocks and a remainder
def test_blocks_equal_numpy(p):
    x = np.random.default_rng(0).normal(size=(9, p)).astype(np.float32)
    np.testing.assert_array_equal(coordinate_median(x), np.median(x, axis=0))
    np.testing.assert_allclose(trimmed_mean(x, 0.3), trim_mean(x, 0.3, axis=0), rtol=1e-5, atol=1e-6)


def numpy_krum(x, f):
    squared_distance = ((x[:, None] - x[None]) ** 2).sum(axis=-1)
    n_near = min(max(len(x) - f - 2, 1), max(len(x) - 1, 1))
    return np.array([np.sort(np.delete(squared_distance[i], i))[:n_near].sum() for i in range(len(x))])


@pytest.mark.parametrize("n", [1, 7, *slow(2, 3, 12)])
def test_krum_equals_numpy(n):
    x, where, with_nan = problems(220, n, d=4)
    f, n_selected = np.random.default_rng(n).integers(0, 3, 220), np.random.default_rng(n + 1).integers(1, 4, 220)
    f, n_selected = np.int32(f), np.int32(n_selected)
    score = np.asarray(vmapped(krum_scores)(with_nan, f, where))
    mean = np.asarray(vmapped(multi_krum)(with_nan, f, n_selected, where))
    for case in range(220):
        values = x[case][where[case]].astype(float)
        expected = numpy_krum(values, f[case])
        np.testing.assert_allclose(score[case][where[case]], expected, rtol=1e-5, atol=1e-6)
        assert (score[case][~where[case]] == np.inf).all()
        order = np.sort(expected)
        k = min(n_selected[case], len(values))
        if k == len(values) or order[k] - order[k - 1] > 1e-3:  # ties by rounding would choose another one
            expected_mean = values[np.argsort(expected, kind="stable")[:k]].mean(axis=0)
            np.testing.assert_allclose(mean[case], expected_mean, rtol=1e-5, atol=1e-6)


def test_krum_survives_bad_clients_and_breaks_ties():
    honest_x = jnp.array([[0.0], [1.0], [2.0], [3.0]])
    x = jnp.concatenate([honest_x, jnp.array([[1e6], [jnp.nan]])])
    assert krum(x, 1)[0] in (1.0, 2.0)
    np.testing.assert_array_equal(multi_krum(x, 1, 4), [1.5])
    np.testing.assert_array_equal(krum(jnp.array([[5.0], [5.0], [7.0]]), 0), [5.0])
    np.testing.assert_array_equal(krum(x, 1, jnp.zeros(6, bool), jnp.array([9.0])), [9.0])


@pytest.mark.parametrize("n", [6, *slow(1, 2, 3, 20)])
def test_geometric_median_on_a_line_is_a_median(n):
    x, where, with_nan = problems(210, n, d=1)
    actual = np.asarray(vmapped(lambda x, w: geometric_median(x, None, w))(with_nan, where))
    for case in range(210):
        values = x[case][where[case]].astype(float)
        least_cost = np.abs(values - np.median(values)).sum()
        assert (
            np.abs(values - float(actual[case, 0])).sum() <= least_cost * (1 + 1e-3) + 1e-5
        )  # slow where it is a client itself


def exact_geometric_median(x, weight):
    """(cases, d) by float64 Weiszfeld steps, where no point is the median itself."""
    z = (weight[..., None] * x).sum(axis=1) / weight.sum(axis=1, keepdims=True)
    for _ in range(3000):
        inverse_distance_weights = weight / np.maximum(np.linalg.norm(x - z[:, None], axis=2), 1e-12)
        z = (inverse_distance_weights[..., None] * x).sum(axis=1) / inverse_distance_weights.sum(axis=1, keepdims=True)
    return z


def exact_geometric_median_cost(x, weight):
    """(cases,) least cost by float64 Weiszfeld steps; a point itself where no interior point is cheaper."""
    cost = lambda z: (weight * np.linalg.norm(x - z[:, None], axis=2)).sum(axis=1)  # noqa: E731
    z = exact_geometric_median(x, weight)
    return np.minimum(cost(z), np.min([cost(x[:, i]) for i in range(x.shape[1])], axis=0)), cost


@pytest.mark.parametrize(("n", "d"), [(1, 3), (6, 4), *slow_rows((2, 2), (3, 2), (15, 2))])
def test_geometric_median_is_the_cheapest_point(n, d):
    x, where, with_nan = problems(210, n, d)
    weight = np.random.default_rng(n).random((210, n)).astype(np.float32) + 0.05
    weight[::3] = 1
    actual = vmapped(geometric_median)(with_nan, weight, where)
    least_cost, cost = exact_geometric_median_cost(x.astype(float), np.where(where, weight, 0).astype(float))
    # The stopping rule leaves a share of 1e-4 at most.
    assert (cost(np.asarray(actual, float)) <= least_cost * (1 + 1e-4) + 1e-6).all()


def test_geometric_median_equals_scipy():
    rng = np.random.default_rng(1)
    x, weight = rng.normal(size=(40, 9, 3)).astype(np.float32), rng.random((40, 9)).astype(np.float32)
    actual = np.asarray(vmapped(geometric_median)(x, weight))
    for case in range(40):
        cost = lambda z, c=case: (weight[c] * np.linalg.norm(x[c].astype(float) - z, axis=1)).sum()  # noqa: E731
        least_cost = minimize(
            cost, x[case].mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}
        ).fun
        assert cost(np.asarray(actual[case], float)) <= least_cost * (
            1 + 1e-4
        )  # the stopping rule's and smoothing's error


@pytest.mark.parametrize("far", [1e4, 1e6, 1e8, 1e12, 1e18, 1e20, 1e38, np.nan])
def test_nobody_is_so_far_out_that_the_others_are_forgotten(far):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(11, 5)).astype(np.float32)
    x[[2, 7]] = far * np.array([[1, 0.3, 0, -0.5, 0.2], [0.1, -1, 0.4, 0, 0]])
    weight = rng.random(11).astype(np.float32) + 0.2
    honest_clients = np.delete(np.arange(11), [2, 7])
    is_counted = np.isfinite(far) and far < 1e19  # beyond, squares leave float32
    counted_x, weights = (x, weight) if is_counted else (x[honest_clients], weight[honest_clients])
    expected_median = exact_geometric_median(counted_x[None].astype(float), weights[None].astype(float))[0]
    np.testing.assert_allclose(geometric_median(x, weight), expected_median, atol=3e-2)
    chosen = np.asarray(krum(x, 2))
    assert any((chosen == x[i]).all() for i in honest_clients)
    expected = krum(x[honest_clients], 0 if is_counted else 2)  # of nine at hand the same seven are counted
    assert is_counted or (chosen == expected).all()
    scores = np.asarray(krum_scores(x, 2))
    assert np.isfinite(scores[honest_clients]).all()
    assert (scores[[2, 7]] > scores[honest_clients].max()).all()
    mean_of_5 = np.asarray(multi_krum(x, 2, 5))
    assert np.abs(mean_of_5).max() < 10


def test_a_step_away_from_a_client_is_held_back_by_its_weight():
    # The mean is the first client, but for rounding where all are moved. The others pull by 2 towards -0.6, which is
    # the mean by inverse distances; the client's own weight of 1 takes back half of the way.
    shift = (np.arange(30) / 7).astype(np.float32)[:, None, None]
    x = np.float32([0, 3, -1, -1, -1])[:, None] + shift
    actual = vmapped(lambda x: geometric_median(x, n_steps=1))(x)
    np.testing.assert_allclose(actual - shift[:, 0], -0.3, atol=1e-5)


def test_geometric_median_ignores_far_outliers():
    x = np.concatenate([np.arange(6, dtype=np.float32)[:, None] * np.float32([1, 0]), np.full((2, 2), 1e5, np.float32)])
    actual = np.asarray(geometric_median(x))
    assert (actual >= 0).all()
    assert (actual <= 10).all()


@pytest.mark.parametrize("n", [4, *slow(1)])
def test_clip_norm_equals_numpy(n):
    rng = np.random.default_rng(n)
    x, limit = rng.normal(size=(500, n, 5)).astype(np.float32), rng.random(500).astype(np.float32) * 4
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    actual = vmapped(clip_norm)({"a": x[..., :2], "b": x[..., 2:]}, limit)
    expected = x * np.minimum(1, limit[:, None, None] / norm)
    np.testing.assert_allclose(np.concatenate([actual["a"], actual["b"]], axis=-1), expected, rtol=1e-5)


def test_clip_norm_edges():
    x = {"w": np.float32([[3, 4], [0, 0], [np.nan, 1]]), "batch_stats": {"w": np.full(3, 9, np.float32)}}
    actual = jax.device_get(jax.jit(clip_norm)(x, 1.0))
    np.testing.assert_allclose(actual["w"][:2], [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(actual["batch_stats"]["w"], 9)
    assert np.isfinite(jax.jit(jax.grad(lambda u: clip_norm(u, 1.0).sum()))(x["w"][:2])).all()
    float16_x = np.float16([[300, 400], [3, 4]])  # whose squares float16 does not hold
    np.testing.assert_allclose(clip_norm(float16_x, 5.0), [[3, 4], [3, 4]], rtol=2e-3)


@pytest.mark.parametrize(("limit", "d"), [(0.1, 100_000), (0.01, 1000)])
def test_a_small_norm_of_a_long_float16_update_is_the_limit(limit, d):
    """The factor, 3e-7 here, has few digits or none in float16, whose smallest number is 6e-8."""
    x = np.random.default_rng(0).uniform(900, 1100, (1, d)).astype(np.float16)
    actual = np.asarray(clip_norm(x, limit), np.float64)
    np.testing.assert_allclose(np.linalg.norm(actual), limit, rtol=2e-3)
    np.testing.assert_allclose(actual, limit * x / np.linalg.norm(x.astype(np.float64)), rtol=2e-3)


def test_permutation_scaling_and_range():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 7, 4)).astype(np.float32)
    order = rng.permuted(np.broadcast_to(np.arange(7), (100, 7)), axis=1)
    permuted_x = np.take_along_axis(x, order[..., None], axis=1)

    @vmapped
    def every_rule(x):
        return coordinate_median(x), trimmed_mean(x, 0.2), multi_krum(x, 1, 3), geometric_median(x)

    for y, of_permuted, of_larger in zip(*jax.device_get([every_rule(v) for v in (x, permuted_x, 4 * x)]), strict=True):
        np.testing.assert_allclose(of_permuted, y, rtol=1e-3, atol=1e-3)  # the stopping rule of Weiszfeld
        np.testing.assert_allclose(of_larger, 4 * y, rtol=1e-3, atol=1e-3)
        assert ((y >= x.min(axis=1) - 1e-6) & (y <= x.max(axis=1) + 1e-6)).all()


def test_gradients():
    gradient_of = lambda rule: jax.jit(jax.grad(lambda x: rule(x)[0]))  # noqa: E731
    x = np.float32([[1], [2], [2], [5]])
    np.testing.assert_array_equal(gradient_of(coordinate_median)(x).T, [[0, 0.5, 0.5, 0]])
    x = np.float32([[1], [2], [3], [5], [9]])
    expected = [[0, 1 / 3, 1 / 3, 1 / 3, 0]]
    np.testing.assert_allclose(np.asarray(gradient_of(lambda x: trimmed_mean(x, 0.2))(x)).T, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(gradient_of(lambda x: krum(x, 1))(x)).T, [[0, 1, 0, 0, 0]])


@pytest.mark.parametrize(
    "x", [[[0, 0], [1, 0], [-1, 0], [0, 2], [0, -2]], [[-2, -2], [-2, 2], [-2, -1], [-2, 1], [-2, 0]]]
)
def test_a_geometric_median_on_a_client_has_a_gradient(x):
    """The mean of all is a client, where a step has the length 0; moving all clients moves the median with them."""
    x = np.asarray(x, np.float32)
    derivative = jax.jit(lambda x: jax.jvp(geometric_median, (x,), (jnp.ones_like(x),))[1])(x)
    np.testing.assert_allclose(derivative, [1, 1], rtol=1e-6)


def test_one_program_for_every_number_and_inside_scan(traced_once):
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    step = lambda x, numbers: (x, (trimmed_mean(x, numbers[0], numbers[3]), multi_krum(x, *numbers[1:])))  # noqa: E731
    traced = traced_once(lambda *numbers: jax.lax.scan(step, x, numbers)[1])
    is_counted = np.ones((2, 7), bool)
    trimmed_means, _ = traced(np.float32([0, 0.5]), np.int32([1, 2]), np.int32([2, 3]), is_counted)
    np.testing.assert_allclose(trimmed_means, [[6, 7], [6, 7]], rtol=1e-6)
    trimmed_means, _ = traced(
        np.float32([0.1, 0.3]), np.int32([2, 1]), np.int32([3, 1]), is_counted & (np.arange(7) > 1)
    )
    np.testing.assert_allclose(trimmed_means, [[8, 9], [8, 9]], rtol=1e-6)


def test_krum_of_two_that_are_each_others_nearest_does_not_follow_their_order():
    """With one neighbour each, both have the same score; the one nearer to all is chosen, wherever it stands."""
    x = np.random.default_rng(3).normal(size=(5, 40)).astype(np.float32)
    x[4] = x[1] + 0.01
    totals = ((x[:, None].astype(float) - x[None]) ** 2).sum(axis=(1, 2))
    expected = x[1 if totals[1] < totals[4] else 4]
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 1, 3]):
        np.testing.assert_array_equal(krum(x[order], 2), expected)


def test_bulyan_survives_whoever_is_far_in_one_coordinate_alone():
    """The attack of its paper: near enough to all for Krum to take it, and far in one coordinate."""
    rng = np.random.default_rng(0)
    honest_x = rng.normal(size=(12, 400)).astype(np.float32)
    bad_x = np.tile(honest_x.mean(0), (2, 1)).astype(np.float32)
    bad_x[:, 7] += 18  # nearer to the others than these, about 28, are to each other
    x = jnp.asarray(np.concatenate([honest_x, bad_x]))
    assert multi_krum(x, 2, 10)[7] > 2
    assert abs(bulyan(x, 2)[7]) < 1
    np.testing.assert_allclose(bulyan(x, 0), x.mean(0), rtol=1e-4, atol=1e-5)


def numpy_bulyan(x, f):
    remaining, chosen = list(range(len(x))), []
    for _ in range(len(x) - 2 * f):
        sums_of_distances = ((x[remaining][:, None] - x[remaining]) ** 2).sum(axis=(1, 2))
        chosen.append(remaining.pop(np.lexsort((sums_of_distances, numpy_krum(x[remaining], f)))[0]))
    values = np.sort(x[chosen], axis=0)
    nearest = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")[: len(chosen) - 2 * f]
    return np.take_along_axis(values, nearest, axis=0).mean(axis=0)


def test_bulyan_equals_numpy():
    rng = np.random.default_rng(0)
    x, f = rng.normal(size=(100, 9, 3)).astype(np.float32), np.int32(rng.integers(0, 3, 100))
    m = 9 - rng.integers(0, 4, 100) * (f < 2)  # 4 f + 1 or more
    where = np.arange(9) < m[:, None]
    actual = np.asarray(vmapped(bulyan)(np.where(where[..., None], x, np.float32(np.nan)), f, where))
    for case in range(100):
        np.testing.assert_allclose(
            actual[case], numpy_bulyan(x[case, : m[case]].astype(float), f[case]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_bulyan_of_few_and_of_none():
    x = jnp.array([[0.0], [1.0], [5.0], [jnp.nan]])
    assert bulyan(x, 3)[0] in (0.0, 1.0)  # one model
    np.testing.assert_array_equal(bulyan(x, 1, jnp.zeros(4, bool), jnp.array([9.0])), [9.0])
    nine_models = jax.random.normal(jax.random.key(0), (9, 4))
    np.testing.assert_allclose(bulyan(nine_models, 1), bulyan(nine_models[::-1], 1), rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(bulyan)(nine_models, jnp.int32(1)), bulyan(nine_models, 1))
