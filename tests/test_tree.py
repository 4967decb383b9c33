"""Rows put back into stacked models, against NumPy's assignment; choices between models."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.devices.mesh import over_devices, replicated
from tests.slow import slow_rows

SIZES = [(12, 7), (12, 1), (400, 400), (400, 3), *slow_rows((12, 12), (400, 90))]
"""Rows, and how many of them are put: all, most, few; compared in pairs and not; beside leaves small and large."""


def leaves(key, n_rows):
    """Of every kind and size that a state has; what is put holds NaN, infinity and -0."""
    keys = jax.random.split(key, 3)
    large = (
        jax.random.normal(keys[0], (n_rows, 40, 60), jnp.float32).at[0, 0, :3].set(jnp.array([jnp.nan, -0.0, jnp.inf]))
    )
    return {
        "large": large,
        "half": large[:, 0].astype(jnp.bfloat16),
        "label": jax.random.randint(keys[1], (n_rows,), -1, 9, jnp.int32),
        "seen": jax.random.bernoulli(keys[2], 0.5, (n_rows, 2)),
        "key": jax.random.split(keys[2], n_rows),
    }


def bits(stacked):
    """Each row as bytes, so that -0 is not 0 and NaN is NaN."""
    data = {name: jax.random.key_data(leaf) if name == "key" else leaf for name, leaf in stacked.items()}
    return {
        name: np.frombuffer(leaf.tobytes(), np.uint8).reshape(len(leaf), -1)
        for name, leaf in jax.device_get(data).items()
    }


@pytest.mark.parametrize(("n_rows", "n_put"), SIZES)
def test_rows_are_put_as_numpy_assigns_them(key, n_rows, n_put):
    stacked, new = (leaves(k, n) for k, n in zip(jax.random.split(key), (n_rows, n_put), strict=True))
    index = jax.random.permutation(key, n_rows)[:n_put]
    actual, expected = bits(jax.jit(tree.put)(stacked, index, new)), bits(stacked)
    for name, rows in bits(new).items():
        expected[name] = expected[name].copy()
        expected[name][np.asarray(index)] = rows
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_what_is_put_takes_the_dtype_of_what_was_there():
    old = {"w": jnp.zeros((3, 2), jnp.bfloat16), "n": jnp.zeros(3, jnp.int8)}
    result = tree.put(old, jnp.array([2, 0]), {"w": jnp.ones((2, 2), jnp.float32), "n": jnp.array([5, 6], jnp.int32)})
    assert jax.tree.map(lambda leaf: leaf.dtype, result) == jax.tree.map(lambda leaf: leaf.dtype, old)
    assert result["n"].tolist() == [6, 0, 5]


@pytest.mark.parametrize("first", [True, False])
def test_one_choice_is_that_of_every_row(key, first):
    trees = [leaves(k, 4) for k in jax.random.split(key)]
    by_one, by_rows = (jax.jit(tree.where)(mask, *trees) for mask in (jnp.bool_(first), jnp.full(4, first)))
    for result in (by_one, by_rows):
        jax.tree.map(np.testing.assert_array_equal, bits(result), bits(trees[0 if first else 1]))
    assert not tree.is_finite({"large": by_one["large"]})
    assert tree.is_finite({"label": by_one["label"], "rest": by_one["large"][1:]})


def test_a_row_that_is_none_is_put_nowhere():
    result = tree.put({"w": jnp.arange(4.0)}, jnp.array([4, 1, 6, 0]), {"w": jnp.array([9.0, 8.0, 7.0, 6.0])})
    assert result["w"].tolist() == [6, 8, 2, 3]


@pytest.mark.parametrize(("n_rows", "n_put"), [(8, 8), (8, 4)])
def test_rows_spread_over_devices_are_put_as_on_one(key, n_rows, n_put):
    stacked, new = leaves(key, n_rows), leaves(jax.random.fold_in(key, 1), n_put)
    index = jax.random.permutation(key, n_rows)[:n_put]
    expected = bits(jax.jit(tree.put)(stacked, index, new))
    with over_devices(jax.devices()[:2]) as mesh:
        distributed = jax.device_put(new, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients")))
        actual = bits(jax.jit(tree.put)(*replicated((stacked, index), mesh), distributed))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_rows_that_are_masked_stay_as_they_were():
    table, new = jnp.arange(5.0)[:, None] * jnp.ones((1, 2)), jnp.array([[7.0, 7], [jnp.nan, 8], [9, 9]])
    result = tree.put({"w": table}, jnp.array([4, 0, 2]), {"w": new}, jnp.array([True, False, True]))
    np.testing.assert_array_equal(result["w"], [[0, 0], [1, 1], [9, 9], [3, 3], [7, 7]])


def test_statistics_are_those_of_the_first_and_no_function_sees_them():
    first, second = ({"fc": jnp.full(3, v), tree.STATISTICS: {"bn": jnp.full(2, v)}} for v in (2.0, 5.0))
    difference = tree.map_trainable(lambda a, b: a - b, first, second)
    np.testing.assert_array_equal(difference["fc"], [-3, -3, -3])
    np.testing.assert_array_equal(difference[tree.STATISTICS]["bn"], [2, 2])
    assert tree.trainable(second).keys() == {"fc"}


def test_several_models_are_stacked_whatever_holds_them():
    models = [{"a": np.arange(2.0) + i} for i in range(3)]
    for several in (models, tuple(models), (model for model in models)):
        assert tree.stack(several)["a"].tolist() == [[0, 1], [1, 2], [2, 3]]
    for wrong, message in (
        (5, "trees is of type int, not a list"),
        (models[0], "trees is of type dict"),
        ([], "trees are none"),
    ):
        with pytest.raises(ValueError, match=message):
            tree.stack(wrong)


def test_models_side_by_side_come_apart_as_they_were():
    """One with running statistics beside one without: the server sees numbers of parameters alone."""
    models = {"a": {"fc": jnp.ones(3), tree.STATISTICS: {"bn": jnp.zeros(2)}}, "b": {"fc": jnp.zeros(4)}}
    joined = tree.side_by_side(**models)
    assert tree.size(joined) == 7
    assert jax.tree.structure(tree.apart(joined)) == jax.tree.structure(models)
    jax.tree.map(np.testing.assert_array_equal, tree.apart(joined), models)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"a": {"b": np.zeros(3)}, "c": 1.0},
            "trees[1]['a']['b'] is of shape (3,), but trees[0]['a']['b'] is of",
        ),
        ({"a": {"b": np.zeros(2)}}, "trees[1]['c'] is missing, but trees[0]['c'] is of shape (); give models"),
        ({"a": {"b": np.zeros(2), "d": 2}, "c": 1.0}, "trees[1]['a']['d'] is of shape (), but trees[0]['a']['d'] is"),
        (np.zeros(2), "trees[1]['a']['b'] is missing, but trees[0]['a']['b'] is of shape (2,)"),
        ({"a": {"b": np.zeros(2)}, "c": "x"}, "trees[1]['c'] is 'x', not an array; give models"),
        ({"a": {"b": np.zeros(2)}, "c": 1.0, "e": None}, "trees[1] is of the structure PyTreeDef({'a': {'b': *}, 'c'"),
    ],
)
def test_of_trees_that_differ_the_first_leaf_is_named(other, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        tree.stack([{"a": {"b": np.ones(2)}, "c": np.float32(0.5)}, other])


def test_stacked_models_are_measured_and_mixed_row_by_row():
    """Running statistics have no size and no length, but are mixed."""
    a = {"w": np.float32([[3, 4], [0, 2]]), tree.STATISTICS: np.float32([[8], [8]])}
    b = {"w": np.float32([[1, 0], [0, 4]]), tree.STATISTICS: np.float32([[0], [4]])}
    assert tree.row_size(a) == tree.size(jax.tree.map(lambda leaf: leaf[0], a)) == 2
    squared, mixed = jax.jit(lambda a, b, share: (tree.squared_norms(a), tree.mixture(share, a, b)))(
        a, b, np.float32([0.25, 1])
    )
    np.testing.assert_array_equal(squared, [25, 4])
    np.testing.assert_array_equal(mixed["w"], [[1.5, 1], [0, 2]])
    np.testing.assert_array_equal(mixed[tree.STATISTICS], [[2], [8]])
    half = {"w": a["w"].astype(jnp.bfloat16)}
    with jax.numpy_dtype_promotion("standard"):  # a share is float32
        assert jax.eval_shape(tree.mixture, np.float32([0.25, 1]), half, half)["w"].dtype == jnp.bfloat16
