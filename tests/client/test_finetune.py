"""Adaptation after the rounds: which examples are met how often, and what stays as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import tree
from fljax.client.finetune import adapt
from fljax.types import ClientData, Examples

SIZES = np.array([7, 3, 0, 8])
N_POOL = 20


@pytest.fixture
def data():
    """Clients whose examples are numbered by their labels."""
    index = np.minimum((np.cumsum(SIZES) - SIZES)[:, None] + np.arange(8), N_POOL - 1)
    return ClientData(Examples(jnp.zeros((N_POOL, 1)), jnp.arange(N_POOL)), jnp.asarray(index), jnp.asarray(SIZES))


def adapted_params(key, data, loss, n_steps, batch_size):
    def run(key, data):
        return adapt(key, tree.everyone(jnp.zeros(N_POOL), 4), data, loss, optax.sgd(1.0), n_steps, batch_size).params

    return np.asarray(jax.jit(run)(key, data))


def counting_loss(params, batch, key):
    """Each step adds 1 to the parameters of the examples that it meets."""
    return -(params[batch.y] * batch.weight).sum(), params


def test_no_example_is_met_twice_before_all_have_been_and_passes_differ(key, data):
    first_batches = []
    for n_passes in (0, 1):
        # After whole passes of the client with seven examples in four batches, the first batch of the next.
        n_meetings = adapted_params(key, data, counting_loss, 4 * n_passes + 1, 2)
        first_batches.append(n_meetings[0, :7] - n_passes)
        assert sorted(first_batches[-1]) == [0] * 5 + [1, 1]
        assert (n_meetings[0, 7:] == 0).all()
        assert n_meetings[1].sum() == 2 * n_passes * 3 + 2  # two batches a pass, of two examples and one
        assert np.ptp(n_meetings[1, 7:10]) <= 1
    assert (first_batches[0] != first_batches[1]).any()
    np.testing.assert_array_equal(
        adapted_params(key, data, counting_loss, 3, None)[3], np.isin(np.arange(N_POOL), [*range(10, 18)]) * 3
    )


def test_who_has_no_example_or_comes_to_no_finite_loss_keeps_its_start(key, data):
    def falling_loss(params, batch, key):
        return params.sum() + jnp.where((params[0] < -2.5) & (batch.y[0] < 7), jnp.inf, 0.0), params

    params_after = adapted_params(key, data, falling_loss, 3, 2)
    np.testing.assert_array_equal(
        params_after[:, 0], [0, -3, 0, -3]
    )  # the first client's loss is infinite after three steps
    np.testing.assert_array_equal(adapted_params(key, data, falling_loss, 2, 2)[:, 0], [-2, -2, 0, -2])
