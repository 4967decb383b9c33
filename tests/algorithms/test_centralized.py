"""Centralized training: in NumPy, with one client FedAvg, and what its clients send."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.centralized import as_one_client, centralized
from fljax.data.federation import select
from fljax.run.one_round import round_keys, split_key
from fljax.types import ClientData, Cohort
from tests import oracle
from tests.algorithms.test_oracles import (  # noqa: F401
    LR,
    PLACES,
    WORK,
    assert_sent,
    epoch_orders,
    reference,
    rounds_of,
)


def test_centralized_in_numpy(key, model, federation, reference):  # noqa: F811
    """A round is SGD over the union of its participants' examples; one who participates again sends nothing again."""
    theta, sent, seen = reference.start, [], set()
    capacity = PLACES * reference.index.shape[1]
    for t, cohort in enumerate(reference.rounds()):
        ids = sorted(i for i, *_ in cohort)
        rows = np.concatenate([reference.index[i, : reference.size[i]] for i in ids])
        padded = np.pad(rows, (0, capacity - len(rows)))
        orders = epoch_orders(round_keys(key, np.int32(t)).server, padded, np.int32(len(rows)), WORK.epochs)
        batches = [
            (reference.x[batch].reshape(len(batch), -1), reference.y[batch])
            for order in np.asarray(orders)[:, : len(rows)]
            for batch in np.split(order, range(WORK.batch_size, len(rows), WORK.batch_size))
        ]
        theta = oracle.local_sgd(theta, batches, LR * 0.5**t)
        sent.append({i: 0 if i in seen else reference.size[i] * (16 + 1) for i in ids})  # 16 floats and a class
        seen |= set(ids)
    state, metrics = rounds_of(centralized(model, WORK), centralized.Hyper(lr=LR, lr_decay=0.5), federation, key)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)
    assert_sent(metrics, "uplink", sent)
    assert len(seen) < sum(map(len, sent))  # someone took part twice
    np.testing.assert_array_equal(metrics["downlink"], 0)


@pytest.mark.slow
def test_of_one_client_it_is_fedavg(key, model, federation):
    """In one batch an epoch, which has no order."""
    train, test = (select(split, jnp.arange(1)) for split in (federation.train, federation.test))
    one = fljax.Federation(train, None, test, None, None)
    work = fljax.Work(epochs=3, batch_size=None)
    (state, metrics), (expected, expected_metrics) = (
        fljax.simulate(method(model, work), method.Hyper(lr=LR), one, key, 2) for method in (centralized, fljax.fedavg)
    )
    chex.assert_trees_all_close(state.server, expected.server, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-5)


@pytest.mark.slow
def test_examples_that_are_not_finite_are_left_out_and_sent_again(key, federation):
    """Those of client 0, at which the others' padding points."""
    (x, y), index, size = jax.device_get(tuple(federation.train))
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    algorithm, others = centralized(model, fljax.Work(1, 128)), np.arange(8) > 0
    index = np.where(np.arange(index.shape[1]) < size[:, None], index, index[0, 0])
    spoilt = x.copy()
    spoilt[index[0, 0]] = np.nan

    @jax.jit
    def run(lr, x, there):
        train = ClientData(fljax.Examples(x, y), index, size)
        clients = federation._replace(train=train, there=there)
        return fljax.simulate(algorithm, fljax.LocalHyper(lr=lr), clients, key, 2)

    (state, metrics), (expected, _) = run(LR, spoilt, others | True), run(LR, x, others)
    chex.assert_trees_all_equal(state.server, expected.server)
    np.testing.assert_array_equal(metrics["ok"], [others, others])
    np.testing.assert_array_equal(metrics["uplink"], [size * (16 + 1), size * (16 + 1) * ~others])
    state, metrics = run(3e38, x, others | True)
    assert not np.asarray(metrics["ok"]).any()
    np.testing.assert_array_equal(metrics["uplink"], [size * (16 + 1)] * 2)
    chex.assert_trees_all_equal(state.server, jax.jit(model.init)(split_key(key).init))


def test_the_server_has_examples_in_the_order_of_ids(key):
    data = ClientData(fljax.Examples(None, None), np.array([[5, 6, 0], [1, 2, 3], [8, 0, 0]]), np.array([2, 3, 1]))
    cohort = Cohort(np.int32(3), np.array([4, 1, 2]), data, np.ones(3, bool), None, jax.random.split(key, 3))
    together = jax.jit(as_one_client)(key, cohort, np.array([True, True, False]))
    assert together.data.index[0, :5].tolist() == [1, 2, 3, 5, 6]
    assert (together.data.size.tolist(), int(together.round)) == ([5], 3)


def test_pixels_are_bytes():
    pool = fljax.Examples(np.zeros((5, 4, 4, 1), np.uint8), np.zeros((5, 3), np.float32))
    assert fljax.algorithms.centralized.floats_of_example(pool) == 4 * 4 / 4 + 3


def test_it_refuses_noise_for_what_clients_do_not_send(model):
    with pytest.raises(ValueError, match="dp_sgd: clients of centralized training send their examples"):
        fljax.compose("centralized+dp_sgd")(model, WORK)
