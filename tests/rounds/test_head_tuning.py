"""Fine-tuning of the last layer on features that are taken once: the steps are those of every epoch's own features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.client import training_loss
from fljax.data.synthetic import linear_groups
from fljax.rounds import TunedHyper, head_tuned, tuned
from fljax.rounds.head_tuning import feature_width
from fljax.run.one_round import as_traced
from tests.algorithms.normalised import batch_normalised

SHAPE, CLASSES = (4, 4, 1), 4


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
