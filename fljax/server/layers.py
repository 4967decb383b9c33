"""Choices layer by layer: layers aggregated at their own intervals, and a shared prefix of a fractional length.

Models are ``{layer: subtree}``, plus running statistics, which follow the layer of their name. Every choice is a
selection, never a multiplication by a mask, so what is not chosen never matters, not even as NaN.
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
from fljax.types import Params, Stacked

Boundary = Literal["tensors", "floor", "unit-fraction", "nearest-half"]
"""What happens to the layer in which a fractional prefix ends; see `shared_mask`."""


def due_layers(round: Array, interval: Array) -> Array:
    """``round mod interval == 0``: which layers a round aggregates when layers have their own intervals (DC-PFL).

    Args:
        round: () int32, counted from 0: in round 0 every layer is due.
        interval: int32 of any shape, as (clusters, layers) or (layers,), each at least 1.

    Returns:
        bool, the shape of ``interval``.
    """
    return jnp.asarray(round, jnp.int32) % jnp.asarray(interval, jnp.int32) == 0


def where_layers(model_layers: tuple[str, ...], mask: Array, on_true: Stacked, on_false: Stacked) -> Stacked:
    """Row by row and layer by layer choice: ``mask[r, l]`` takes layer l of row r from ``on_true``, else ``on_false``.

    With ``mask = due_layers(round, interval)[label]`` the clients refresh the layers their cluster aggregated and keep
    the others. Running statistics follow the layer of their name.

    Args:
        model_layers: layer names in the order of the mask's columns; every layer once.
        mask: (rows, layers) bool.
        on_true: ``{layer: leaves (rows, ...)}``.
        on_false: the same shapes.

    Raises:
        ValueError: the mask is not (rows, layers), the names are not those of the models, or these differ in shape.
    """
    trainable, statistics = tree.split_statistics(on_false)
    _check_names(model_layers, trainable, statistics)
    check_shape("mask", mask, (n_rows("on_false", on_false), len(model_layers)), "a row per row and a column per layer")
    check_same("on_true", on_true, "on_false", on_false)
    column = {name: mask[:, index] for index, name in enumerate(model_layers)}
    return tree.map_layers(lambda name, a, b: tree.where(column[name], a, b), on_true, on_false)


def select_layers(
    model_layers: tuple[str, ...], shared: ArrayLike, on_true: Params, on_false: Params, boundary: Boundary = "tensors"
) -> Params:
    """The first ``shared`` layers of ``on_true`` and the rest of ``on_false``: how FedTSDP and FedPer compose.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () layers shared, 0 to len(model_layers); may be fractional and traced.
        on_true: a model, or stacked models.
        on_false: the same shapes.
        boundary: rule for the layer in which the prefix ends, see `shared_mask`; static.

    Returns:
        The composed model or models.

    Raises:
        ValueError: the names are not those of the models, these differ in shape, or an unknown boundary.
    """
    mask = shared_mask(model_layers, shared, on_false, boundary)
    check_same("on_true", on_true, "on_false", on_false)
    return jax.tree.map(lambda chosen, a, b: jnp.where(_trailing(chosen, a), a, b), mask, on_true, on_false)


def shared_size(
    model_layers: tuple[str, ...], shared: ArrayLike, params: Params, boundary: Boundary = "tensors"
) -> Array:
    """Number of scalars that `select_layers` takes from ``on_true``: the P_B of communication counts.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () layers shared; may be traced.
        params: one model, not stacked; only its shapes are used. Running statistics are not counted.
        boundary: static.

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
    """Which parts of a model a prefix of ``shared`` layers covers.

    Layers 1 to floor(shared) are covered. Of the next layer, with f = shared - floor(shared):

    - ``"tensors"``: its first ``floor(f T)`` of T tensors, the kernel before the bias (FedTSDP: of 4 layers, 3.92 cover
      the last kernel but not the last bias). In nested layers tensors are ordered by the name of their submodule.
    - ``"floor"``: nothing.
    - ``"unit-fraction"``: of each tensor the first ``floor(f C)`` of its C output channels (the last axis).
    - ``"nearest-half"``: shared is rounded to a multiple of 1/2 first (halves up), then as ``"tensors"``.

    Floors forgive a float32 rounding (1e-3 of a tensor or channel). Statistics are covered with their whole layer only.

    Args:
        model_layers: the names of all layers in forward order; static.
        shared: () number of layers; clipped to 0..len(model_layers); may be traced.
        params: a model or stacked models; only shapes are used.
        boundary: static.

    Returns:
        The structure of ``params``, leaves () bool, or (channels,) bool for ``"unit-fraction"``.

    Raises:
        ValueError: the names are not those of the models, an unknown boundary, or ``"unit-fraction"`` of a tensor
            without channels.
    """
    check_choices(shared_mask, {"boundary": boundary})
    check_one(shared=shared)
    trainable, statistics = tree.split_statistics(params)
    _check_names(model_layers, trainable, statistics)
    depth = {name: index for index, name in enumerate(model_layers)}
    whole, fraction = _parts(shared, len(model_layers), boundary)

    def cover(name: str, layer: Params) -> Params:
        full, partial = depth[name] < whole, whole == depth[name]
        leaves, structure = jax.tree.flatten(layer)
        if boundary == "unit-fraction":
            if scalars := [
                jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(layer) if not leaf.ndim
            ]:
                raise ValueError(f"{name}{scalars[0]} is one number, without channels; choose another boundary")
            return structure.unflatten([full | (partial & _first(fraction, leaf.shape[-1])) for leaf in leaves])
        taken = _first(fraction, len(leaves))
        return structure.unflatten([full | (partial & taken[place]) for place in _places(layer)])

    def whole_layer(name: str, layer: Params) -> Params:
        return jax.tree.map(lambda _: depth[name] < whole, layer)

    masks = {name: cover(name, layer) for name, layer in trainable.items()}
    moved = {
        collection: {name: whole_layer(name, layer) for name, layer in layers.items()}
        for collection, layers in statistics.items()
    }
    return tree.join_statistics(masks, moved)


