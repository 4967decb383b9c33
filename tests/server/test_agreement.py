from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fljax.server.agreement import adjusted_rand, churn, n_clusters, normalized_mutual_info, purity, raw_churn
from fljax.server.labels import MOST_BY_PAIRS
from tests.slow import slow_rows

N, CASES = 8, 200
"""Of most tests, which share their programs."""
SHAPES = [(1, 20), (2, 80), (N, CASES), (40, 150)]
LABELS = st.lists(st.integers(-1, 4), min_size=8, max_size=8)


def contingency(a, b):
    return sklearn.metrics.cluster.contingency_matrix(a, b)


def purity_oracle(label, group):
    return contingency(label, group).max(axis=1).sum() / len(label)


def churn_oracle(label_before, label_after):
    table = contingency(label_before, label_after)
    return 1 - table[linear_sum_assignment(-table)].sum() / len(label_before)


ORACLES = {
    adjusted_rand: sklearn.metrics.adjusted_rand_score,
    normalized_mutual_info: sklearn.metrics.normalized_mutual_info_score,
    purity: purity_oracle,
    churn: churn_oracle,
    raw_churn: lambda a, b: np.mean(a != b),
}
parametrize = pytest.mark.parametrize("measure", ORACLES, ids=lambda f: f.__name__)


def labellings(cases, n, seed=0):
    """Pairs of labellings: unrelated, related, renamed, constant and all different."""
    rng = np.random.default_rng(seed + n)
    a, b = rng.integers(-1, 5, (2, cases, n))
    is_other = rng.random((cases, n)) < 0.2
    b = np.where(np.arange(cases)[:, None] % 2, b, np.where(is_other, b, a))
    b[::7] = 3 - a[::7]
    a[::11], b[::13] = 2, np.arange(n)
    return a.astype(np.int32), b.astype(np.int32)


@cache
def vmapped(measure):
    return jax.jit(jax.vmap(measure))


@parametrize
@pytest.mark.parametrize(("n", "cases"), [SHAPES[2], *slow_rows(*SHAPES[:2], *SHAPES[3:])])
def test_equals_its_oracle(measure, n, cases):
    a, b = labellings(cases, n)
    actual = vmapped(measure)(a, b, np.ones((cases, n), bool))
    expected = [ORACLES[measure](x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@parametrize
def test_many_clients_are_sorted_and_not_compared_by_pairs(measure):
    a, b = labellings(8, MOST_BY_PAIRS + 44)
    where = np.random.default_rng(2).random(a.shape) < 0.8
    options = {"most_clusters": 6} if measure is churn else {}
    for i in (1, 2, 7):  # unrelated, related, renamed
        x, y, w = a[i], b[i], where[i]
        np.testing.assert_allclose(measure(x, y, w, **options), ORACLES[measure](x[w], y[w]), rtol=1e-5, atol=1e-5)


@parametrize
def test_masked_clients_never_matter(measure):
    a, b = labellings(CASES, N, 4)
    where = np.random.default_rng(9).random((CASES, N)) < 0.6
    where[:, 0] = True
    actual = vmapped(measure)(a, b, where)
    expected = [ORACLES[measure](x[w], y[w]) for x, y, w in zip(a, b, where, strict=True)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measure", [adjusted_rand, normalized_mutual_info])
def test_keeps_its_digits_when_nearly_all_clients_are_together(measure):
    # One lone client among 2,000: the quantities that make up the score differ from their bounds in the fourth digit.
    a, b = np.zeros((2, 2000), np.int32)
    a[:2], b[1:3] = (1, 2), (1, 2)
    np.testing.assert_allclose(measure(a, b), ORACLES[measure](a, b), rtol=1e-5)


@parametrize
def test_no_client_counts(measure):
    a, b = labellings(CASES, N)
    expected = 0 if measure in (churn, raw_churn) else 1
    assert (np.asarray(vmapped(measure)(a, b, np.zeros((CASES, N), bool))) == expected).all()


@given(LABELS, LABELS, st.permutations(range(8)), st.permutations(range(5)))
def test_order_of_clients_and_names_of_clusters(a, b, order, names):
    permuted_a = np.int32([a[i] for i in order])
    renamed_b = np.int32([names[b[i]] if b[i] >= 0 else -1 for i in order])
    for measure in (adjusted_rand, normalized_mutual_info, purity, churn):
        value = measure(np.int32(a), np.int32(b))
        np.testing.assert_allclose(measure(permuted_a, renamed_b), value, rtol=1e-5, atol=1e-6)


@given(LABELS, LABELS)
def test_symmetry_and_range(a, b):
    a, b = np.int32(a), np.int32(b)
    for measure in (adjusted_rand, normalized_mutual_info, churn):
        np.testing.assert_allclose(measure(a, b), measure(b, a), rtol=1e-5, atol=1e-6)
        assert measure(a, a) == (0 if measure is churn else 1)
    assert 0 <= churn(a, b) <= raw_churn(a, b) <= 1
    assert -0.5 <= adjusted_rand(a, b) <= 1 >= normalized_mutual_info(a, b) >= 0


def test_churn_is_the_kindest_renaming():
    label_before, label_after = np.int32([0, 0, 0, 1, 1, 2, 2, 2]), np.int32([1, 1, 2, 2, 0, 0, 0, 0])
    n_moved = min(
        sum(names[x] != y for x, y in zip(label_before, label_after, strict=True)) for names in permutations(range(3))
    )
    assert churn(label_before, label_after) == pytest.approx(n_moved / N)
    assert churn(label_before, label_after, most_clusters=3) == pytest.approx(n_moved / N)
    assert churn(label_before, label_after, most_clusters=2) == pytest.approx(
        5 / N
    )  # of the first two 2 and 1 are in place


@given(LABELS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_number_of_clusters(label, where):
    expected = len({x for x, w in zip(label, where, strict=True) if w and x >= 0})
    assert n_clusters(np.int32(label), np.array(where)) == expected


@parametrize
def test_one_trace_for_all_masks_and_inside_scan(measure, traced_once):
    a, b = labellings(CASES, N)
    where = np.random.default_rng(1).random((CASES, N)) < 0.7
    traced = traced_once(lambda *arguments: jax.lax.scan(lambda c, case: (c, measure(*case)), 0, arguments)[1])
    expected = np.asarray(vmapped(measure)(a, b, where))
    for rows in (slice(0, 5), slice(5, 10)):
        np.testing.assert_allclose(traced(a[rows], b[rows], where[rows]), expected[rows], rtol=1e-6)


@parametrize
def test_of_no_client_everything_agrees(measure):
    empty_label = jnp.zeros(0, jnp.int32)
    assert measure(empty_label, empty_label) == (0 if measure in (churn, raw_churn) else 1)
    assert n_clusters(empty_label) == 0


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"has shape \(3,\); expected \(2,\)"):
        adjusted_rand(jnp.array([0, 1]), jnp.array([0, 1, 2]))
    with pytest.raises(ValueError, match="50000 clients; the counts of pairs are exact in int32 up to 46340"):
        purity(*jnp.zeros((2, 50_000), jnp.int32))
    with pytest.raises(ValueError, match="most_clusters=0 is not positive"):
        churn(jnp.array([0]), jnp.array([0]), most_clusters=0)
