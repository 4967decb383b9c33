"""FedGC: in NumPy, its correction by SciPy, and without one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.optimize import approx_fprime
from scipy.special import logsumexp, softmax

import fljax
from fljax.algorithms.fedgc import CLASSES, correction, fedgc
from fljax.run.newcomers import new_models
from fljax.run.one_round import as_traced
from tests import oracle
from tests.algorithms.round_by_round import jitted
from tests.algorithms.test_oracles import LR, WORK, Reference, assert_models, assert_sent, rounds_of
from tests.algorithms.test_personal import final
from tests.oracle import rows_of

LAM, N_CLIENTS, N_CLASSES = 0.3, 8, 4


@pytest.fixture(scope="module")
def two_classes_each(federation):
    """Client i has the classes ``i % 3`` and ``i % 3 + 1``, in training and in tests."""

    def relabelled(data):
        y = np.array(data.pool.y)
        for i in range(N_CLIENTS):
            y[rows_of(data, i)] = y[rows_of(data, i)] % 2 + i % 3
        return data._replace(pool=data.pool._replace(y=jnp.asarray(y)))

    return federation._replace(train=relabelled(federation.train), test=relabelled(federation.test))


def own_classes(i):
    return [i % 3, i % 3 + 1]


def trained_on_own_classes(body, kernel, batches, own):
    """Body and kernel after SGD on the softmax over a client's classes; its head has no bias."""
    kernel = kernel.copy()
    for x, y in batches:
        head = {"kernel": kernel[:, own], "bias": np.zeros(len(own))}
        g = oracle.gradient({"fc1": body, "fc2": head}, x, np.searchsorted(own, y))
        body = {name: body[name] - LR * g["fc1"][name] for name in body}
        kernel[:, own] -= LR * g["fc2"]["kernel"]
    return body, kernel


def compared(heads, anchor, i):
    """The embeddings of clients without class i, as (client, class), and their products with its mean embedding."""
    places = [(z, j) for z in range(N_CLIENTS) if i not in own_classes(z) for j in own_classes(z)]
    return places, [heads[z][:, j] @ anchor for z, j in places]


def numpy_correction(heads, anchors):
    """R for given mean embeddings, class by class and client by client."""
    total = 0.0
    for k in range(N_CLIENTS):
        for i in own_classes(k):
            own = heads[k][:, i] @ anchors[i]
            total += logsumexp([own, *compared(heads, anchors[i], i)[1]]) - own
    return total


def mean_embeddings(heads):
    return [np.mean([heads[k][:, i] for k in range(N_CLIENTS) if i in own_classes(k)], 0) for i in range(N_CLASSES)]


def numpy_gradient(heads):
    """Of R, with the mean embeddings held: of a softmax whose right answer is the client's own embedding."""
    anchors, result = mean_embeddings(heads), np.zeros_like(heads)
    for k in range(N_CLIENTS):
        for i in own_classes(k):
            places, scores = compared(heads, anchors[i], i)
            p_own, *p = softmax([heads[k][:, i] @ anchors[i], *scores])
            result[k][:, i] -= (1 - p_own) * anchors[i]
            for (z, j), p_other in zip(places, p, strict=True):
                result[z][:, j] += p_other * anchors[i]
    return result


def test_fedgc_in_numpy(key, model, two_classes_each):
    reference = Reference(key, model, two_classes_each)
    body, heads = reference.start["fc1"], np.stack([reference.start["fc2"]["kernel"]] * N_CLIENTS)
    uplink = []
    for number, cohort in enumerate(reference.rounds()):
        bodies = []
        for i, k, size in cohort:
            trained, heads[i] = trained_on_own_classes(body, heads[i], reference.batches(i, k), own_classes(i))
            bodies.append(({"fc1": trained}, size))
        body = oracle.average(*zip(*bodies, strict=True))["fc1"]
        heads = heads - LAM * LR * numpy_gradient(heads)
        uplink.append({i: 102 + 6 * 2 + 2 * (number == 0) for i, *_ in cohort})
    state, metrics = rounds_of(fedgc(model, WORK), fedgc.Hyper(lr=LR, lam=LAM), two_classes_each, key)
    chex.assert_trees_all_close(state.server["body"], {"fc1": body}, rtol=1e-5, atol=1e-5)
    assert_models([state.server["heads"]["fc2"]["kernel"]], [[heads[i]] for i in range(N_CLIENTS)])
    assert not state.server["heads"]["fc2"]["bias"].any()
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", [{i: 102 + 6 * 2 for i in sent} for sent in uplink])


