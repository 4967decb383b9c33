"""Federations of 1e5 clients and more: what the host does for each client, and nothing for each pair of them."""

import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.data.divergence import mean_kld, symmetric_kld
from fljax.data.federation import build, on_host
from fljax.data.partition.deal import deal_classes


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
