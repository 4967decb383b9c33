"""The unit of DC-PFL's layer-wise schedule: a layer of the network, or each of its tensors."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from fljax import tree
from fljax.server.checks import check_statistics
from fljax.server.layers import where_layers
from fljax.types import Model, Params, Stacked

LayerUnit = Literal["layer", "tensor"]
"""A unit is a layer of the network with all its tensors, or one tensor, as in PyTorch's state dict."""


class Units(NamedTuple):
    """A model's units in forward order; ``apart`` turns a model (one or stacked) into ``{unit: subtree}``.

    ``together`` is the inverse. Running statistics stay beside the units.
    """

    names: tuple[str, ...]
    apart: Callable[[Params], Params]
    together: Callable[[Params], Params]

    def where(self, mask: Array, on_true: Stacked, on_false: Stacked) -> Stacked:
        """For each row and unit, ``on_true`` or ``on_false`` by ``mask`` (rows, units)."""
        return self.together(where_layers(self.names, mask, self.apart(on_true), self.apart(on_false)))

    def sizes(self, params: Params) -> list[int]:
        """Number of trainable scalars in each unit of one model."""
        parts = self.apart(params)
        return [tree.size({name: parts[name]}) for name in self.names]


def units_of(model: Model, unit: LayerUnit) -> Units:
    """The units of ``model``. With "tensor", a layer's running statistics go with the last of its tensors."""
    if unit == "layer":
        return Units(model.layers, lambda params: params, lambda params: params)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    check_statistics(tree.split_statistics(shapes)[1], model.layers)
    paths = [(layer, *path) for layer in model.layers for path in _paths(shapes[layer])]
    name_of = {path: "/".join(path) for path in paths}
    path_of = {name: path for path, name in name_of.items()}
    last = {path[0]: name for path, name in name_of.items()}

    def apart(params: Params) -> Params:
        trainable, statistics = tree.split_statistics(params)
        parts = {name_of[path]: leaf for path, leaf in flatten_dict(trainable).items()}
        return parts | {kind: {last[layer]: part for layer, part in kept.items()} for kind, kept in statistics.items()}

    def together(parts: Params) -> Params:
        trainable, statistics = tree.split_statistics(parts)
        params = unflatten_dict({path_of[name]: leaf for name, leaf in trainable.items()})
        return params | {kind: {path_of[n][0]: part for n, part in kept.items()} for kind, kept in statistics.items()}

    return Units(tuple(path_of), apart, together)


def _paths(layer: Params) -> list[tuple[str, ...]]:
    """Paths of the tensors in a layer; () for a layer that is one tensor."""
    return list(flatten_dict(layer)) if isinstance(layer, dict) else [()]
