"""Every model: parameter counts, layer order, modes, and one client against a stack of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.models import MODELS, cnn, fedcr_cnn, femnist_cnn, lenet, logistic_regression, mlp, mnist_cnn

GREY, COLOUR = (28, 28, 1), (32, 32, 3)


def count(model):
    return tree.size(jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (logistic_regression(), 7_850),
        (mlp(), 159_010),
        (mlp(GREY, (1024, 1024)), 1_863_690),
        (cnn(), 6_447_562),
        (cnn(n_classes=100), 6_493_732),
        (cnn(padding="SAME", pool="each"), 2_122_186),
        (cnn(pool="each"), 1_204_682),
        (cnn(padding="SAME"), 8_413_642),
        (lenet(COLOUR), 62_006),
        (lenet(), 212_542),
        (mnist_cnn(), 454_922),
        (femnist_cnn(), 6_603_710),
        (femnist_cnn(hidden=248), 845_510),
        (femnist_cnn(hidden=200), 691_958),
        (fedcr_cnn(), 2_806_602),
        (fedcr_cnn(n_classes=100), 2_898_852),
        (fedcr_cnn(GREY), 1_258_798),
    ],
)
def test_parameter_counts(model, expected):
    assert count(model) == expected


def test_counts_per_layer():
    params = jax.eval_shape(cnn().init, jax.random.key(0))
    assert [tree.size(params[name]) for name in cnn().layers] == [896, 18_496, 6_423_040, 5_130]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_layers_name_the_trainable_subtrees(name):
    model = MODELS[name]()
    params, _ = tree.split_statistics(jax.eval_shape(model.init, jax.random.key(0)))
    assert sorted(model.layers) == sorted(params)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_equal_arguments_give_the_same_model(name):
    assert MODELS[name]() is MODELS[name]()
    assert MODELS[name](n_classes=7) is not MODELS[name]()


def test_dropout_only_in_training_mode(key):
    model = cnn((12, 12, 1), channels=(2, 3), hidden=(8,))
    params, x = model.init(key), jax.random.normal(key, (4, 12, 12, 1))
    evaluated, same = model.apply(params, x, None)
    assert same is params
    assert not np.allclose(model.apply(params, x, key)[0], evaluated)
    assert not np.allclose(model.apply(params, x, key)[0], model.apply(params, x, jax.random.key(1))[0])


def test_bfloat16_computation_keeps_float32_parameters(key):
    model, exact = (cnn((12, 12, 1), channels=(2, 3), hidden=(8,), dtype=t) for t in (jnp.bfloat16, jnp.float32))
    params, x = model.init(key), jax.random.normal(key, (4, 12, 12, 1))
    gradient = jax.grad(lambda params: model.apply(params, x, None)[0].sum())(params)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, gradient))} == {jnp.dtype("float32")}
    logits = model.apply(params, x, None)[0]
    # bfloat16 has 8 bits of mantissa: four layers of rounding to 2^-9 each.
    np.testing.assert_allclose(logits, exact.apply(params, x, None)[0], atol=0.05)
    assert not np.array_equal(logits, exact.apply(params, x, None)[0])


@pytest.mark.parametrize(("field", "value"), [("pool", "twice"), ("dropout", (0.5, 1.0))])
def test_bad_input(field, value):
    with pytest.raises(ValueError, match=field):
        cnn(**{field: value})


@pytest.mark.parametrize(
    ("factory", "shape", "arguments"),
    [
        (mlp, (8, 8, 1), {"hidden": (16,)}),
        (cnn, (12, 12, 3), {"channels": (4, 5), "hidden": (9,)}),
        (lenet, (20, 20, 3), {}),
        (lenet, (8, 8, 1), {}),
    ],
)
def test_a_client_equals_its_row_of_a_stack(key, factory, shape, arguments):
    model, n_clients = factory(shape, **arguments), 4
    x = jax.random.normal(key, (n_clients, 5, *shape))
    start = jax.vmap(model.init)(jax.random.split(key, n_clients))

    def train(params, x):
        def step(params, _):
            gradient = jax.grad(lambda p: jnp.square(model.apply(p, x, None)[0]).mean())(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, params, length=3)[0]

    stacked = jax.jit(jax.vmap(train))(start, x)
    single = jax.jit(train)
    for i in range(n_clients):
        alone = single(tree.take(start, i), x[i])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), alone, tree.take(stacked, i))
