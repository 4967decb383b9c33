"""Matched averaging: the Hungarian method puts hidden units in a common order before models are averaged.

Wang et al., "Federated Learning with Matched Averaging", ICLR 2020 (FedMA), here with fixed widths: layer by layer,
with the squared L2 distance between units' incoming weights and biases, as FeSEM-MA uses it inside clusters.

Models are chains of layers in forward order. A layer with a ``kernel`` is dense (in, out) or convolutional
(height, width, in, out), with its ``bias`` (out,); a layer without a kernel (a normalisation) has one entry per unit
of the layer before it in each leaf, and is permuted with it. Between the last convolution and the first dense layer,
the image is flattened row by row, with the channel as the fastest axis. No skip connections.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import optax.assignment
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive, check_kind
from fljax.server.aggregate import cluster_mean
from fljax.server.checks import (
    check_alike,
    check_same,
    check_shape,
    check_statistics,
    check_vector,
    cluster_numbers,
    fallback,
    n_rows,
)
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray, Params, Stacked

Orders = tuple[Array, ...]
"""Orders of the hidden units, one per layer."""

NEARLY_ALL = 0.9999
"""A member with a larger share of its cluster's weight is matched to a mean that includes it."""


@checked()
@partial(compiled, static_argnames="layers")
def match_units(params: Params, reference: Params, layers: tuple[str, ...]) -> Orders:
    """The order of the hidden units of ``params`` that brings each layer nearest to ``reference``, input to output.

    For each layer, the input axis takes the order found for the layer before; then units are assigned one to one with
    the least total squared L2 distance between rows [incoming weights, bias].

    Args:
        params: one model.
        reference: a model of the same shapes.
        layers: all layers in forward order, static.

    Returns:
        One int32 array (units,) per layer with a kernel but the last: unit j of the result is unit ``order[j]``.

    Raises:
        ValueError: layers do not form a chain or are not those of the model, or ``reference`` has other shapes.
    """
    kernels = _kernel_layers(params, layers)
    trainable, trainable_reference = (tree.trainable(model) for model in (params, reference))
    check_same("reference", trainable_reference, "params", trainable)
    orders: list[Array] = []
    for name in kernels[:-1]:
        incoming = _move_inputs(params[name]["kernel"], orders[-1] if orders else None, name)
        orders.append(
            _assign(_unit_rows(params[name], incoming), _unit_rows(reference[name], reference[name]["kernel"]))
        )
    return tuple(orders)


@checked()
@partial(compiled, static_argnames="layers")
def permute_units(params: Params, orders: Orders, layers: tuple[str, ...]) -> Params:
    """The model with its hidden units in another order: the same network function.

    Args:
        params: one model; running statistics are permuted with their layer.
        orders: one (units,) permutation per layer with a kernel but the last, as from `match_units`.
        layers: all layers in forward order, static.

    Returns:
        One model.

    Raises:
        ValueError: the number of orders is wrong, an order does not have its layer's length, or layers do not form a
            chain.
    """
    kernels = _kernel_layers(params, layers)
    if len(orders) != len(kernels) - 1:
        raise ValueError(f"{len(orders)} orders given; the model has {len(kernels) - 1} hidden layers with a kernel")
    for i, (order, name) in enumerate(zip(orders, kernels[:-1], strict=True)):
        check_shape(f"orders[{i}]", order, params[name]["kernel"].shape[-1:], f"one entry per unit of layer {name}")
    order_of = dict(zip(kernels, (*orders, None), strict=True))
    trainable, statistics = tree.split_statistics(params)
    permuted, current_order = {}, None
    stats = {collection: dict(subtrees) for collection, subtrees in statistics.items()}
    for name in layers:
        layer = dict(trainable[name])
        if name in order_of:
            layer["kernel"] = _move_inputs(layer["kernel"], current_order, name)
            current_order = order_of[name]
        permuted[name] = _move_outputs(layer, current_order)
        for subtrees in stats.values():
            if name in subtrees:
                subtrees[name] = _move_outputs(subtrees[name], current_order)
    return tree.join_statistics(permuted, stats)


def match(params: Params, reference: Params, layers: tuple[str, ...]) -> Params:
    """``params`` with its hidden units in the order of `match_units`: the same function, near ``reference``."""
    return permute_units(params, match_units(params, reference, layers), layers)


