from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.server import layers
from fljax.server.layers import due_layers, shared_mask, where_layers
from tests.slow import slow

LAYERS = ("conv2", "conv1", "fc")  # forward order, on purpose not the alphabet's


def model(value):
    def full(*shape):
        return np.full(shape, value, np.float32)

    return {
        "conv1": {"kernel": full(3, 3, 2, 4), "bias": full(4)},
        "conv2": {"kernel": full(3, 3, 1, 2), "bias": full(2)},
        "fc": {"kernel": full(4, 10), "bias": full(10)},
        "batch_stats": {"conv1": {"mean": full(4)}},
    }


ZERO, ONE, NAN = model(0.0), model(1.0), model(float("nan"))
_select = jax.jit(layers.select_layers, static_argnums=(0, 4))
_size = jax.jit(layers.shared_size, static_argnums=(0, 3))


def select_layers(names, shared, on_true, on_false, boundary="tensors"):
    """`fljax.server.layers.select_layers`, compiled once for all numbers of layers."""
    return jax.device_get(_select(names, np.float32(shared), on_true, on_false, boundary))


def shared_size(names, shared, params, boundary="tensors"):
    return _size(names, np.float32(shared), params, boundary)


@pytest.mark.parametrize(
    ("boundary", "shared", "kernels", "biases"),  # how many layers have their kernel, their bias from `on_true`
    [
        ("tensors", 0.0, 0, 0),
        ("tensors", 2.92, 3, 2),  # floor(0.92 * 2) = 1 tensor of the last layer: the kernel
        ("tensors", 2.49, 2, 2),
        ("tensors", 3.0, 3, 3),
        ("tensors", 9.0, 3, 3),
        ("floor", 2.92, 2, 2),
        ("nearest-half", 2.92, 3, 3),
        ("nearest-half", 2.3, 3, 2),
        ("nearest-half", 2.2, 2, 2),
    ],
)
def test_prefix_in_forward_order(boundary, shared, kernels, biases):
    actual = select_layers(LAYERS, shared, ONE, ZERO, boundary)
    assert [int(actual[name]["kernel"].all()) for name in LAYERS] == [1] * kernels + [0] * (3 - kernels)
    assert [int(actual[name]["bias"].all()) for name in LAYERS] == [1] * biases + [0] * (3 - biases)
    expected = sum(leaf.sum() for name in LAYERS for leaf in actual[name].values())
    assert int(shared_size(LAYERS, shared, ONE, boundary)) == int(expected)


def n_covered(shared, boundary, params):
    """Scalars that a prefix covers, by counting in exact arithmetic: kernel before bias, output channels in order."""
    shared = min(max(shared, Fraction(0)), Fraction(3))
    if boundary == "nearest-half":
        shared = Fraction((2 * shared + Fraction(1, 2)).__floor__(), 2)
    n_whole, total = int(shared), 0
    share_of_next = Fraction(0) if boundary == "floor" else shared - n_whole
    for index, name in enumerate(LAYERS):
        for tensor, leaf in enumerate((params[name]["kernel"], params[name]["bias"])):
            channels = leaf.shape[-1]
            if index < n_whole:
                total += leaf.size
            elif index == n_whole and boundary == "unit-fraction":
                total += leaf.size // channels * int(share_of_next * channels)
            elif index == n_whole:
                total += leaf.size * (tensor < int(share_of_next * 2))
    return total


@pytest.mark.parametrize("boundary", ["tensors", "floor", "unit-fraction", "nearest-half"])
def test_prefix_sizes_equal_counting(boundary):
    # Steps of 1/40 meet every boundary of 2 tensors and of 2, 4 and 10 channels exactly, as float32 does not.
    steps = np.random.default_rng(0).integers(-20, 140, 300)
    sizes_of = jax.jit(jax.vmap(lambda shared: layers.shared_size(LAYERS, shared, ONE, boundary)))
    actual = sizes_of((steps / 40).astype(np.float32))
    assert actual.tolist() == [n_covered(Fraction(int(step), 40), boundary, ONE) for step in steps]


@pytest.mark.parametrize("n", [1, 7, *slow(2)])
def test_layer_choices_equal_numpy(n):
    rng = np.random.default_rng(n)
    mask = rng.random((350, n, 3)) < 0.5
    values = rng.normal(size=(2, 350, n, 3)).astype(np.float32)
    with_nan = [
        {name: {"w": np.where(is_used[..., i], side[..., i], np.float32(np.nan))} for i, name in enumerate(LAYERS)}
        for side, is_used in zip(values, (mask, ~mask), strict=True)
    ]
    actual = jax.jit(jax.vmap(lambda mask, a, b: where_layers(LAYERS, mask, a, b)))(mask, *with_nan)
    expected = np.where(mask, values[0], values[1])
    for i, name in enumerate(LAYERS):
        np.testing.assert_array_equal(actual[name]["w"], expected[..., i])


def test_due_layers_equal_python():
    rng = np.random.default_rng(0)
    rounds, interval = rng.integers(0, 500, 1000), rng.integers(1, 30, (1000, 2, 3))
    actual = jax.jit(jax.vmap(due_layers))(rounds, interval)
    np.testing.assert_array_equal(actual, np.mod(rounds[:, None, None], interval) == 0)


