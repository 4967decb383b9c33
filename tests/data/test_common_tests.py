"""One test set for all clients: each client's model on all of it, whatever it trained on."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.drift import drifting

WORK = fljax.Work(epochs=1, batch_size=8)
EXAMPLES = fljax.Examples(
    np.random.default_rng(0).normal(size=(30, 4, 4, 1)).astype(np.float32), np.arange(30, dtype=np.int32) % 4
)


def last_test(method, model, federation, key):
    algorithm, hyper = method(model, WORK), method.Hyper(lr=0.1)
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 2, evaluate_every=2, compile="fast")
    return algorithm, hyper, state, {name: np.asarray(value[-1]) for name, value in metrics.items()}


def test_each_model_is_with_common_test_all_examples(model, federation, key):
    federation_of_all = fljax.with_common_test(federation, EXAMPLES)
    algorithm, hyper, state, metrics = last_test(fljax.standalone, model, federation_of_all, key)
    models = fljax.deployed(algorithm, hyper, state, federation_of_all, key)
    for i in range(9):
        logits = algorithm.predict(fljax.client_model(models, i), jnp.asarray(EXAMPLES.x))
        expected = (np.asarray(logits).argmax(1) == EXAMPLES.y).mean()
        np.testing.assert_allclose(metrics["client_accuracy"][i], expected, rtol=1e-6)
    _, _, untouched, _ = last_test(fljax.standalone, model, federation, key)
    chex.assert_trees_all_equal(untouched, state)  # training is the same


def test_one_client_is_enough_for_one_model(model, federation, key):
    *_, of_all = last_test(fljax.fedavg, model, fljax.with_common_test(federation, EXAMPLES), key)
    *_, of_one = last_test(fljax.fedavg, model, fljax.with_common_test(federation, EXAMPLES, [4]), key)
    assert np.flatnonzero(np.isfinite(of_one["client_accuracy"])).tolist() == [4]
    for name in ("accuracy_macro", "accuracy_micro", "f1_macro", "test_loss"):
        np.testing.assert_allclose(of_one[name], of_all[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("examples", "clients", "message"),
    [
        (EXAMPLES, [9], r"clients=\[9\] are not ids of clients; give some of 0 to 8"),
        (EXAMPLES, [], r"clients=\[\] are not ids"),
        (EXAMPLES, [True], r"clients=\[True\] are not ids"),
        (
            fljax.Examples(EXAMPLES.x[:, :2], EXAMPLES.y),
            None,
            "test has examples",
        ),
        (fljax.Examples(EXAMPLES.x[:0], EXAMPLES.y[:0]), None, "no client has test examples; give some"),
        (fljax.Examples(EXAMPLES.x, EXAMPLES.y[:3]), None, "x has 30 examples and y 3"),
        (EXAMPLES.x, None, "examples is of type ndarray, not an Examples"),
    ],
)
def test_other_examples_and_clients_are_refused(federation, examples, clients, message):
    with pytest.raises(ValueError, match=message):
        fljax.with_common_test(federation, examples, clients)


def test_a_federation_that_changes_is_refused(federation):
    changing = drifting(federation, fljax.drift.DRIFTS["swap_labels"]())
    with pytest.raises(ValueError, match="the clients of the federation change over the rounds"):
        fljax.with_common_test(changing, EXAMPLES)