@checked()
@partial(compiled, static_argnames="layers")
def matched_squared_l2(stacked: Stacked, centers: Stacked, layers: tuple[str, ...]) -> Array:
    """Squared L2 distance of every client to every center, after the client is matched to that center.

    Args:
        stacked: leaves (clients, ...).
        centers: leaves (clusters, ...).
        layers: all layers in forward order, static.

    Returns:
        (clients, clusters), for `lowest_loss`.

    Raises:
        ValueError: layers do not form a chain, or ``centers`` has other leaves or shapes.
    """
    check_alike("centers", centers, "stacked", stacked)

    def one(model: Params, center: Params) -> Array:
        return tree.squared_norm(tree.subtract(match(model, center, layers), center))

    return lax.map(lambda model: lax.map(lambda center: one(model, center), centers), stacked)


@checked()
@partial(compiled, static_argnames=("layers", "n_sweeps"))
def matched_members(
    stacked: Stacked, weight: AnyArray, label: AnyArray, empty: Stacked, layers: tuple[str, ...], n_sweeps: Positive = 3
) -> Stacked:
    """Every client's model with its hidden units in a common order within its cluster.

    In the first sweep, each member is matched to the mean of the members before it; in each further sweep, to the mean
    of all other members, one member after another as in the official code of FedMA. So the spread of the first
    layer's units within a cluster never grows. Differentiable with respect to the models, with the matching held fixed.

    Args:
        stacked: leaves (clients, ...).
        weight: (clients,) example counts; a client of weight 0 has no effect.
        label: (clients,) int cluster; a client outside 0..clusters-1 does not count.
        empty: leaves (clusters, ...): sets the number of clusters.
        layers: all layers in forward order, static.
        n_sweeps: number of sweeps, at least 1, static.

    Returns:
        Leaves (clients, ...): the same functions. The order of a client that does not count is arbitrary.

    Raises:
        ValueError: n_sweeps is below 1, layers do not form a chain, lengths differ, labels are not integers, or
            ``empty`` has other shapes.
    """
    n, n_clusters = n_rows("stacked", stacked), n_rows("empty", empty)
    check_vector("weight", weight, n, "stacked")
    label = cluster_numbers("label", label, n, "stacked")
    empty = fallback("empty", empty, stacked, n_clusters)
    is_counted = (jnp.asarray(weight) > 0) & (label >= 0) & (label < n_clusters)
    cluster = jnp.clip(label, 0, n_clusters - 1)
    fixed_models = lax.stop_gradient(tree.where(is_counted, stacked, tree.take(empty, cluster)))
    is_member = is_counted[None, :] & jax.nn.one_hot(cluster, n_clusters, dtype=bool, axis=0)
    reference = tree.where(is_member.any(axis=1), tree.take(fixed_models, jnp.argmax(is_member, axis=1)), empty)

    # Running statistics are permuted with their units, but do not affect the matching.
    fixed_models, reference, empty = (tree.trainable(models) for models in (fixed_models, reference, empty))
    member_weight = jnp.where(is_counted, weight, 0).astype(jnp.float32)
    so_far = jnp.cumsum(jnp.where(is_member, member_weight[None, :], 0.0), axis=1)  # including the member
    weight_so_far = so_far[cluster, jnp.arange(n)]
    total_weight = jnp.zeros(n_clusters, jnp.float32).at[cluster].add(member_weight)[cluster]
    first_share, share = (member_weight / jnp.maximum(mass, 1e-30) for mass in (weight_so_far, total_weight))

    def placed(
        mean: Stacked, member: tuple[Params, Params, Array, Array, Array]
    ) -> tuple[Stacked, tuple[Params, Orders]]:
        model, previous, cluster, removed, added = member
        center = tree.take(mean, cluster)
        # If a member has nearly all of its cluster's weight, the other members are lost in rounding.
        removed = jnp.where(removed < NEARLY_ALL, removed, 0.0)
        others_mean = jax.tree.map(
            lambda mean, leaf: ((mean - removed * leaf) / (1 - removed)).astype(mean.dtype), center, previous
        )
        order = match_units(model, others_mean, layers)
        permuted = permute_units(model, order, layers)
        new_center = jax.tree.map(
            lambda mean, leaf: (mean + added * (leaf - mean)).astype(mean.dtype), others_mean, permuted
        )
        return jax.tree.map(lambda leaf, row: leaf.at[cluster].set(row), mean, new_center), (permuted, order)

    def sweep(k: Array, carry: tuple[Stacked, Stacked, Orders]) -> tuple[Stacked, Stacked, Orders]:
        mean, previous, _ = carry
        removed, added = jnp.where(k > 0, share, 0.0), jnp.where(k > 0, share, first_share)
        permuted, orders = lax.scan(placed, mean, (fixed_models, previous, cluster, removed, added))[1]
        return cluster_mean(permuted, weight, label, empty), permuted, orders

    first_model = tree.first(fixed_models)
    order = jax.eval_shape(lambda: match_units(first_model, first_model, layers))
    unmatched = jax.tree.map(lambda units: jnp.zeros((n, *units.shape), units.dtype), order)
    orders = lax.fori_loop(0, n_sweeps, sweep, (reference, fixed_models, unmatched))[2]
    return jax.vmap(lambda model, order: permute_units(model, order, layers))(stacked, orders)


