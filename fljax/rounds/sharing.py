"""Models in two parts: one shared through the server, and one that each client keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.tree import STATISTICS
from fljax.types import Model, ModelTable, Params

Path = tuple[str, ...]
"""The path of a leaf in a model: ("fc1", "kernel")."""


class Sharing(NamedTuple):
    """A cut of a model's parameters, of one model or of stacked ones, and its inverse."""

    split: Callable[[Params], tuple[Any, Any]]  # params -> (the shared part, the client's own)
    join: Callable[[Any, Any], Params]  # the shared part, the client's own -> params

    def held(self, shared: Any, own: Any, n_clients: int) -> ModelTable:
        """Every client's model: the shared part, which is not copied, and the client's row of the own part."""
        if not jax.tree.leaves(own):
            return tree.everyone(self.join(shared, own), n_clients)
        return tree.own(self.join(tree.broadcast(shared, 1), own))


WHOLE = Sharing(lambda params: (params, {}), lambda shared, own: shared)
"""The whole model is shared."""

NOTHING = Sharing(lambda params: ({}, params), lambda shared, own: own)
"""Nothing is shared: each client keeps its model."""

GLOBAL_AND_OWN = Sharing(
    split=lambda held: (held["global"], held["own"]), join=lambda theta, own: {"global": theta, "own": own}
)
"""A client holds the server's model, which is shared, and an own part, which is not."""


def all_but(layers: tuple[str, ...]) -> Sharing:
    """The named layers stay with each client (FedPer's head); the others, and their running statistics, are shared."""
    return Sharing(lambda params: split(params, layers), compose)


def body_of(model: Model, method: str) -> Sharing:
    """`all_but` the last layer, for a ``method`` whose clients compare what the shared layers see.

    Raises:
        ValueError: the model has no other layer.
    """
    if len(model.layers) < 2:
        raise ValueError(f"model: its layers are {model.layers}; {method} shares all but the last, so give two or more")
    return all_but(model.layers[-1:])


def only(layers: tuple[str, ...]) -> Sharing:
    """The named layers are shared (LG-FedAvg's head); the others stay with each client."""
    return Sharing(lambda params: split(params, layers)[::-1], compose)


@checked_kinds
def all_but_paths(stays: Callable[[Path], bool]) -> Sharing:
    """The leaves whose path satisfies ``stays`` stay with each client; parts are ``{path: leaf}``."""

    def divide(params: Params) -> tuple[dict[Path, Any], dict[Path, Any]]:
        leaves: dict[Path, Any] = flatten_dict(params)
        own = {path: leaf for path, leaf in leaves.items() if stays(path)}
        return {path: leaf for path, leaf in leaves.items() if path not in own}, own

    return Sharing(divide, lambda shared, own: unflatten_dict(shared | own))


@checked_kinds
def last_layers(model: Model, n_layers: int, field: str) -> tuple[str, ...]:
    """Names of the last ``n_layers`` layers of ``model``.

    Raises:
        ValueError: the model does not have that many; the message names ``field``.
    """
    if not 0 <= n_layers <= len(model.layers):
        raise ValueError(f"{field}={n_layers}: the model has layers {model.layers}; choose 0 to {len(model.layers)}")
    return model.layers[len(model.layers) - n_layers :]


def split(params: Params, layers: tuple[str, ...]) -> tuple[Params, Params]:
    """``params`` as (all other layers, the named layers); works on one model and on stacked ones.

    Raises:
        ValueError: a name is not a layer, or ``layers`` is one string instead of a tuple of names.
    """
    trainable, statistics = tree.split_statistics(params)
    tree.check_layers(layers, trainable)

    def part(named: bool) -> Params:
        selected = {name: leaf for name, leaf in trainable.items() if (name in layers) == named}
        stats = {name: leaf for name, leaf in statistics.get(STATISTICS, {}).items() if (name in layers) == named}
        return selected | {STATISTICS: stats} if stats else selected

    return part(False), part(True)


def compose(a: Params, b: Params) -> Params:
    """One model from two parts: the inverse of `split`, in either order."""
    (a, statistics_a), (b, statistics_b) = tree.split_statistics(a), tree.split_statistics(b)
    statistics = statistics_a.get(STATISTICS, {}) | statistics_b.get(STATISTICS, {})
    return a | b | ({STATISTICS: statistics} if statistics else {})


def replace_layers(params: Params, layers: tuple[str, ...], source: Params) -> Params:
    """``params`` with the named layers, and their running statistics, taken from ``source``.

    Works on one model and on stacked ones; nothing is computed, so NaN in replaced or unused layers has no effect.
    """
    return compose(split(params, layers)[0], split(source, layers)[1])


def n_floats(params: Params, layers: tuple[str, ...]) -> int:
    """Number of trainable scalars in the named layers of one model: the traffic of sending them."""
    return tree.size(tree.select(params, layers))
