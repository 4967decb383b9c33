import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import linear_sum_assignment

from fljax import tree
from fljax.server.aggregate import cluster_mean
from fljax.server.assign import lowest_loss
from fljax.server.matching import match, match_units, matched_mean, matched_members, matched_squared_l2, permute_units
from tests.slow import slow

DENSE = ("a", "b", "c")
CONV = ("conv1", "norm", "conv2", "fc", "out")


def dense(rng, *lead, widths=(3, 5, 4, 2)):
    shapes = zip(DENSE, widths[:-1], widths[1:], strict=True)
    return {name: {"kernel": _normal(rng, *lead, i, o), "bias": _normal(rng, *lead, o)} for name, i, o in shapes}


def conv(rng):
    return {
        "conv1": {"kernel": _normal(rng, 3, 3, 1, 4)},
        "norm": {"scale": _normal(rng, 4), "bias": _normal(rng, 4)},
        "conv2": {"kernel": _normal(rng, 3, 3, 4, 3), "bias": _normal(rng, 3)},
        "fc": {"kernel": _normal(rng, 2 * 2 * 3, 6), "bias": _normal(rng, 6)},
        "out": {"kernel": _normal(rng, 6, 2), "bias": _normal(rng, 2)},
        "batch_stats": {"norm": {"mean": _normal(rng, 4)}},
    }


def _normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def run_dense(params, x):
    for name in DENSE:
        x = x @ params[name]["kernel"] + params[name]["bias"]
        x = jax.nn.relu(x) if name != DENSE[-1] else x
    return x


def run_conv(params, x):
    def convolve(x, name):
        return jax.lax.conv_general_dilated(
            x, params[name]["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x = convolve(x, "conv1") - params["batch_stats"]["norm"]["mean"]
    x = jax.nn.relu(x * params["norm"]["scale"] + params["norm"]["bias"])
    x = jax.nn.relu(convolve(x, "conv2") + params["conv2"]["bias"]).reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ params["fc"]["kernel"] + params["fc"]["bias"])
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def with_shuffled_units(rng, params, layers, widths):
    orders = tuple(rng.permutation(width).astype(np.int32) for width in widths)
    return jax.device_get(_permuted(params, orders, layers)), orders


_permuted = jax.jit(permute_units, static_argnums=2)


@pytest.mark.parametrize("seed", [3, *slow(0, 1, 2, 4)])
def test_permuted_copies_are_recovered_and_compute_the_same(seed):
    with jax.numpy_rank_promotion("allow"):
        rng = np.random.default_rng(seed)
        for params, layers, widths, run, shape in (
            (dense(rng), DENSE, (5, 4), run_dense, (7, 3)),
            (conv(rng), CONV, (4, 3, 6), run_conv, (7, 8, 8, 1)),
        ):
            x = _normal(rng, *shape)
            permuted, _ = with_shuffled_units(rng, params, layers, widths)
            run_jitted = jax.jit(run)
            np.testing.assert_allclose(
                run_jitted(permuted, x), run_jitted(params, x), rtol=1e-4, atol=1e-5
            )  # another order
            matched = jax.jit(match, static_argnums=2)(permuted, params, layers)
            jax.tree.map(np.testing.assert_array_equal, matched, params)


@pytest.mark.parametrize("widths", [(3, 1, 2, 2), *slow((3, 5, 4, 2), (2, 9, 6, 3))])
def test_assignment_equals_scipy(widths):
    rng = np.random.default_rng(1)
    params, reference = dense(rng, 350, widths=widths), dense(rng, 350, widths=widths)
    actual = jax.device_get(jax.jit(jax.vmap(lambda a, b: match_units(a, b, DENSE)))(params, reference))
    for case in range(350):
        order = np.arange(widths[0])
        for layer, name in enumerate(DENSE[:-1]):
            rows = [
                np.vstack([some_params[name]["kernel"][case], some_params[name]["bias"][case]]).T.astype(float)
                for some_params in (params, reference)
            ]
            rows[0] = np.hstack([rows[0][:, :-1][:, order], rows[0][:, -1:]])
            cost = ((rows[1][:, None] - rows[0][None]) ** 2).sum(axis=-1)
            order = np.asarray(actual[layer][case])
            least_cost = cost[linear_sum_assignment(cost)].sum()
            np.testing.assert_allclose(cost[np.arange(len(cost)), order].sum(), least_cost, rtol=1e-5)
            assert sorted(order) == list(range(len(cost)))


@pytest.mark.slow
def test_mean_of_permuted_copies_is_the_copy_and_distance_is_zero():
    rng = np.random.default_rng(2)
    models = [dense(rng), dense(rng)]
    label = np.array([0, 1, 0, 1, 0, -1, 0])
    clients = [with_shuffled_units(rng, models[k], DENSE, (5, 4))[0] for k in label]
    stacked = jax.tree.map(lambda leaf: leaf.at[5:].set(jnp.nan), tree.stack(clients))
    empty = tree.stack([models[0], models[1], models[0]])
    actual = matched_mean(stacked, jnp.array([1, 2, 3, 4, 5, 6, 0]), jnp.asarray(label), empty, DENSE)
    for k, first_member in enumerate((0, 1)):  # in the order of the first member
        expected = clients[first_member]
        jax.tree.map(lambda a, b, k=k: np.testing.assert_allclose(a[k], b, rtol=1e-5, atol=1e-6), actual, expected)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2], b[2]), actual, empty)
    squared_distance = matched_squared_l2(tree.take(stacked, jnp.arange(5)), empty, DENSE)
    assert lowest_loss(squared_distance).tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(squared_distance[jnp.arange(5), label[:5]], 0)


