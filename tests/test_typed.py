"""What a user's type checker sees: basedpyright checks this file, and it runs too."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import fljax
from fljax import Algorithm, Examples, server
from fljax.rounds import Method


def test_examples_take_arrays_of_numpy_and_hold_arrays():
    examples = fljax.Examples(np.zeros((2, 3), np.float32), np.zeros(2, np.int32))
    assert_type(examples.x, Array)
    x, y = examples
    assert_type(y, Array)
    assert (x.shape, repr(examples)) == ((2, 3), "Examples(x=float32[2,3], y=int32[2])")


def test_data_sets_without_users_are_examples():
    train, test = assert_type(fljax.load("digits"), tuple[Examples, Examples])
    assert type(train) is type(test) is Examples


def test_primitives_keep_their_signatures():
    def traced(label: Array, value: Array) -> None:
        assert_type(server.adjusted_rand(label, label), Array)
        assert_type(server.kmeans(jax.random.key(0), value, 2).label, Array)
        assert_type(server.linkage(value, "average"), Array)

    label, value = jnp.zeros(3, int), jnp.zeros((3, 3))
    jax.eval_shape(traced, label, value)  # compiles nothing
    with pytest.raises(
        TypeError, match=r"^cluster_mean\(stacked, weight, label, empty\): multiple values for .*'empty'"
    ):
        server.cluster_mean(value, label, label, value, empty=value)  # pyright: ignore[reportCallIssue]


def test_methods_by_name_return_algorithms():
    assert_type(fljax.fedavg, Method)
    model = fljax.MODELS["logistic_regression"]((2, 2, 1), n_classes=2)
    assert_type(fljax.fedavg(model, fljax.Work(1, 8)), Algorithm)
