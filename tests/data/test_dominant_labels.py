"""LayerCFL's dominant labels: on the sizes of its data sets, with and without enough images of the dominant classes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.data import partition
from fljax.data.federation import on_host
from fljax.data.partition.deal import take

from .counting import histograms


def cifar10():
    return labels_only(np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000))


def letters():
    """EMNIST letters as TFDS cuts it: the first 88,800 and 14,800 of 4,800 and 800 shuffled images of each letter."""
    rng, letter = np.random.default_rng(0), np.arange(26)
    train, test = (rng.permutation(np.repeat(letter, n)) for n in (4800, 800))
    return labels_only(train[:88_800], test[:14_800])


def labels_only(*labels):
    return [on_host(np.zeros((len(y), 1, 1, 1), np.uint8), y) for y in labels]


PAPER = [(letters, 20, 4, 0.5), (letters, 10, 2, 0.8), (cifar10, 20, 4, 0.5), (cifar10, 20, 4, 0.8)]
"""Data, clients, groups, beta: LayerCFL's main setting, its heat maps', and the main one with the heat maps' beta."""


@pytest.mark.parametrize(("beta", "examples"), [(0.5, 1500), (0.8, 1000), (0.5, None)])
def test_dominant_label_on_the_papers_numbers(beta, examples):
    """Twenty clients in four groups on 50,000 images."""
    federation = partition.dominant_label_groups(*cifar10(), 20, beta=beta, examples=examples)
    counts = histograms(federation)[0]
    n = int(federation.train.size[0])
    assert n == (examples or 1502)  # 5 * 751 + 15 * 83 = 5,000 images of a dominant class, exactly its stock
    dominant = counts.argmax(axis=1)
    assert len(set(dominant)) == 4
    for group in range(4):
        assert len(set(dominant[np.asarray(federation.group) == group])) == 1
    np.testing.assert_array_equal(counts.max(axis=1), round(beta * n))
    others = np.array([np.delete(row, label) for row, label in zip(counts, dominant, strict=True)])
    assert np.ptp(others, axis=1).max() <= 1


@pytest.mark.parametrize(("data", "n_clients", "n_groups", "beta"), PAPER)
def test_100_to_1500_examples_at_real_sizes(data, n_clients, n_groups, beta):
    """Exact counts, no image twice in a client, and owners of an image as few as the stock of its class allows."""
    train, test = data()
    for n in range(100, 1501, 200):
        federation = partition.dominant_label_groups(train, test, n_clients, n_groups=n_groups, beta=beta, examples=n)
        index, counts = np.asarray(federation.train.index), histograms(federation)[0]
        assert index.shape == (n_clients, n)
        assert all(len(np.unique(rows)) == n for rows in index)
        np.testing.assert_array_equal(counts.max(axis=1), round(beta * n))
        other_counts = np.sort(counts, axis=1)[:, :-1]
        assert np.ptp(other_counts, axis=1).max() <= 1
        owners = np.bincount(index.ravel(), minlength=len(train.y))
        for label, total in enumerate(counts.sum(axis=0)):
            owners_of_class = owners[train.y == label]
            assert owners_of_class.max() == -(-total // len(owners_of_class))
            assert owners_of_class.min() == total // len(owners_of_class)
        test_rows = np.asarray(federation.test.index)
        assert test_rows.min() >= len(train.y)  # train images come first in the pool
        assert len(np.unique(test_rows)) == test_rows.size


@pytest.mark.parametrize(
    ("data", "n_clients", "n_groups", "beta", "largest"),
    [(letters, 20, 4, 0.5, 1100), (letters, 10, 2, 0.8, 800), (cifar10, 20, 4, 0.8, 1100)],
)
def test_overlap_only_where_the_stock_is_too_short(data, n_clients, n_groups, beta, largest):
    train, test = data()
    partition_with = lambda n, **options: partition.dominant_label_groups(  # noqa: E731
        train, test, n_clients, n_groups=n_groups, beta=beta, examples=n, **options
    )
    without_overlap, default = partition_with(largest, overlap=False), partition_with(largest)
    np.testing.assert_array_equal(without_overlap.train.index, default.train.index)
    assert len(np.unique(without_overlap.train.index)) == n_clients * largest
    with pytest.raises(ValueError, match=r"class .* examples and all clients ask for"):
        partition_with(largest + 200, overlap=False)
    assert len(np.unique(partition_with(largest + 200).train.index)) < n_clients * (largest + 200)


def test_validation_images_of_a_client_are_not_its_training_images():
    federation = partition.dominant_label_groups(*cifar10(), 20, beta=0.8, examples=1500, val_fraction=0.2)
    for train, val in zip(np.asarray(federation.train.index), np.asarray(federation.val.index), strict=True):
        assert len(np.unique(np.concatenate([train, val]))) == 1500


def test_one_client_cannot_have_more_of_a_class_than_there_is():
    with pytest.raises(ValueError, match=r"class . has 5000 examples and one client asks for 5600; lower the examples"):
        partition.dominant_label_groups(*cifar10(), 20, beta=0.8, examples=7000)
    with pytest.raises(ValueError, match="class 1 has 1 examples and all clients ask for 2"):  # class 0 has enough
        take(np.random.default_rng(0), np.array([0, 0, 1]), np.ones((2, 2), int))


def test_what_does_not_divide_goes_to_a_class_that_has_more():
    """Eight images each of four classes: 4 dominant, 1 of each other, and the eighth cannot be of class 3 again."""
    train = labels_only(np.repeat(np.arange(4), (6, 6, 2, 1)))[0]
    test = labels_only(np.repeat(np.arange(4), 10))[0]
    seed = next(s for s in range(99) if set(np.random.default_rng(s).choice(4, 2, replace=False)) == {0, 1})
    federation = partition.dominant_label_groups(train, test, 12, seed=seed, n_groups=2, examples=8)
    counts = histograms(federation)[0]
    np.testing.assert_array_equal(counts[:, 3], 1)
    np.testing.assert_array_equal(np.sort(counts, axis=1), np.tile([1, 1, 2, 4], (12, 1)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.data())
def test_a_short_class_goes_round_and_the_others_do_not(n_classes, data):
    stock = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n_classes, max_size=n_classes)))
    counts = np.stack([[data.draw(st.integers(0, n)) for n in stock] for _ in range(data.draw(st.integers(1, 6)))])
    labels = np.repeat(np.arange(n_classes), stock)
    rows_of_clients = take(np.random.default_rng(0), labels, counts, "if short")
    for rows, expected in zip(rows_of_clients, counts, strict=True):
        np.testing.assert_array_equal(np.bincount(labels[rows], minlength=n_classes), expected)
        assert len(np.unique(rows)) == len(rows)
    owners = np.bincount(np.concatenate(rows_of_clients), minlength=len(labels))
    assert all(np.ptp(owners[labels == label]) <= 1 for label in range(n_classes))


def test_data_of_one_class_has_no_other_to_take_from():
    x = np.zeros((40, 2, 2, 1), np.float32)
    train, test = on_host(x, np.zeros(40, int)), on_host(x[:8], np.zeros(8, int))
    federation = partition.dominant_label_groups(train, test, 4, n_groups=1, beta=0.0)
    assert np.asarray(federation.train.size).tolist() == [10] * 4