def test_unit_fraction_shares_output_channels():
    actual = select_layers(LAYERS, 1.5, ONE, ZERO, "unit-fraction")  # half of conv1's 4 channels
    np.testing.assert_array_equal(actual["conv1"]["bias"], [1, 1, 0, 0])
    np.testing.assert_array_equal(actual["conv1"]["kernel"].sum(axis=(0, 1, 2)), [18, 18, 0, 0])
    assert int(shared_size(LAYERS, 1.5, ONE, "unit-fraction")) == 20 + 36 + 2
    assert (
        int(shared_size(LAYERS, 2.1, ONE, "unit-fraction")) == 20 + 76 + 5
    )  # 0.1 * 10 is one channel, despite float32


def test_published_prefix_of_four_layers():
    """4 layers times 0.98 keep all but the last bias until the seventh step."""
    names = ("conv1", "conv2", "fc1", "fc2")
    net = {name: {"kernel": np.zeros((5, 3), np.float32), "bias": np.zeros(3, np.float32)} for name in names}
    sizes = [int(shared_size(names, 4 * np.float32(0.98) ** k, net)) for k in range(8)]
    assert sizes == [72, 69, 69, 69, 69, 69, 69, 54]


def test_selection_never_mixes_and_statistics_follow_their_layer():
    first_layer = select_layers(LAYERS, 1.0, ONE, NAN)
    assert np.isfinite(first_layer["conv2"]["kernel"]).all()
    assert np.isnan(first_layer["conv1"]["kernel"]).all()
    assert np.isnan(first_layer["batch_stats"]["conv1"]["mean"]).all()
    assert np.isfinite(select_layers(LAYERS, 2.0, ONE, NAN)["batch_stats"]["conv1"]["mean"]).all()
    all_layers = select_layers(LAYERS, 3.0, ONE, NAN)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(all_layers))


@pytest.mark.parametrize("boundary", ["tensors", "floor", "unit-fraction", "nearest-half"])
def test_one_program_for_every_fraction_and_monotone(boundary, traced_once):
    size = traced_once(lambda shared: layers.shared_size(LAYERS, shared, ONE, boundary))
    sizes = [int(size(np.float32(s))) for s in np.linspace(0, 3, 61)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (0, 146)
    select_batch = jax.jit(jax.vmap(lambda shared: layers.select_layers(LAYERS, shared, ONE, NAN, boundary)))
    batch = jax.device_get(select_batch(np.float32([0, 3])))
    assert np.isnan(batch["fc"]["bias"][0]).all()
    assert np.isfinite(batch["fc"]["bias"][1]).all()


def test_stacked_models_broadcast():
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), ONE)
    actual = select_layers(LAYERS, 1.25, stacked, jax.tree.map(np.zeros_like, stacked), "unit-fraction")
    np.testing.assert_array_equal(actual["conv1"]["bias"], [[1, 0, 0, 0], [2, 0, 0, 0]])


def test_nested_layers_put_biases_last_in_their_submodule():
    block = {
        "b": {
            "Conv_0": {"kernel": np.zeros(3, np.float32), "bias": np.zeros(2, np.float32)},
            "Norm_0": {"scale": np.zeros(4, np.float32), "bias": np.zeros(5, np.float32)},
        }
    }
    assert [int(shared_size(("b",), k / 4, block)) for k in range(5)] == [0, 3, 5, 9, 14]


def test_layers_at_different_intervals():
    interval = np.int32([[1, 3, 1], [1, 1, 3]])  # (clusters, layers)
    due = jax.jit(due_layers)
    np.testing.assert_array_equal(due(np.int32(4), interval), [[1, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(due(np.int32(3), interval), np.ones((2, 3)))
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), ONE)
    with_nan = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), stacked)
    is_due = np.asarray(due(np.int32(4), interval))[[1, 0]]
    actual = jax.device_get(
        jax.jit(lambda mask, *models: where_layers(LAYERS, mask, *models))(is_due, stacked, with_nan)
    )
    np.testing.assert_array_equal(np.isfinite(actual["conv1"]["bias"]).all(axis=1), [True, False])
    np.testing.assert_array_equal(np.isfinite(actual["fc"]["kernel"]).all(axis=(1, 2)), [False, True])
    np.testing.assert_array_equal(np.isfinite(actual["batch_stats"]["conv1"]["mean"]).all(axis=1), [True, False])


def test_bad_names_are_refused():
    with pytest.raises(ValueError, match="model_layers are"):
        shared_mask(("conv1", "fc"), 1.0, ONE)
    with pytest.raises(ValueError, match="choose one of"):
        shared_mask(LAYERS, 1.0, ONE, "half")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="mask has shape"):
        where_layers(LAYERS, jnp.ones((1, 2), bool), *2 * [jax.tree.map(lambda leaf: leaf[None], ONE)])


@pytest.mark.parametrize(
    "choose",
    [lambda *sides: where_layers(LAYERS, np.ones((2, 3), bool), *sides), partial(layers.select_layers, LAYERS, 1.0)],
)
def test_models_of_other_shapes_or_layers_are_refused(choose):
    one_model, two_models = (jax.tree.map(lambda leaf, n=n: np.stack(n * [leaf]), ONE) for n in (1, 2))
    with pytest.raises(ValueError, match=r"^on_true\[.*\] has shape \(1, .*; expected \(2, .*to go with on_false"):
        choose(one_model, two_models)
    with pytest.raises(
        ValueError, match=r"^on_true has the leaves .*; expected .*\['fc'\]\['kernel'\], those of on_false"
    ):
        choose({name: layer for name, layer in two_models.items() if name != "fc"}, two_models)
