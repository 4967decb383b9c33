"""Chains on the way down: of no effect they change nothing; else model and image are those of NumPy in float64."""

import jax
import numpy as np
import pytest

import fljax
from fljax.rounds.averaging import ReceivedModels
from fljax.rounds.clock import asynchronous, buffered
from fljax.rounds.named_samplings import uniform
from fljax.rounds.uplink import Memory, Transform, with_downlink
from fljax.run.one_round import split_key
from fljax.types import State, Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.rounds.drawn import draw_cohort

WORK = Work(1, 8)


@pytest.fixture(scope="module")
def chained_method(model):
    """FedAvg with a chain down and one up."""
    method = fljax.compose("fedavg+top_k+down_top_k+down_quantize")
    return method(model, WORK), method.Hyper


def run(algorithm, hyper, federation, key, n_rounds=3):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=0.5)


@pytest.mark.slow
def test_a_chain_of_no_effect_is_none(chained_method, model, federation, key):
    algorithm, Hyper = chained_method
    plain_state, metrics = run(fljax.fedavg(model, WORK), fljax.fedavg.Hyper(lr=0.2), federation, key)
    state, chained_metrics = run(
        algorithm, Hyper(lr=0.2, top_share=1.0, down_top_share=1.0, down_bits=32.0), federation, key
    )
    jax.tree.map(np.testing.assert_array_equal, plain_state.server, state.server.own.own)
    np.testing.assert_array_equal(metrics["client_loss"], chained_metrics["client_loss"])
    np.testing.assert_array_equal(metrics["downlink"], chained_metrics["downlink"])
    # The same program, of some effect: fewer floats down, other models.
    state, chained_metrics = run(
        algorithm, Hyper(lr=0.2, top_share=0.5, down_top_share=0.1, down_bits=8.0), federation, key
    )
    assert (chained_metrics["downlink"][1:] < 0.2 * metrics["downlink"][1:]).all()
    assert (chained_metrics["client_loss"][-1] != metrics["client_loss"][-1]).any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def as_vector(params):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])


def test_the_model_and_its_image_are_those_of_numpy(chained_method, model, federation, key):
    """theta_hat <- theta_hat + C(theta - theta_hat); theta <- theta + mean of the updates from theta_hat."""
    algorithm, Hyper = chained_method
    share, send = 0.2, jitted(fljax.fedavg(model, WORK).exchange.send)
    hyper = Hyper(lr=0.2, top_share=1.0, down_top_share=share, down_bits=32.0)  # of the chain only top-k has an effect
    state = jax.device_get(jitted(algorithm.init)(split_key(key).init, hyper, federation.train))
    structure = state.server.own.own
    theta = image = as_vector(structure)
    for r in range(3):
        cohort = draw_cohort(split_key(key).cohort, np.int32(r), federation, uniform(0.5).of(9), None)
        change = theta - image
        k = round(share * len(change))
        largest = np.argsort(-np.abs(change), kind="stable")[:k]
        image = image.copy()
        image[largest] += change[largest]
        images = jax.tree.map(lambda leaf: np.stack([leaf] * 4), _unflat(image, structure))
        trained = jax.device_get(
            send(key, fljax.fedavg.Hyper(lr=0.2), State(ReceivedModels(images), ()), cohort).params
        )
        weight = np.asarray(federation.train.size)[np.asarray(cohort.ids)].astype(float)
        updates = np.stack([as_vector(jax.tree.map(lambda leaf, i=i: leaf[i], trained)) for i in range(4)]) - image
        theta = theta + weight / weight.sum() @ updates
        state, metrics = run(algorithm, hyper, federation, key, r + 1)
        np.testing.assert_allclose(as_vector(state.server.image), image, atol=2e-6)
        np.testing.assert_allclose(as_vector(state.server.own.own), theta, atol=2e-6)
    d = len(theta)
    index = np.ceil(np.log2(d))
    np.testing.assert_allclose(metrics["downlink"][1:], (32 * k + min(d, k * index)) / 32, rtol=1e-6)


def _unflat(vector, params):
    leaves, structure = jax.tree.flatten(params)
    parts = np.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(
        structure, [np.float32(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
    )


@pytest.mark.slow
def test_what_a_transform_keeps_on_the_way_down_goes_from_round_to_round(model, federation, key):
    def counted(hyper, memory, message, trip):
        return Memory(memory.server + 1, memory.clients), message

    counts = Transform(counted, lambda hyper, n_clients, shapes: Memory(np.zeros((), np.float32)), name="counts")
    state, _ = run(with_downlink(fljax.fedavg(model, WORK), counts), fljax.fedavg.Hyper(lr=0.2), federation, key, 2)
    assert state.server.link.server == 2


def test_methods_of_many_models_have_no_way_down():
    with pytest.raises(ValueError, match="no slot 'downlink'"):
        fljax.compose("ifca+down_top_k")


@pytest.mark.slow
def test_stale_clients_send_through_a_chain_too(model, federation, key):
    schedule = asynchronous(np.arange(1.0, 10.0), concurrency=4, buffer=2, n_rounds=3)
    method = fljax.compose("fedavg+top_k")
    plain_algorithm, chained_algorithm = (
        buffered(some_method(model, WORK), schedule) for some_method in (fljax.fedavg, method)
    )
    arguments = (federation, key, 3)
    _, metrics = simulate(plain_algorithm, fljax.fedavg.Hyper(lr=0.2), *arguments, sampling=schedule.sampling)
    _, chained_metrics = simulate(
        chained_algorithm, method.Hyper(lr=0.2, top_share=1.0), *arguments, sampling=schedule.sampling
    )
    np.testing.assert_allclose(metrics["client_loss"], chained_metrics["client_loss"], rtol=1e-5)
