"""Federations of 1e5 clients and more: what the host does for each client, and nothing for each pair of them."""

import bisect
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fljax.data.divergence import mean_kld, symmetric_kld
from fljax.data.federation import build, on_host
from fljax.data.partition import dirichlet, dirichlet_prior, dominant_label_groups, fedcps
from fljax.data.partition.deal import deal_classes, take
from fljax.data.partition.fedcps import _hand_out
from fljax.data.partition.groups import _counts, _largest


def n_calls(function):
    """How many functions, of Python and of C, are called in the call of ``function``."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    old_profile = sys.getprofile()
    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(old_profile)
    return count


def one_by_one(rng, labels, rows, split, stratify):
    """A client's rows as (train, validation, test), by themselves."""
    n = len(rows)
    rows = rows[rng.permutation(n)]
    if stratify:
        rows = rows[np.argsort(labels[rows], kind="stable")]
    most_tested = n - 1 - (split[1] > 0)
    n_test = 0 if split[2] == 0 else min(max(1, round(split[2] * n)), n - 1, most_tested)
    n_val = 0 if split[1] == 0 else min(max(1, round(split[1] * n)), n - 1, n - n_test - 1)

    def evenly(n, k):
        return ((np.arange(k) + rng.random()) * n / max(k, 1)).astype(int)

    test = evenly(n, n_test)
    not_tested = np.delete(rows, test)
    val = evenly(len(not_tested), n_val)
    return [np.sort(part) for part in (np.delete(not_tested, val), not_tested[val], rows[test])]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(3, 30), min_size=1, max_size=9),
    st.sampled_from([(0.8, 0.0, 0.2), (0.6, 0.2, 0.2), (0.34, 0.33, 0.33), (0.02, 0.49, 0.49)]),
    st.integers(0, 99),
    st.booleans(),
)
def test_all_clients_at_once_are_split_as_one_by_one(size, split, seed, stratify):
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=sum(size))
    rows_by_client = np.split(rng.permutation(len(labels)), np.cumsum(size)[:-1])
    federation = build(
        on_host(np.zeros((len(labels), 1), np.uint8), labels), rows_by_client, split, seed, stratify=stratify
    )
    rng = np.random.default_rng(seed)
    expected = [one_by_one(rng, labels, rows, split, stratify) for rows in rows_by_client]
    for part, data in enumerate((federation.train, federation.val, federation.test)):
        for i, rows in enumerate(() if data is None else np.asarray(data.index)):
            np.testing.assert_array_equal(rows[: data.size[i]], expected[i][part])


def test_a_further_client_costs_few_calls():
    def build_of(n):
        pool = on_host(np.zeros((4 * n, 1), np.float32), np.arange(4 * n) % 3)
        return lambda: build(pool, np.split(np.arange(4 * n), n))

    build_of(10)()
    n_of_100, n_of_1100 = n_calls(build_of(100)), n_calls(build_of(1100))
    assert (n_of_1100 - n_of_100) / 1000 < 20  # over 100 where each was cut and checked by itself


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(0, 99))
def test_mean_divergence_is_that_of_all_pairs(n, seed):
    counts = np.random.default_rng(seed).integers(1, 30, size=(n, 5))
    pairs = symmetric_kld(counts)[np.triu_indices(n, 1)]
    assert mean_kld(counts) == pytest.approx(pairs.mean() if n > 1 else 0.0, rel=1e-9, abs=1e-15)


