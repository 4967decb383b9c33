"""Selections of layers: layers aggregated at their own intervals, and a shared prefix of a fractional length.

Models are ``{layer: subtree}``, plus running statistics, which follow the layer of their name. Every choice is a
selection, never a multiplication by a mask, so values that are not chosen have no effect, even if they are NaN.
"""

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax import tree
from fljax.choices import check_choices, check_kind
from fljax.server.checks import check_one, check_same, check_shape, check_statistics, n_rows
from fljax.types import AnyArray, Params, Stacked

Boundary = Literal["tensors", "floor", "unit-fraction", "nearest-half"]
"""Rule for the layer in which a fractional prefix ends, see `shared_mask`."""


def due_layers(round: ArrayLike, interval: AnyArray) -> Array:
    """``round mod interval == 0``: the layers that a round aggregates if layers have their own intervals (DC-PFL).

    Args:
        round: () int32, counted from 0: in round 0 every layer is due.
        interval: int32 of any shape, such as (clusters, layers) or (layers,); each at least 1.

    Returns:
        bool, the shape of ``interval``.
    """
    return jnp.asarray(round, jnp.int32) % jnp.asarray(interval, jnp.int32) == 0


def where_layers(model_layers: tuple[str, ...], mask: AnyArray, on_true: Stacked, on_false: Stacked) -> Stacked:
    """A selection per row and layer: layer l of row r is from ``on_true`` where ``mask[r, l]``, else from ``on_false``.

    With ``mask = due_layers(round, interval)[label]``, clients update the layers that their cluster aggregated and keep
    the others. Running statistics follow the layer of their name.

    Args:
        model_layers: all layer names, in the order of the mask's columns.
        mask: (rows, layers) bool.
        on_true: ``{layer: leaves (rows, ...)}``.
        on_false: the same shapes.

    Raises:
        ValueError: the mask is not (rows, layers), the names are not those of the models, or these differ in shape.
    """
    trainable, statistics = tree.split_statistics(on_false)
    _check_names(model_layers, trainable, statistics)
    check_shape("mask", mask, (n_rows("on_false", on_false), len(model_layers)), "a row per model, a column per layer")
    check_same("on_true", on_true, "on_false", on_false)
    column = {name: mask[:, index] for index, name in enumerate(model_layers)}
    return tree.map_layers(lambda name, a, b: tree.where(column[name], a, b), on_true, on_false)


def select_layers(
    model_layers: tuple[str, ...], shared: ArrayLike, on_true: Params, on_false: Params, boundary: Boundary = "tensors"
) -> Params:
    """The first ``shared`` layers of ``on_true`` and the rest of ``on_false``: the client models of FedTSDP and FedPer.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () number of shared layers, 0 to len(model_layers); may be fractional and traced.
        on_true: a model, or stacked models.
        on_false: the same shapes.
        boundary: rule for the layer in which the prefix ends, see `shared_mask`; static.

    Returns:
        The composed model or models.

    Raises:
        ValueError: the names are not those of the models, the models differ in shape, or ``boundary`` is unknown.
    """
    mask = shared_mask(model_layers, shared, on_false, boundary)
    check_same("on_true", on_true, "on_false", on_false)
    return jax.tree.map(lambda chosen, a, b: jnp.where(_on_last_axes(chosen, a), a, b), mask, on_true, on_false)