@pytest.mark.slow
def test_clients_near_a_common_start_need_no_matching():
    rng = np.random.default_rng(3)
    start = dense(rng)
    stacked = jax.tree.map(lambda leaf: leaf[None] + 1e-3 * _normal(rng, 6, *leaf.shape), start)
    weight, label, empty = jnp.arange(1.0, 7), jnp.array([0, 0, 1, 1, 0, 1]), tree.broadcast(start, 2)
    actual = jax.jit(matched_mean, static_argnums=4)(stacked, weight, label, empty, DENSE)
    jax.tree.map(np.testing.assert_array_equal, actual, cluster_mean(stacked, weight, label, empty))
    gradient = jax.grad(lambda x: tree.squared_norm(matched_mean(x, weight, label, empty, DENSE)))(stacked)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_matching_lowers_the_spread():
    rng = np.random.default_rng(4)
    base = dense(rng)
    copies = [with_shuffled_units(rng, base, DENSE, (5, 4))[0] for _ in range(6)]
    add_noise = lambda leaf: leaf + np.float32(0.1) * _normal(rng, *leaf.shape)  # noqa: E731
    clients = [jax.tree.map(add_noise, copy) for copy in copies]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *clients)

    @jax.jit
    def spreads(stacked, base):
        empty, one_cluster, weight = tree.broadcast(base, 1), jnp.zeros(6, jnp.int32), jnp.ones(6)
        means = (
            matched_mean(stacked, weight, one_cluster, empty, DENSE),
            cluster_mean(stacked, weight, one_cluster, empty),
        )
        return [matched_squared_l2(mean, empty, DENSE)[0, 0] for mean in means]

    with_matching, without_matching = spreads(stacked, base)
    assert with_matching < 0.2 * without_matching


def test_unfit_models_are_refused():
    rng = np.random.default_rng(5)
    params = dense(rng)
    with pytest.raises(ValueError, match="layers are"):
        match_units(params, params, ("a", "b"))
    with pytest.raises(ValueError, match="2 hidden layers"):
        permute_units(params, (jnp.arange(5),), DENSE)
    with pytest.raises(ValueError, match="layer b has no kernel of its own"):
        match_units(params | {"b": {"conv1": params["b"]}}, params, DENSE)
    with pytest.raises(ValueError, match=r"^reference\['a'\]\['bias'\] has shape \(6,\); expected \(5,\), to go with"):
        match_units(params, dense(rng, widths=(3, 6, 4, 2)), DENSE)
    with pytest.raises(
        ValueError, match=r"^orders\[1\] has shape \(2,\); expected \(4,\), one entry per unit of layer b"
    ):
        permute_units(params, (jnp.arange(5), jnp.arange(2)), DENSE)  # else taken for channels of a flattened image
    params["b"] = {"kernel": jnp.zeros((7, 4)), "bias": jnp.zeros(4)}
    with pytest.raises(ValueError, match="layer b has 7 inputs; the layer before has 5 units"):
        match_units(params, params, DENSE)
    with pytest.raises(ValueError, match="n_sweeps=0 is not positive"):
        matched_mean(dense(rng, 2), jnp.ones(2), jnp.zeros(2, jnp.int32), dense(rng, 1), DENSE, n_sweeps=0)


@pytest.mark.slow
def test_inside_scan_and_one_program(traced_once):
    rng = np.random.default_rng(6)
    batch, reference = dense(rng, 3), dense(rng)
    _, orders = jax.lax.scan(lambda c, params: (c, match_units(params, reference, DENSE)), 0, batch)
    expected = match_units(tree.take(batch, 2), reference, DENSE)
    np.testing.assert_array_equal(orders[0][2], expected[0])
    traced = traced_once(lambda params: match(params, reference, DENSE))
    assert optax.tree.norm(traced(tree.take(batch, 0))) != optax.tree.norm(traced(tree.take(batch, 1)))


