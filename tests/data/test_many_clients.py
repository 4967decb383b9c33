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

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def one_by_one(rng, labels, rows, split, stratify):
    """A client's rows as (train, validation, test), by themselves."""
    n = len(rows)
    rows = rows[rng.permutation(n)]
    if stratify:
        rows = rows[np.argsort(labels[rows], kind="stable")]
    most = n - 1 - (split[1] > 0)
    n_test = 0 if split[2] == 0 else min(max(1, round(split[2] * n)), n - 1, most)
    n_val = 0 if split[1] == 0 else min(max(1, round(split[1] * n)), n - 1, n - n_test - 1)

    def spread(n, k):
        return ((np.arange(k) + rng.random()) * n / max(k, 1)).astype(int)

    test = spread(n, n_test)
    rest = np.delete(rows, test)
    val = spread(len(rest), n_val)
    return [np.sort(part) for part in (np.delete(rest, val), rest[val], rows[test])]


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
    owned = np.split(rng.permutation(len(labels)), np.cumsum(size)[:-1])
    found = build(on_host(np.zeros((len(labels), 1), np.uint8), labels), owned, split, seed, stratify=stratify)
    rng = np.random.default_rng(seed)
    wanted = [one_by_one(rng, labels, rows, split, stratify) for rows in owned]
    for part, data in enumerate((found.train, found.val, found.test)):
        for i, rows in enumerate(() if data is None else np.asarray(data.index)):
            np.testing.assert_array_equal(rows[: data.size[i]], wanted[i][part])


def test_a_further_client_costs_few_calls():
    def made(n):
        pool = on_host(np.zeros((4 * n, 1), np.float32), np.arange(4 * n) % 3)
        return lambda: build(pool, np.split(np.arange(4 * n), n))

    made(10)()
    few, many = n_calls(made(100)), n_calls(made(1100))
    assert (many - few) / 1000 < 20  # over 100 where each was cut and checked by itself


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
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3000 * 3000


def test_dealing_classes_to_many_clients_takes_no_time_for_each_pair():
    began = time.process_time()
    holds = deal_classes(np.random.default_rng(0), np.full(20_000, 5), 10)
    assert time.process_time() - began < 15  # about 1 s; over a minute where every swap looked at every client
    assert np.all(holds.sum(axis=1) == 5)
    assert np.ptp(holds.sum(axis=0)) == 0