def shared_size(
    model_layers: tuple[str, ...], shared: ArrayLike, params: Params, boundary: Boundary = "tensors"
) -> Array:
    """Number of scalars that `select_layers` takes from ``on_true``: P_B, for the uplink and downlink counts.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () number of shared layers; may be traced.
        params: one model, not stacked; only its shapes are used. Running statistics are not counted.
        boundary: see `shared_mask`; static.

    Returns:
        () int32.
    """
    mask, _ = tree.split_statistics(shared_mask(model_layers, shared, params, boundary))
    trainable, _ = tree.split_statistics(params)
    count = jax.tree.map(lambda chosen, leaf: chosen.sum(dtype=jnp.int32) * (leaf.size // chosen.size), mask, trainable)
    return jnp.stack(jax.tree.leaves(count)).sum(dtype=jnp.int32)


def shared_mask(
    model_layers: tuple[str, ...], shared: ArrayLike, params: Params, boundary: Boundary = "tensors"
) -> Params:
    """Mask of the parts of a model that a prefix of ``shared`` layers covers.

    Layers 1 to floor(shared) are covered. Of the next layer, with f = shared - floor(shared):

    - ``"tensors"``: the first ``floor(f T)`` of its T tensors, the kernel before the bias (FedTSDP: 3.92 of 4 layers
      cover the last kernel but not the last bias). In nested layers, tensors are ordered by their submodule's name.
    - ``"floor"``: nothing.
    - ``"unit-fraction"``: the first ``floor(f C)`` of the C output channels (the last axis) of each of its tensors.
    - ``"nearest-half"``: ``shared`` is first rounded to a multiple of 1/2 (ties up), then as ``"tensors"``.

    Floors tolerate float32 rounding (1e-3 of a tensor or channel). Running statistics are covered only if their whole
    layer is.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () number of layers; clipped to 0..len(model_layers); may be traced.
        params: a model or stacked models; only shapes are used.
        boundary: one of the above; static.

    Returns:
        The structure of ``params``, leaves () bool, or (channels,) bool for ``"unit-fraction"``.

    Raises:
        ValueError: the names are not those of the model, ``boundary`` is unknown, or ``"unit-fraction"`` meets a tensor
            without channels.
    """
    check_choices(shared_mask, {"boundary": boundary})
    check_one(shared=shared)
    trainable, statistics = tree.split_statistics(params)
    _check_names(model_layers, trainable, statistics)
    depth = {name: index for index, name in enumerate(model_layers)}
    n_whole, fraction = _whole_and_fraction(shared, len(model_layers), boundary)

    def cover(name: str, layer: Params) -> Params:
        is_full, is_next = depth[name] < n_whole, n_whole == depth[name]
        leaves, structure = jax.tree.flatten(layer)
        if boundary == "unit-fraction":
            if scalars := [
                jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(layer) if not leaf.ndim
            ]:
                raise ValueError(f"{name}{scalars[0]} is one number, without channels; choose another boundary")
            return structure.unflatten([is_full | (is_next & _first_mask(fraction, leaf.shape[-1])) for leaf in leaves])
        is_covered = _first_mask(fraction, len(leaves))
        return structure.unflatten([is_full | (is_next & is_covered[place]) for place in _leaf_positions(layer)])

    def whole_layer(name: str, layer: Params) -> Params:
        return jax.tree.map(lambda _: depth[name] < n_whole, layer)

    masks = {name: cover(name, layer) for name, layer in trainable.items()}
    statistics_masks = {
        collection: {name: whole_layer(name, layer) for name, layer in layers.items()}
        for collection, layers in statistics.items()
    }
    return tree.join_statistics(masks, statistics_masks)


def _whole_and_fraction(shared: ArrayLike, n_layers: int, boundary: Boundary) -> tuple[Array, Array]:
    """Number of whole shared layers, and the fraction of the next one, both () float32."""
    count = jnp.clip(jnp.asarray(shared, jnp.float32), 0, n_layers)
    if boundary == "nearest-half":
        count = jnp.floor(2 * count + 0.5) / 2
    n_whole = jnp.floor(count)
    return n_whole, jnp.zeros_like(n_whole) if boundary == "floor" else count - n_whole


def _first_mask(fraction: Array, n: int) -> Array:
    """(n,) bool: True for the first ``floor(fraction n)`` of n."""
    return jnp.arange(n) < jnp.floor(fraction * n + 1e-3).astype(jnp.int32)


def _leaf_positions(layer: Params) -> list[int]:
    """The position of each leaf if tensors are ordered by submodule, with biases last in each submodule."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(layer)[0]]
    parent = [path.rpartition("[")[0] for path in paths]
    order = sorted(range(len(paths)), key=lambda i: (parent[i], "bias" in paths[i].rpartition("[")[2], paths[i]))
    return [order.index(i) for i in range(len(paths))]


def _on_last_axes(mask: Array, leaf: Array) -> Array:
    return mask.reshape((1,) * (leaf.ndim - mask.ndim) + mask.shape)


def _check_names(model_layers: tuple[str, ...], trainable: Params, statistics: Params) -> None:
    check_kind("a model", trainable, Mapping, "give a dict {layer: arrays}")
    check_statistics(statistics, model_layers)
    if len(model_layers) != len(trainable) or set(model_layers) != set(trainable):
        raise ValueError(f"model_layers are {tuple(model_layers)}; the models have {tuple(sorted(trainable))}")
