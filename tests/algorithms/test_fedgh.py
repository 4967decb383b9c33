"""FedGH: in NumPy, and in the limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms.fedgh import ORDER, fedgh
from fljax.run.one_round import split_key
from tests import oracle
from tests.algorithms.round_by_round import jitted
from tests.algorithms.test_oracles import (  # noqa: F401
    LR,
    WORK,
    assert_models,
    assert_sent,
    reference,
    rounds_of,
)
from tests.algorithms.test_personal import final, numpy_features
from tests.oracle import examples_of
from tests.slow import slow

SERVER_LR = 0.4


def head_gradient(head, features, y):
    """Of the mean cross-entropy of a linear layer."""
    z = features @ head["kernel"] + head["bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    delta = (p / p.sum(1, keepdims=True) - np.eye(z.shape[1])[y]) / len(y)
    return {"kernel": features.T @ delta, "bias": delta.sum(0)}


@pytest.mark.parametrize("server_batch", [*slow(1), 3])
def test_fedgh_in_numpy(key, model, federation, reference, server_batch):  # noqa: F811
    """A client goes on from its own body and the server's head; what it makes of the head is dropped."""
    bodies, head, uplink = [dict(reference.start["fc1"]) for _ in range(8)], reference.start["fc2"], []
    for cohort in reference.rounds():
        shown, uplink = [], [*uplink, {}]
        for i, k, _ in cohort:
            trained = oracle.local_sgd({"fc1": bodies[i], "fc2": head}, reference.batches(i, k), LR)
            bodies[i] = trained["fc1"]
            x, y = examples_of(federation.train, i)
            h = numpy_features(trained, x)
            place = jax.random.uniform(jax.random.fold_in(k, ORDER), (4,), jnp.float32)
            shown += [(float(place[c]), h[y == c].mean(0), c) for c in np.unique(y)]
            uplink[-1][i] = len(np.unique(y)) * (6 + 1)
        shown.sort(key=lambda one: one[0])
        for first in range(0, len(shown), server_batch):
            _, features, y = zip(*shown[first : first + server_batch], strict=True)
            gradient = head_gradient(head, np.array(features), np.array(y))
            head = {name: head[name] - SERVER_LR * gradient[name] for name in head}
    algorithm, hyper = fedgh(model, WORK, server_batch=server_batch), fedgh.Hyper(lr=LR, server_lr=SERVER_LR)
    state, metrics = rounds_of(algorithm, hyper, federation, key)
    assert_models(state.clients, [{"fc1": body} for body in bodies])
    chex.assert_trees_all_close(state.server, {"fc2": head}, rtol=1e-5, atol=1e-5)
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", [{i: 6 * 4 + 4 for i in sent} for sent in uplink])


@pytest.mark.slow
def test_fedgh_without_steps_of_the_server_keeps_the_first_head(key, model, work, federation):
    algorithm, hyper = fedgh(model, work), fedgh.Hyper(lr=0.1, server_lr=0.0)
    first = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    state = final(algorithm, hyper, federation, key)
    chex.assert_trees_all_equal(state.server, jax.device_get(first.server))
    assert not np.allclose(state.clients["fc1"]["kernel"], first.clients["fc1"]["kernel"])
