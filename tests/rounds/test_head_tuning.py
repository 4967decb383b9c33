"""Fine-tuning of the last layer on features that are taken once: the steps are those of every epoch's own features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.client import training_loss
from fljax.client.each_example import of_each_example
from fljax.data.synthetic import linear_groups
from fljax.devices.hosts import at_home
from fljax.devices.mesh import over_devices
from fljax.rounds import TunedHyper, head_tuned, head_tuning, layers_tuned, tuned
from fljax.rounds.head_tuning import feature_width
from fljax.run.one_round import as_traced
from tests.algorithms.normalised import batch_normalised

SHAPE, CLASSES = (4, 4, 1), 4
WORK = fljax.Work(1, 4)


def test_heads_are_those_of_features_taken_in_every_step(key):
    federation = linear_groups(3, 3, examples=9, ragged=0.5)
    model, work = fljax.MODELS["mlp"](SHAPE, n_classes=CLASSES, hidden=(6,)), fljax.Work(1, 4)
    params = model.init(key)
    numbers = as_traced(TunedHyper(lr=0.1, lr_decay=0.5, ft_lr=0.2, momentum=0.5, weight_decay=0.1))

    def deploy(key, hyper, state, data):
        return tree.everyone(params, data.n_clients)

    features_once = head_tuned(deploy, model, work, 3)
    features_every_step = tuned(deploy, training_loss(model), work, 3, model.layers[:-1])
    actual, expected = jax.jit(
        lambda *arguments: [
            some_deploy(*arguments, federation.train).params for some_deploy in (features_once, features_every_step)
        ]
    )(key, numbers, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), actual, expected)
    head = model.layers[-1]
    assert (np.asarray(actual[head]["kernel"]) != np.asarray(params[head]["kernel"])).any(axis=(1, 2)).all()


FEDERATION = linear_groups(3, 3, examples=9)


@pytest.fixture
def keeps_features(monkeypatch, key):
    """``keeps_features(model, layers, work)``: whether fine-tuning, by its trace, computes features once."""
    computed = []

    def counted(*arguments):
        computed.append(1)
        return of_each_example(*arguments)

    monkeypatch.setattr(head_tuning, "of_each_example", counted)

    def keeps(model, layers, work=WORK, federation=FEDERATION):
        def deploy(key, hyper, state, data):
            return tree.everyone(model.init(key), data.n_clients)

        computed.clear()
        tuning = layers_tuned(deploy, model, work, 3, layers)
        jax.eval_shape(lambda *given: tuning(*given, None, federation.train), key, as_traced(TunedHyper()))
        return len(computed) == 1

    return keeps


def test_features_are_kept_for_the_last_layer_alone_and_as_far_as_they_fit(monkeypatch, keeps_features):
    model = fljax.MODELS["mlp"](SHAPE, n_classes=CLASSES, hidden=(6, 5))
    with_term = WORK._replace(terms=(lambda loss, hyper: loss,))  # of the rounds, not of tuning
    for layers, expected in ((("fc1",), False), (model.layers, False), (model.layers[1:], False), (["fc3"], True)):
        assert keeps_features(model, layers, with_term) is expected
    monkeypatch.setattr(head_tuning, "MOST_FEATURES", 3 * 7 * 5)  # clients, most examples, width
    assert keeps_features(model, ("fc3",))
    monkeypatch.setattr(head_tuning, "MOST_FEATURES", 3 * 7 * 5 - 1)
    assert not keeps_features(model, ("fc3",))


def test_features_that_are_not_enough_are_not_kept(keeps_features):
    assert not keeps_features(fljax.from_linen(Past(), SHAPE, layers=("Dense_0", "past", "head")), ("head",))


def test_features_are_not_kept_where_examples_are_at_home(keeps_features):
    model = fljax.MODELS["mlp"](SHAPE, n_classes=CLASSES, hidden=(6,))
    with over_devices(jax.devices()[:2]) as mesh:
        assert keeps_features(model, ("fc2",))
        assert not keeps_features(model, ("fc2",), federation=at_home(FEDERATION, mesh))


def test_layers_and_epochs_that_there_are_not(key):
    model = fljax.MODELS["mlp"](SHAPE, n_classes=CLASSES, hidden=(6,))

    def deploy(key, hyper, state, data):
        return tree.everyone(model.init(key), data.n_clients)

    for layers in (("fc2",), ("fc1",)):
        assert layers_tuned(deploy, model, WORK, 0, layers) is deploy
        with pytest.raises(ValueError, match=r"^ft_epochs=-1 is negative; choose ft_epochs >= 0$"):
            layers_tuned(deploy, model, WORK, -1, layers)
    with pytest.raises(
        ValueError, match=r"^layers=\('fc9',\): there is no layer 'fc9'; choose among \('fc1', 'fc2'\)$"
    ):
        layers_tuned(deploy, model, WORK, 1, ("fc9",))
    with pytest.raises(ValueError, match=r"^layers='fc2' is one string; give a tuple of"):
        layers_tuned(deploy, model, WORK, 1, "fc2")
    tuning = tuned(deploy, training_loss(model), WORK, 1, ("fc9",))
    with pytest.raises(ValueError, match=r"^layers=\('fc9',\): there is no layer 'fc9'"):
        jax.eval_shape(lambda data: tuning(key, TunedHyper(), None, data), FEDERATION.train)


class Past(nn.Module):
    """A network with a way past its last layer."""

    @nn.compact
    def __call__(self, x, train=False):
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(CLASSES, name="head")(nn.relu(nn.Dense(5)(x))) + nn.Dense(CLASSES, name="past")(x)


@pytest.mark.parametrize(
    ("model", "width"),
    [
        (fljax.MODELS["mlp"](SHAPE, n_classes=CLASSES, hidden=(6,)), 6),
        (fljax.MODELS["cnn"]((8, 8, 1), CLASSES, (2, 3), hidden=(5,), dropout=(0.0, 0.0)), 5),
        (fljax.MODELS["cnn"]((8, 8, 1), CLASSES, (2, 3), hidden=(5,), dropout=(0.0, 0.5)), None),
        (batch_normalised(SHAPE, CLASSES, hidden=6), None),
        (fljax.from_linen(Past(), SHAPE, layers=("Dense_0", "past", "head")), None),
    ],
)
def test_features_that_are_random_or_depend_on_the_batch_or_are_not_enough_for_the_outputs_are_not_kept(
    key, model, width
):
    x = jnp.zeros((1, *dict(model.about).get("input_shape", SHAPE)))
    assert feature_width(model, jax.eval_shape(model.init, key), x) == width
