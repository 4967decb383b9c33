"""Derivatives of runs by the learning rate, through every method's own steps, against differences of runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax
from tests.algorithms.table import CASES

KINKED = ("fedgen", "gpfl")
"""Networks of their own have ReLUs, of which some are at their kink between two runs."""
NAMES = [name for name, case in CASES.items() if case.model is None and name == case.name]


class Smooth(nn.Module):
    """A network without kinks, at which differences of runs are not derivatives."""

    @nn.compact
    def __call__(self, x):
        hidden = jnp.tanh(nn.Dense(6, name="fc1")(x.reshape(len(x), -1)))
        return nn.Dense(4, name="fc2")(hidden)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in KINKED])
def test_by_the_learning_rate(name, key, federation, work):
    case, n_rounds = CASES[name], 3
    algorithm = case.make(fljax.from_linen(Smooth(), (4, 4, 1)), work)
    hyper = case.hyper

    def loss(lr):
        metrics = fljax.simulate(algorithm, hyper.replace(lr=lr), federation, key, n_rounds)[1]
        return np.float64(metrics["test_loss"][-1])

    width = 0.003 * hyper.lr  # within it no client changes its cluster, and no parameter its mask
    slope = (loss(hyper.lr + width) - loss(hyper.lr - width)) / (2 * width)
    value, derivatives = fljax.hypergradient(algorithm, hyper, federation, key, n_rounds, of=("lr",))
    np.testing.assert_allclose(value, loss(hyper.lr), rtol=1e-5)
    np.testing.assert_allclose(derivatives["lr"], slope, rtol=0.01, atol=2e-3)
    assert derivatives["lr"] != 0
    jax.clear_caches()