def expected_sweeps(units, weight, n_sweeps):
    """(members, units, fan in) in the order that each has after sweeps over the means of the others, by SciPy."""
    ordered = units.copy()
    for k in range(n_sweeps):
        for i in range(len(units)):
            other_members = np.arange(i) if k == 0 else np.delete(np.arange(len(units)), i)
            if len(other_members):
                mean_of_others = np.average(ordered[other_members], axis=0, weights=weight[other_members])
                ordered[i] = units[i][
                    linear_sum_assignment(np.square(mean_of_others[:, None] - units[i][None]).sum(-1))[1]
                ]
    return ordered


def test_sweeps_match_members_to_the_others_as_scipy_does():
    rng = np.random.default_rng(7)
    names, label = ("fc1", "fc2"), np.array([0, 1, 0, 0, 2, -1, 0, 0])  # a member alone, and who is in no cluster
    stacked = {
        "fc1": {"kernel": _normal(rng, 30, 8, 2, 5), "bias": _normal(rng, 30, 8, 5)},
        "fc2": {"kernel": _normal(rng, 30, 8, 5, 1)},
    }
    weight = rng.integers(1, 9, (30, 8)).astype(np.float32) * (np.arange(8) < 7)  # the last does not count

    @jax.jit
    @jax.vmap
    def matched_layer(stacked, weight):
        return matched_members(stacked, weight, jnp.asarray(label), tree.take(stacked, np.arange(4)), names, 2)["fc1"]

    matched = matched_layer(stacked, weight)
    rows = [
        np.concatenate([np.moveaxis(layer["kernel"], 2, 3), layer["bias"][..., None]], -1)
        for layer in (matched, stacked["fc1"])
    ]
    for case, (actual, units) in enumerate(zip(*rows, strict=True)):
        for k in range(3):
            members = np.flatnonzero((label == k) & (weight[case] > 0))
            np.testing.assert_array_equal(actual[members], expected_sweeps(units[members], weight[case, members], 2))


def test_who_is_nearly_all_of_a_cluster_stays_in_order():
    """The mean less its own part of it would be rounding alone."""
    rng, names = np.random.default_rng(8), ("fc1", "fc2")
    stacked = {
        "fc1": {"kernel": _normal(rng, 30, 2, 2, 5), "bias": _normal(rng, 30, 2, 5)},
        "fc2": {"kernel": _normal(rng, 30, 2, 5, 1)},
    }

    @jax.jit
    @jax.vmap
    def matched_layer(stacked):
        weight, one_cluster = jnp.asarray([1e7, 1.0]), jnp.zeros(2, jnp.int32)
        return matched_members(stacked, weight, one_cluster, tree.take(stacked, np.arange(1)), names, 2)["fc1"]

    matched = matched_layer(stacked)
    rows = [
        np.concatenate([np.moveaxis(layer["kernel"], 2, 3), layer["bias"][..., None]], -1)
        for layer in (matched, stacked["fc1"])
    ]
    for actual, units in zip(*rows, strict=True):
        np.testing.assert_array_equal(actual[0], units[0])
        order = linear_sum_assignment(np.square(units[0][:, None] - units[1][None]).sum(-1))[1]
        np.testing.assert_array_equal(actual[1], units[1][order])


@pytest.mark.slow
def test_no_member_alone_can_lower_the_spread_after_enough_sweeps():
    """SciPy's assignment of each member to the mean of the others finds nothing better."""
    rng = np.random.default_rng(5)
    widths = (4, 6, 3)
    names = ("fc1", "fc2")
    weight, label = np.array([1.0, 3.0, 2.0, 5.0, 2.0]), np.array([0, 1, 0, 0, 1])
    clients = [
        {
            name: {"kernel": _normal(rng, a, b), "bias": _normal(rng, b)}
            for name, a, b in zip(names, widths, widths[1:], strict=False)
        }
        for _ in label
    ]
    stacked, empty = tree.stack(clients), tree.broadcast(clients[0], 2)

    def rows(sweeps):
        matched = matched_members(stacked, jnp.asarray(weight), jnp.asarray(label), empty, names, sweeps)["fc1"]
        return np.concatenate([np.moveaxis(np.asarray(matched["kernel"]), 1, 2), matched["bias"][..., None]], axis=2)

    def spread(units):
        means = [np.average(units[label == k], axis=0, weights=weight[label == k]) for k in (0, 1)]
        return sum(
            w * np.square(member_units - means[k]).sum()
            for w, member_units, k in zip(weight, units, label, strict=True)
        )

    spreads = [spread(rows(sweeps)) for sweeps in (1, 2, 4, 8)]
    assert all(next_spread <= spread_before + 1e-5 for spread_before, next_spread in itertools.pairwise(spreads))
    assert spreads[1] < spreads[0] - 1e-3
    units = rows(8)
    for i in range(len(label)):
        is_other_member = (label == label[i]) & (np.arange(len(label)) != i)
        mean_of_others = np.average(units[is_other_member], axis=0, weights=weight[is_other_member])
        _, order = linear_sum_assignment(np.square(mean_of_others[:, None] - units[i][None]).sum(-1))
        np.testing.assert_array_equal(order, np.arange(6))