def taken_one_by_one(rng, labels, counts, overlap):
    """Every client's rows, those of a class drawn for one client after the other."""
    owned = [np.zeros(0, int) for _ in counts]
    for label in range(counts.shape[1]):
        rows, at = rng.permutation(np.flatnonzero(labels == label)), 0
        for i, count in enumerate(counts[:, label]):
            if count and overlap == "freely":
                mine = rng.choice(rows, count, replace=False)
            else:
                mine, at = [rows[j % len(rows)] for j in range(at, at + count)], at + count
            owned[i] = np.append(owned[i], np.asarray(mine, int))
    return owned


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["never", "if short", "freely"]), st.integers(0, 99))
def test_rows_of_all_clients_at_once_are_those_of_one_by_one(n, n_classes, overlap, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(4, size=(n, n_classes))
    per_class = max(1, counts.sum(axis=0).max() if overlap == "never" else counts.max() + 1)
    labels = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    found = take(np.random.default_rng(seed), labels, counts, overlap)
    wanted = taken_one_by_one(np.random.default_rng(seed), labels, counts, overlap)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def dominant_one_by_one(rng, have, dominant, beta, n):
    """LayerCFL's counts of each class, client by client."""
    n_major = n if len(have) == 1 else round(beta * n)
    n_minor, n_over = divmod(n - n_major, max(len(have) - 1, 1))
    counts = np.full((len(dominant), len(have)), n_minor)
    counts[np.arange(len(dominant)), dominant] = n_major
    left = have - counts.sum(axis=0)
    for i, label in enumerate(dominant):
        first = np.where(counts[i] < have, -(left + rng.random(len(have))), np.inf)
        order = np.argsort(first, kind="stable")
        extra = order[order != label][:n_over]
        counts[i, extra] += 1
        left[extra] -= 1
    return counts


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 7), st.floats(0, 1), st.integers(1, 30), st.booleans(), st.integers(0, 99))
def test_counts_by_dominant_classes_are_those_of_one_by_one(n_clients, n_classes, beta, n, even, seed):
    rng = np.random.default_rng(seed)
    have = np.full(n_classes, n_clients * n) if even else rng.integers(1, n_clients * n + 1, size=n_classes)
    dominant = np.sort(rng.integers(n_classes, size=n_clients))
    found = _counts(np.random.default_rng(seed), have, dominant, beta, n)
    np.testing.assert_array_equal(found, dominant_one_by_one(np.random.default_rng(seed), have, dominant, beta, n))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(2, 7), st.floats(0.01, 0.99), st.integers(1, 30), st.booleans(), st.integers(0, 99)
)
@example(5, 4, 0.5, 3, True, 0)  # where several classes have as much left, the draws decide
def test_the_largest_equal_clients_are_the_first_of_which_the_stock_suffices(n_clients, n_classes, beta, n, even, seed):
    rng = np.random.default_rng(seed)
    have = rng.integers(n_clients * n, 2 * n_clients * n + 1, size=1 if even else n_classes) + np.zeros(n_classes, int)
    dominant = np.sort(rng.integers(n_classes, size=n_clients))
    asked = np.full((n_clients, n_classes), (1 - beta) / (n_classes - 1))
    asked[np.arange(n_clients), dominant] = beta
    most = min(int((have / asked.sum(axis=0)).min()) + n_classes, int(have.sum()) // n_clients)
    rng = np.random.default_rng(seed)
    tried = (dominant_one_by_one(rng, have, dominant, beta, n) for n in range(most, 0, -1))
    wanted = next(counts for counts in tried if (counts.sum(axis=0) <= have).all())
    np.testing.assert_array_equal(_largest(np.random.default_rng(seed), have, dominant, beta), wanted)


def handed_out_one_by_one(rng, prior, have, size):
    """FedCPS's counts of each class, image by image."""
    counts, left, room = np.zeros(prior.shape, int), have.copy(), [size] * len(prior)
    unfilled, stock = list(range(len(prior))), have
    for which, draw in rng.random((len(prior) * size, 2)):
        place = int(which * len(unfilled))
        i = unfilled[place]
        mass = np.where(stock > 0, prior[i], 0)
        mass = mass if mass.any() else stock
        stops = np.cumsum(mass) / np.cumsum(mass)[-1]
        label = bisect.bisect_right(stops.tolist(), draw, hi=len(have) - 1)
        counts[i, label] += 1
        left[label] -= 1
        room[i] -= 1
        if room[i] == 0:
            unfilled[place] = unfilled[-1]
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
)
@example(9, 4, 151, 1e-3, 0, 1024)  # a prior of 6e-321 and of 0 for all others that are left
@example(9, 5, 40, 1e-3, 1, 5)  # clients without mass go on between the images that use up a class
def test_images_handed_out_together_are_those_of_one_by_one(n_clients, n_classes, size, alpha, seed, at_once):
    rng = np.random.default_rng(seed)
    have = np.bincount(rng.integers(n_classes, size=n_clients * size), minlength=n_classes)
    prior = rng.dirichlet(np.full(n_classes, alpha), size=n_clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedcps, "_AT_ONCE", at_once)
        found = _hand_out(np.random.default_rng(seed), prior, have, size)
    np.testing.assert_array_equal(found, handed_out_one_by_one(np.random.default_rng(seed), prior, have, size))


@pytest.mark.parametrize("partition", [dominant_label_groups, dirichlet_prior])
def test_a_further_client_of_a_partition_costs_few_calls(partition):
    def made(n):
        train, test = (on_host(np.zeros((k * n, 1), np.float32), np.arange(k * n) % 10) for k in (16, 4))
        return lambda: partition(train, test, n)

    made(10)()
    few, many = n_calls(made(100)), n_calls(made(1100))
    assert (many - few) / 1000 < 40  # 65 and 94 where images and classes were given out one by one


def test_dirichlet_refuses_what_no_draw_will_give_after_a_few():
    train, test = (on_host(np.zeros((n, 1), np.uint8), np.arange(n) % 10) for n in (40_000, 10))
    with pytest.raises(ValueError, match=r"in 100 draws at least \d{3} of 2000 clients had fewer than min_size=10"):
        dirichlet(train, test, 2000)