def test_mean_divergence_makes_no_matrix_of_pairs():
    counts = np.random.default_rng(0).integers(1, 30, size=(3000, 4))
    tracemalloc.start()
    mean_kld(counts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3000 * 3000


def test_dealing_classes_to_many_clients_takes_no_time_for_each_pair():
    start = time.process_time()
    holds = deal_classes(np.random.default_rng(0), np.full(20_000, 5), 10)
    assert time.process_time() - start < 15  # about 1 s; over a minute where every swap looked at every client
    assert np.all(holds.sum(axis=1) == 5)
    assert np.ptp(holds.sum(axis=0)) == 0


def taken_one_by_one(rng, labels, counts, overlap):
    """Every client's rows, those of a class drawn for one client after the other."""
    rows_by_client = [np.zeros(0, int) for _ in counts]
    for label in range(counts.shape[1]):
        rows, position = rng.permutation(np.flatnonzero(labels == label)), 0
        for i, count in enumerate(counts[:, label]):
            if count and overlap == "freely":
                chosen = rng.choice(rows, count, replace=False)
            else:
                chosen, position = [rows[j % len(rows)] for j in range(position, position + count)], position + count
            rows_by_client[i] = np.append(rows_by_client[i], np.asarray(chosen, int))
    return rows_by_client


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["never", "if short", "freely"]), st.integers(0, 99))
def test_rows_of_all_clients_at_once_are_those_of_one_by_one(n, n_classes, overlap, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(4, size=(n, n_classes))
    per_class = max(1, counts.sum(axis=0).max() if overlap == "never" else counts.max() + 1)
    labels = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    actual = take(np.random.default_rng(seed), labels, counts, overlap)
    expected = taken_one_by_one(np.random.default_rng(seed), labels, counts, overlap)
    for rows, expected_rows in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(rows, expected_rows)


def dominant_one_by_one(rng, stock, dominant, beta, n):
    """LayerCFL's counts of each class, client by client."""
    n_major = n if len(stock) == 1 else round(beta * n)
    n_minor, n_over = divmod(n - n_major, max(len(stock) - 1, 1))
    counts = np.full((len(dominant), len(stock)), n_minor)
    counts[np.arange(len(dominant)), dominant] = n_major
    left = stock - counts.sum(axis=0)
    for i, label in enumerate(dominant):
        priority = np.where(counts[i] < stock, -(left + rng.random(len(stock))), np.inf)
        order = np.argsort(priority, kind="stable")
        labels_of_extra = order[order != label][:n_over]
        counts[i, labels_of_extra] += 1
        left[labels_of_extra] -= 1
    return counts


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 7), st.floats(0, 1), st.integers(1, 30), st.booleans(), st.integers(0, 99))
def test_counts_by_dominant_classes_are_those_of_one_by_one(n_clients, n_classes, beta, n, even, seed):
    rng = np.random.default_rng(seed)
    stock = np.full(n_classes, n_clients * n) if even else rng.integers(1, n_clients * n + 1, size=n_classes)
    dominant = np.sort(rng.integers(n_classes, size=n_clients))
    actual = _counts(np.random.default_rng(seed), stock, dominant, beta, n)
    np.testing.assert_array_equal(actual, dominant_one_by_one(np.random.default_rng(seed), stock, dominant, beta, n))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(2, 7), st.floats(0.01, 0.99), st.integers(1, 30), st.booleans(), st.integers(0, 99)
)
@example(5, 4, 0.5, 3, True, 0)  # where several classes have as much left, the draws decide
def test_the_largest_equal_clients_are_the_first_of_which_the_stock_suffices(n_clients, n_classes, beta, n, even, seed):
    rng = np.random.default_rng(seed)
    stock = rng.integers(n_clients * n, 2 * n_clients * n + 1, size=1 if even else n_classes) + np.zeros(n_classes, int)
    dominant = np.sort(rng.integers(n_classes, size=n_clients))
    shares = np.full((n_clients, n_classes), (1 - beta) / (n_classes - 1))
    shares[np.arange(n_clients), dominant] = beta
    largest = min(int((stock / shares.sum(axis=0)).min()) + n_classes, int(stock.sum()) // n_clients)
    rng = np.random.default_rng(seed)
    candidates = (dominant_one_by_one(rng, stock, dominant, beta, n) for n in range(largest, 0, -1))
    expected = next(counts for counts in candidates if (counts.sum(axis=0) <= stock).all())
    np.testing.assert_array_equal(_largest(np.random.default_rng(seed), stock, dominant, beta), expected)


def handed_out_one_by_one(rng, prior, images, size):
    """FedCPS's counts of each class, image by image."""
    counts, left, n_missing = np.zeros(prior.shape, int), images.copy(), size.tolist()
    unfilled, stock = list(range(len(prior))), images
    for client_draw, draw in rng.random((sum(n_missing), 2)):
        position = int(client_draw * len(unfilled))
        i = unfilled[position]
        mass = np.where(stock > 0, prior[i], 0)
        mass = mass if mass.any() else stock
        stops = np.cumsum(mass) / np.cumsum(mass)[-1]
        label = bisect.bisect_right(stops.tolist(), draw, hi=len(images) - 1)
        counts[i, label] += 1
        left[label] -= 1
        n_missing[i] -= 1
        if n_missing[i] == 0:
            unfilled[position] = unfilled[-1]
            unfilled.pop()
        if left[label] == 0:
            stock = left.copy()
    return counts


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 300),
    st.sampled_from([1e-3, 0.1, 0.6, 9.0]),
    st.integers(0, 99),
    st.sampled_from([5, 1024]),
    st.booleans(),
)
@example(9, 4, 151, 1e-3, 0, 1024, True)  # a prior of 6e-321 and of 0 for all others that are left
@example(9, 5, 40, 1e-3, 1, 5, True)  # clients without mass go on between the images that use up a class
def test_images_handed_out_together_are_those_of_one_by_one(n_clients, n_classes, most, alpha, seed, at_once, even):
    rng = np.random.default_rng(seed)
    stock = np.bincount(rng.integers(n_classes, size=n_clients * most), minlength=n_classes)
    prior = rng.dirichlet(np.full(n_classes, alpha), size=n_clients)
    size = np.full(n_clients, most) if even else rng.integers(1, most + 1, size=n_clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedcps, "_AT_ONCE", at_once)
        actual = _hand_out(np.random.default_rng(seed), prior, stock, size)
    np.testing.assert_array_equal(actual, handed_out_one_by_one(np.random.default_rng(seed), prior, stock, size))


@pytest.mark.parametrize("partition", [dominant_label_groups, dirichlet_prior])
def test_a_further_client_of_a_partition_costs_few_calls(partition):
    def partition_of(n):
        train, test = (on_host(np.zeros((k * n, 1), np.float32), np.arange(k * n) % 10) for k in (16, 4))
        return lambda: partition(train, test, n)

    partition_of(10)()
    n_of_100, n_of_1100 = n_calls(partition_of(100)), n_calls(partition_of(1100))
    assert (n_of_1100 - n_of_100) / 1000 < 40  # 65 and 94 where images and classes were given out one by one


def test_dirichlet_refuses_what_no_draw_will_give_after_a_few():
    train, test = (on_host(np.zeros((n, 1), np.uint8), np.arange(n) % 10) for n in (40_000, 10))
    with pytest.raises(ValueError, match=r"in 100 draws at least \d{3} of 2000 clients had fewer than min_size=10"):
        dirichlet(train, test, 2000)