def test_the_correction_of_heads_in_scipy():
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(N_CLIENTS, 5, N_CLASSES))
    has = np.array([[c in own_classes(k) for c in range(N_CLASSES)] for k in range(N_CLIENTS)], np.float32)
    anchors = mean_embeddings(heads)
    e = np.stack(anchors, 1).astype(np.float32)
    value, gradient = jax.jit(jax.value_and_grad(correction))(heads.astype(np.float32), has, e)
    np.testing.assert_allclose(value, numpy_correction(heads, anchors), rtol=1e-5)
    slopes = approx_fprime(heads.ravel(), lambda flat: numpy_correction(flat.reshape(heads.shape), anchors))
    np.testing.assert_allclose(gradient, slopes.reshape(heads.shape), rtol=1e-3, atol=1e-4)
    # Where all have all classes there is nobody to be told apart from, even for embeddings whose product overflows.
    value, gradient = jax.jit(jax.value_and_grad(correction))(100 * heads.astype(np.float32), np.ones_like(has), e)
    assert value == 0
    assert not gradient.any()


def test_classes_that_a_client_does_not_have_come_last(key, model, two_classes_each):
    algorithm, hyper = fedgc(model, WORK), as_traced(fedgc.Hyper(lr=LR))
    data = two_classes_each.train
    models = jitted(algorithm.deploy)(key, hyper, jitted(algorithm.init)(key, hyper, data), data)
    of_third = jax.tree.map(lambda leaf: leaf[2] if leaf.shape[0] == N_CLIENTS else leaf[0], models.params)
    np.testing.assert_array_equal(of_third[CLASSES], [0, 0, 1, 1])
    scores = np.asarray(jax.jit(algorithm.predict)(of_third, data.pool.x[:20]))
    assert (scores[:, :2].max(1) < scores[:, 2:].min(1)).all()


@pytest.mark.slow
def test_where_all_have_all_classes_fedgc_is_fedper_without_a_bias(key, work, federation):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, use_bias=False)(nn.relu(nn.Dense(6)(x.reshape(len(x), -1))))

    counts = [np.bincount(np.asarray(federation.train.pool.y)[rows_of(federation.train, i)]) for i in range(8)]
    assert all((count > 0).all() and len(count) == 4 for count in counts)  # the premise
    network = fljax.from_linen(Net(), (4, 4, 1))
    state = final(fedgc(network, work), fedgc.Hyper(lr=0.1, lam=5.0), federation, key)
    expected = final(fljax.fedper(network, work), fljax.fedper.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(state.server["body"], expected.server, rtol=1e-6, atol=1e-7)
    chex.assert_trees_all_close(state.server["heads"], expected.clients, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_newcomers_to_fedgc_start_from_the_mean_embeddings(key, model, two_classes_each):
    algorithm, hyper = fedgc(model, WORK), as_traced(fedgc.Hyper(lr=LR, lam=LAM))
    state = final(algorithm, fedgc.Hyper(lr=LR, lam=LAM), two_classes_each, key)
    models = new_models(algorithm, hyper, state, two_classes_each.train, key, jnp.int32(0))
    expected = np.stack(mean_embeddings(np.asarray(state.server["heads"]["fc2"]["kernel"], np.float64)), 1)
    kernel = np.asarray(models.params["fc2"]["kernel"])
    np.testing.assert_allclose(kernel, np.broadcast_to(expected, kernel.shape), rtol=1e-5, atol=1e-6)
    trained = new_models(algorithm, hyper, state, two_classes_each.train, key, jnp.int32(2)).params["fc2"]["kernel"]
    for i in range(N_CLIENTS):
        others = np.setdiff1d(range(N_CLASSES), own_classes(i))
        np.testing.assert_array_equal(trained[i][:, others], kernel[i][:, others])
        assert not np.allclose(trained[i][:, own_classes(i)], kernel[i][:, own_classes(i)], atol=1e-3)
