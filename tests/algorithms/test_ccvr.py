"""CCVR: the calibrated head in NumPy, step by step, and the distribution of the virtual features."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.ccvr import ccvr, seen_examples, virtual_features
from fljax.data.synthetic import linear_groups
from fljax.run.newcomers import new_models
from fljax.run.one_round import as_traced, split_key
from tests import oracle
from tests.algorithms.round_by_round import jitted, written_out
from tests.algorithms.test_oracles import LR, WORK, epoch_orders, reference, run, without_a_class  # noqa: F401

N_VIRTUAL, EPOCHS, FT_LR = 7, 3, 0.3


def drawn(e, features, y):
    """What normal numbers ``e`` make of the examples, class after class."""
    draws = []
    for c in np.unique(y[y >= 0]):
        own = features[y == c]
        draws.append(own.mean(0) + e[:, y == c] @ (own - own.mean(0)) / np.sqrt(max(len(own) - 1, 1)))
    return np.concatenate(draws)


def examples_by_place(theta, data):
    """Each place's features in NumPy and class, -1 past a client's size."""
    is_there = np.arange(data.index.shape[1]) < np.asarray(data.size)[:, None]
    x, y = np.asarray(data.pool.x, np.float64), np.asarray(data.pool.y)
    rows = np.asarray(data.index).ravel()
    return oracle.forward(theta, x[rows])[1][-1], np.where(is_there.ravel(), y[rows], -1)


def test_the_head_in_numpy(key, model, federation, reference):  # noqa: F811
    """Of a FedAvg run whose clients have three of the four classes, of which one client has NaN."""
    federation = without_a_class(federation)
    hyper = ccvr.Hyper(lr=LR, ft_lr=FT_LR)
    algorithm = ccvr(model, WORK, n_virtual=N_VIRTUAL, ft_epochs=EPOCHS)
    _, state = run(algorithm, hyper, federation, key)
    nan_rows = federation.train.index[2, :1]
    pool = federation.train.pool._replace(x=federation.train.pool.x.at[nan_rows].set(jnp.nan))
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train._replace(pool=pool))

    theta, data, keys = oracle.as_float64(state.server), federation.train, jax.random.split(key)
    features, y = examples_by_place(theta, data)
    y.reshape(8, -1)[2] = -1
    e = np.asarray(jax.random.normal(keys[0], (N_VIRTUAL, len(y))), np.float64)
    z, label = drawn(e, features, y), np.repeat([0, 1, 2], N_VIRTUAL)
    head, n = {"fc2": theta["fc2"]}, len(label)
    index = np.concatenate([np.arange(n), np.arange(N_VIRTUAL) + n])  # the places of the last class come last
    for order in np.asarray(epoch_orders(keys[1], index, n, EPOCHS))[:, :n]:
        for rows in np.split(order, range(WORK.batch_size, n, WORK.batch_size)):
            head = oracle.combine(lambda w, g: w - FT_LR * g, head, oracle.gradient(head, z[rows], label[rows]))
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[0], deployed.params), theta | head, rtol=1e-4, atol=1e-5)
    assert np.abs(head["fc2"]["kernel"] - theta["fc2"]["kernel"]).max() > 0.05


def test_virtual_features_have_the_mean_and_covariance_of_their_class():
    rng, n_virtual = np.random.default_rng(0), 20_000
    y = np.int32([0] * 6 + [1] + [2] * 40 + [-1] * 3)
    features = np.float32(rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3)) + 2 * y[:, None])
    clients = jax.jit(virtual_features, static_argnums=(3, 4))(jax.random.key(1), features, y, 4, n_virtual)
    size, rows = int(clients.size[0]), np.asarray(clients.index[0])
    label = np.asarray(clients.pool.y)[rows[:size]]
    np.testing.assert_array_equal(label, np.repeat([0, 1, 2], n_virtual))
    z = np.asarray(clients.pool.x, np.float64)[rows[:size]]
    for c in (0, 2):
        np.testing.assert_allclose(z[label == c].mean(0), features[y == c].mean(0), atol=0.1)
        np.testing.assert_allclose(np.cov(z[label == c].T), np.cov(features[y == c].T), rtol=0.1, atol=0.1)
    np.testing.assert_allclose(z[label == 1], np.broadcast_to(features[6], (n_virtual, 3)), rtol=1e-6)


def test_without_epochs_and_in_its_rounds_it_is_fedavg(key, model, federation):
    fedavg, hyper = fljax.fedavg(model, WORK), fljax.fedavg.Hyper(lr=LR)
    untuned = written_out(ccvr(model, WORK, ft_epochs=0), ccvr.Hyper(lr=LR), federation)
    assert untuned == written_out(fedavg, hyper, federation)
    tuned = written_out(ccvr(model, WORK)._replace(deploy=fedavg.deploy), ccvr.Hyper(lr=LR), federation)
    assert tuned == untuned
    assert written_out(ccvr(model, WORK), ccvr.Hyper(lr=LR), federation) != untuned


def test_new_clients_get_the_model_of_the_rounds(key, model, federation):
    """Whatever they have themselves."""
    algorithm, hyper = ccvr(model, WORK), as_traced(ccvr.Hyper(lr=LR))
    state = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    joined = new_models(algorithm, hyper, state, linear_groups(3, 2, examples=24).train, key, jnp.int32(2))
    assert joined.row.shape == (3,)
    chex.assert_trees_all_equal(fljax.client_model(joined, 1), state.server)


@pytest.mark.parametrize(
    ("brick", "why"),
    [("dp_sgd", "send moments of their features"), ("client_dp", "noise on a mean does not hide a client")],
)
def test_privacy_that_does_not_cover_the_moments_is_refused(brick, why, model):
    method = fljax.compose(f"ccvr+{brick}")
    with pytest.raises(ValueError, match=why):
        method(model, WORK)


def test_places_past_a_clients_size_and_clients_with_nan_are_no_examples(model, federation, key):
    theta, data = model.init(key), federation.train
    x = data.pool.x.at[data.index[5, :1]].set(jnp.nan)
    features, y = jax.jit(lambda x: seen_examples(model, theta, data._replace(pool=data.pool._replace(x=x))))(x)
    expected, expected_y = examples_by_place(oracle.as_float64(theta), data)
    expected_y.reshape(8, -1)[5] = -1
    assert (expected_y.reshape(8, -1)[:5] == -1).any()
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_allclose(features, np.where(expected_y[:, None] < 0, 0, expected), rtol=1e-5, atol=1e-6)
