"""The proxy for FEMNIST: made-up writers with known styles."""

import jax
import numpy as np
import pytest

import fljax
from fljax import simulate
from fljax.algorithms.fedavg import fedavg
from fljax.data import partition
from fljax.data.datasets import load
from fljax.data.federation import on_host
from fljax.data.partition import people
from fljax.models import mlp
from fljax.types import Work


def test_writers_styles_differ_more_between_groups_than_within():
    """Every image is the same cross, so only the hand tells clients apart."""
    x = np.zeros((1200, 12, 12, 1), np.uint8)
    x[:, 5:7, 2:10], x[:, 2:8, 5:7] = 200, 200
    data = on_host(x, np.arange(1200) % 10)
    federation = partition.writers(data, on_host(x[:0], data.y[:0]), 24, seed=0, n_groups=3, jitter=0.05)
    hands = np.asarray(federation.train.pool.x, np.float32)[np.asarray(federation.train.index)[:, 0]].reshape(24, -1)
    distance = np.linalg.norm(hands[:, None] - hands[None], axis=-1)
    is_same_group = np.asarray(federation.group)[:, None] == np.asarray(federation.group)[None]
    assert distance[is_same_group].mean() < 0.5 * distance[~is_same_group].mean()


def test_a_hand_is_no_more_than_twice_as_strong_as_the_strongest_of_a_group(monkeypatch):
    hands = []
    monkeypatch.setattr(people, "rewrite", lambda x, hand: hands.append(hand) or x)
    data = on_host(np.zeros((400, 2, 2, 1), np.uint8), np.arange(400) % 10)
    partition.writers(data, data, 40, strength=2.0, jitter=1.0)
    assert np.abs(hands).max() == 2


@pytest.mark.slow
def test_as_many_writers_as_femnist_load_and_run(real_data, key):
    """3,500 writers of 20 MNIST images each: about 10 s to decode and to write, less than 1 GB."""
    federation = partition.writers(*load("mnist", real_data), 3500)
    size = [np.asarray(split.size) for split in (federation.train, federation.test)]
    assert sum(size).sum() == 70_000
    assert sum(size).min() >= 10
    np.testing.assert_array_equal(np.bincount(federation.group), 875)
    index = [np.asarray(split.index) for split in (federation.train, federation.test)]
    rows = np.concatenate(
        [client_rows[:n] for i, s in zip(index, size, strict=True) for client_rows, n in zip(i, s, strict=True)]
    )
    np.testing.assert_array_equal(np.sort(rows), np.arange(70_000))  # every image has one owner
    arrays = {id(leaf): leaf.nbytes for leaf in jax.tree.leaves(federation)}
    assert sum(arrays.values()) < 1.1 * 70_000 * 784  # the images once; tables of their rows are small
    model = mlp((28, 28, 1), (16,))
    _, metrics = simulate(fedavg(model, Work(1, 10)), fljax.fedavg.Hyper(), federation, key, 2, participation=10 / 3500)
    assert metrics["ids"].shape == (2, 10)
    assert metrics["client_accuracy"].shape == (2, 3500)
    assert np.isfinite(metrics["loss"]).all()
    assert np.isfinite(metrics["accuracy_macro"]).all()
