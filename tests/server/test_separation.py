import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from fljax.server.cluster_scores import silhouette
from fljax.server.separation import distance_gap, first_separation, pairwise_correlation, separation_gap
from tests.slow import slow, slow_rows

SHAPES = [(1, 20), (2, 80), (6, 450), (25, 450)]
MATRIX_AND_LABEL = [separation_gap, distance_gap, silhouette]


def gap_oracle(similarity, group):
    pairs = [(i, j) for i in range(len(group)) for j in range(len(group)) if i != j]
    intra = [similarity[i, j] for i, j in pairs if group[i] == group[j]]
    cross = [similarity[i, j] for i, j in pairs if group[i] != group[j]]
    return min(intra, default=np.inf) - max(cross, default=-np.inf)


def silhouette_oracle(distance, label):
    if not 1 < len(set(label)) < len(label):
        return 0
    return sklearn.metrics.silhouette_score(distance, label, metric="precomputed")


def correlation_oracle(a, b):
    upper = np.triu_indices(len(a), 1)
    x, y = a[upper].astype(float), b[upper].astype(float)
    return np.corrcoef(x, y)[0, 1] if len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0 else 0


ORACLES = {
    separation_gap: gap_oracle,
    distance_gap: lambda d, group: gap_oracle(-d, group),
    silhouette: silhouette_oracle,
    pairwise_correlation: correlation_oracle,
}
parametrize = pytest.mark.parametrize("measure", ORACLES, ids=lambda f: f.__name__)


@pytest.fixture
def problems(distances):
    """``problems(measure, cases, n)``: the two arguments of a measure, one row per case."""

    def make(measure, cases, n):
        rng = np.random.default_rng(n)
        matrices = np.concatenate([distances(k, cases // 2, n) for k in ("blobs", "ties")])
        if measure is pairwise_correlation:
            others = matrices + 2 * np.roll(matrices, 1, axis=0)
            others[::9] = 7.0  # constant
        else:
            others = rng.integers(-1, 3, (cases, n)).astype(np.int32)
            others[::9] = 1
            others[::13] = np.arange(n)
        return matrices, others

    return make


@parametrize
@pytest.mark.parametrize(("n", "cases"), [SHAPES[2], *slow_rows(*SHAPES[:2], *SHAPES[3:])])
def test_equals_its_oracle(measure, n, cases, problems):
    matrices, others = problems(measure, cases, n)
    actual = jax.jit(jax.vmap(measure))(jnp.asarray(matrices), jnp.asarray(others))
    expected = [ORACLES[measure](x, y) for x, y in zip(matrices, others, strict=True)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@parametrize
def test_masked_clients_never_matter(measure, problems):
    matrices, others = problems(measure, 200, 9)
    where = np.random.default_rng(5).random((200, 9)) < 0.7
    where[:, 0] = True
    pair = where[:, :, None] & where[:, None]
    with_nan = np.where(pair, matrices, np.nan), np.where(pair, others, np.nan) if others.ndim == 3 else others
    actual = jax.jit(jax.vmap(measure))(*map(jnp.asarray, with_nan), jnp.asarray(where))
    for case, mask in enumerate(where):
        other = others[case][np.ix_(mask, mask)] if others.ndim == 3 else others[case][mask]
        expected = ORACLES[measure](matrices[case][np.ix_(mask, mask)], other)
        np.testing.assert_allclose(actual[case], expected, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 10_000), st.permutations(range(7)), st.permutations(range(3)), st.sampled_from([0.25, 8.0]))
def test_permutation_renaming_and_scale(seed, order, names, scale):
    rng = np.random.default_rng(seed)
    position, label = rng.normal(size=(7, 2)), rng.integers(0, 3, 7)
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1).astype(np.float32)
    order = np.array(order)
    permuted = jnp.asarray(scale * distance[np.ix_(order, order)])
    renamed_label = jnp.asarray(np.array(names)[label[order]])
    distances_before, label = jnp.asarray(distance), jnp.asarray(label)
    np.testing.assert_allclose(
        silhouette(permuted, renamed_label), silhouette(distances_before, label), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        distance_gap(permuted, renamed_label), scale * distance_gap(distances_before, label), rtol=1e-6
    )
    np.testing.assert_allclose(pairwise_correlation(distances_before, 3 - scale * distances_before), -1, rtol=1e-5)


@parametrize
def test_one_trace_for_all_masks_and_inside_scan(measure, problems, traced_once):
    matrices, others = (jnp.asarray(x) for x in problems(measure, 4, 9))
    where = jnp.asarray(np.random.default_rng(1).random((4, 9)) < 0.8)
    traced = traced_once(lambda *x: measure(*x))
    expected = [traced(*x) for x in zip(matrices, others, where, strict=True)]
    _, actual = jax.lax.scan(lambda c, x: (c, measure(*x)), 0, (matrices, others, where))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@parametrize
@pytest.mark.parametrize("n", [7, *slow(1)])
def test_gradients_are_finite(measure, n, problems):
    matrix, other = (jnp.asarray(x[2]) for x in problems(measure, 8, n))
    gradient = jax.grad(lambda x: jnp.nan_to_num(measure(x, other), posinf=0.0))(matrix)
    assert jnp.isfinite(gradient).all()
    step = 2e-3 * jnp.cos(jnp.arange(n * n, dtype=jnp.float32)).reshape(n, n)
    step = step + step.T
    change = measure(matrix + step / 2, other) - measure(matrix - step / 2, other)
    if jnp.isfinite(change):
        np.testing.assert_allclose(change, (gradient * step).sum(), rtol=0.05, atol=1e-4)  # a finite difference


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"similarity has shape \(2, 3\)"):
        separation_gap(jnp.zeros((2, 3)), jnp.zeros(2, jnp.int32))
    with pytest.raises(ValueError, match=r"label has shape \(3,\)"):
        silhouette(jnp.zeros((2, 2)), jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"b has shape \(3, 3\); expected \(2, 2\)"):
        pairwise_correlation(jnp.zeros((2, 2)), jnp.zeros((3, 3)))


def test_the_first_round_of_a_positive_gap_by_hand():
    gap = jnp.asarray([[-1.0, 0.0, jnp.inf, 0.1], [0.5, -0.1, jnp.nan, -1.0], [-1.0, 0.0, 2.0, -1.0]])
    np.testing.assert_array_equal(first_separation(gap), [2, 0, 3, 1])
    assert first_separation(gap).dtype == jnp.int32


def test_the_first_round_is_numpys():
    gap = np.random.default_rng(0).normal(-1, 1, (9, 200)).astype(np.float32)
    expected = [next((t + 1 for t, value in enumerate(column) if value > 0), 0) for column in gap.T]
    np.testing.assert_array_equal(first_separation(jnp.asarray(gap)), expected)


def test_a_gap_without_rounds_is_refused():
    for shape in ((), (0, 3)):
        with pytest.raises(ValueError, match="gap has shape"):
            first_separation(jnp.zeros(shape))