def _parts(shared: ArrayLike, n_layers: int, boundary: Boundary) -> tuple[Array, Array]:
    """Whole layers shared, and the fraction of the next one, both () float32."""
    count = jnp.clip(jnp.asarray(shared, jnp.float32), 0, n_layers)
    if boundary == "nearest-half":
        count = jnp.floor(2 * count + 0.5) / 2
    whole = jnp.floor(count)
    return whole, jnp.zeros_like(whole) if boundary == "floor" else count - whole


def _first(fraction: Array, n: int) -> Array:
    """(n,) bool: the first ``floor(fraction n)`` of n."""
    return jnp.arange(n) < jnp.floor(fraction * n + 1e-3).astype(jnp.int32)


def _places(layer: Params) -> list[int]:
    """The place of each leaf when tensors are ordered by submodule, and in it biases come last."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(layer)[0]]
    parent = [path.rpartition("[")[0] for path in paths]
    order = sorted(range(len(paths)), key=lambda i: (parent[i], "bias" in paths[i].rpartition("[")[2], paths[i]))
    return [order.index(i) for i in range(len(paths))]


def _trailing(mask: Array, leaf: Array) -> Array:
    return mask.reshape((1,) * (leaf.ndim - mask.ndim) + mask.shape)


def _check_names(model_layers: tuple[str, ...], trainable: Params, statistics: Params) -> None:
    check_kind("a model", trainable, Mapping, "give a dict {layer: arrays}")
    check_statistics(statistics, model_layers)
    if len(model_layers) != len(trainable) or set(model_layers) != set(trainable):
        raise ValueError(f"model_layers are {tuple(model_layers)}; the models have {tuple(sorted(trainable))}")