def matched_mean(
    stacked: Stacked, weight: AnyArray, label: AnyArray, empty: Stacked, layers: tuple[str, ...], n_sweeps: Positive = 3
) -> Stacked:
    """`cluster_mean` of `matched_members`, with the same arguments; ``empty`` is kept where a cluster has no weight.

    If members are equal, or their units already in a common order, this is `cluster_mean`.

    Returns:
        Leaves (clusters, ...).
    """
    return cluster_mean(matched_members(stacked, weight, label, empty, layers, n_sweeps), weight, label, empty)


def _kernel_layers(params: Params, layers: tuple[str, ...]) -> list[str]:
    trainable, statistics = tree.split_statistics(params)
    check_kind("a model", trainable, Mapping, "give a dict {layer: {kernel, bias}}")
    check_statistics(statistics, layers)
    if set(layers) != set(trainable):
        raise ValueError(f"layers are {tuple(layers)}; the models have {tuple(sorted(trainable))}")
    kernels = [name for name in layers if isinstance(trainable[name], Mapping) and "kernel" in trainable[name]]
    if not kernels or any(getattr(trainable[name]["kernel"], "ndim", None) not in (2, 4) for name in kernels):
        raise ValueError("matching needs dense (in, out) or convolutional (height, width, in, out) kernels")
    for name in set(layers) - set(kernels):
        if any(leaf.ndim != 1 for leaf in jax.tree.leaves(trainable[name])):
            raise ValueError(f"layer {name} has no kernel of its own; matching supports chains of layers, not blocks")
    return kernels


def _unit_rows(layer: Params, kernel: Array) -> Array:
    """(units, fan-in + 1): the incoming weights and the bias of each unit."""
    incoming = kernel.reshape(-1, kernel.shape[-1])
    return jnp.concatenate([incoming, layer["bias"][None]] if "bias" in layer else [incoming]).T


def _assign(unit_rows: Array, reference: Array) -> Array:
    """(units,) the unit of ``unit_rows`` assigned to each of ``reference``, with the least total squared L2 distance.

    Squared norms are the same in every assignment, so inner products decide; centring keeps them accurate.
    """
    mean = reference.mean(axis=0, keepdims=True)
    cost = -tree.product(reference - mean, (unit_rows - mean).T)
    row, column = optax.assignment.hungarian_algorithm(cost)
    return jnp.zeros(cost.shape[0], jnp.int32).at[row].set(column.astype(jnp.int32))


def _move_inputs(kernel: Array, order: Array | None, name: str) -> Array:
    """``kernel`` with its input axis in the order of the units before it; after a flattened image, for every pixel."""
    if order is None:
        return kernel
    units, inputs = order.shape[0], kernel.shape[-2]
    if inputs % units or (kernel.ndim == 4 and inputs != units):
        raise ValueError(f"layer {name} has {inputs} inputs; the layer before has {units} units")
    pixels = kernel.reshape(*kernel.shape[:-2], inputs // units, units, kernel.shape[-1])
    return jnp.take(pixels, order, axis=-2).reshape(kernel.shape)


def _move_outputs(layer: Params, order: Array | None) -> Params:
    return layer if order is None else jax.tree.map(lambda leaf: jnp.take(leaf, order, axis=-1), layer)
