"""FedMD and DS-FL: digest and revisit in NumPy, step by step, and what is refused."""

import jax
import numpy as np
import pytest
from scipy.special import softmax

import fljax
from fljax.algorithms.fedmd import DIGEST, drawn, fedmd
from fljax.rounds.cohort import everyone
from fljax.run.one_round import split_key
from tests import oracle
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, assert_models, epoch_orders, reference, run  # noqa: F401
from tests.slow import slow

N, EPOCHS, TEMPERATURE = 12, 2, 0.5


def gradient(params, x, error_of):
    """Of the two-layer MLP, by hand; ``error_of(logits)`` is the gradient with respect to the logits."""
    logits, (flat, hidden) = oracle.forward(params, x)
    error = error_of(logits)
    below = (error @ params["fc2"]["kernel"].T) * (hidden > 0)
    return {
        "fc1": {"kernel": flat.T @ below, "bias": below.sum(0)},
        "fc2": {"kernel": hidden.T @ error, "bias": error.sum(0)},
    }


def digest(params, batches, shared):
    """SGD with heavy-ball momentum over batches of (x, target)."""
    buffer = oracle.combine(np.zeros_like, params)
    for x, target in batches:
        if shared == "logits":
            g = gradient(params, x, lambda z, target=target: np.sign(z - target) / z.size)
        else:
            g = gradient(params, x, lambda z, target=target: (softmax(z, axis=1) - target) / len(z))
        buffer = oracle.combine(lambda b, g: MOMENTUM * b + g, buffer, g)
        params = oracle.combine(lambda w, b: w - LR * b, params, buffer)
    return params


@pytest.mark.parametrize("shared", ["logits", *slow("probabilities")])
def test_fedmd_in_numpy(key, model, federation, reference, shared):  # noqa: F811
    algorithm = fedmd(model, WORK, n_digested=N, digest_epochs=EPOCHS, shared=shared)
    hyper = fedmd.Hyper(lr=LR, momentum=MOMENTUM, temperature=TEMPERATURE)
    keys = everyone(reference.keys.init, np.int32(0), federation.train).key
    alone = [reference.batches(i, keys[i], epochs=1) for i in range(8)]
    models = [oracle.local_sgd(reference.start, batches, LR, MOMENTUM) for batches in alone]
    examples = np.asarray(federation.public.x, np.float64)
    for number, cohort in enumerate(reference.rounds()):
        x = np.asarray(drawn(server_key(key, number), federation.public, N).x, np.float64)
        assert all((x_i == examples).all(axis=(1, 2, 3)).any() for x_i in x)
        outputs = [oracle.forward(models[i], x)[0] for i, *_ in cohort]
        if shared == "logits":
            target = np.mean(outputs, axis=0)
        else:
            target = softmax(np.mean([softmax(z, axis=1) for z in outputs], axis=0) / TEMPERATURE, axis=1)
        for i, k, _ in cohort:
            orders = np.asarray(epoch_orders(jax.random.fold_in(k, DIGEST), np.arange(N, dtype=np.int32), N, EPOCHS))
            rows = [order[first : first + 8] for order in orders for first in range(0, N, 8)]
            digested = digest(models[i], [(x[r], target[r]) for r in rows], shared)
            models[i] = reference.train(digested, i, k)
    deployed, _ = run(algorithm, hyper, federation, key)
    assert_models(deployed, models)


def server_key(key, number):
    """The key that the library gives to the server's part of a round."""
    return jax.random.fold_in(split_key(key).server, number)


def test_public_examples_are_drawn_anew_or_all_taken(key, federation):
    public = federation.public  # 16 examples
    first, second = (drawn(jax.random.fold_in(key, i), public, N).x for i in range(2))
    assert not np.array_equal(first, second)
    everything = drawn(key, public, 500)
    np.testing.assert_array_equal(everything.y, np.arange(16))
    np.testing.assert_array_equal(np.sort(everything.x, axis=None), np.sort(public.x, axis=None))


def test_public_examples_are_needed(key, model, federation):
    with pytest.raises(ValueError, match="public is None but fedmd"):
        fljax.simulate(fedmd(model, WORK), fedmd.Hyper(), federation._replace(public=None), key, 1)
