"""JAX's own ways to look into a program work on a run."""

import jax
import numpy as np
import pytest

import fljax
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.types import Work

pytestmark = pytest.mark.slow  # operation by operation: a hundred small programs


@pytest.fixture
def run(key):
    model, federation = (
        mlp(input_shape=(4, 4, 1), hidden=(3,), n_classes=4),
        linear_groups(3, 1, examples=10, ragged=0.4),
    )

    def run_one_round(name, lr=0.1):
        algorithm = fljax.compose(name)(model, Work(epochs=1, batch_size=8))
        return fljax.simulate(algorithm, fljax.compose(name).Hyper(lr=lr), federation, key, 1, participation=0.67)

    return run_one_round


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_a_run_without_compilation_is_the_same(run, name):
    compiled = run(name)
    with jax.disable_jit():
        by_operation = run(name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), by_operation, compiled)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "dcpfl", "fedcps"])
def test_no_number_of_a_sound_run_is_nan_on_the_way(run, name):
    with jax.debug_nans(True):
        run(name)


def test_the_round_that_breaks_is_reported(run):
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run("fedavg", lr=1e38)
