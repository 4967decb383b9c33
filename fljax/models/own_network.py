"""The one network, of several in its parameters, that a client uses.

Stacked clients need parameters of one structure. So those of clients with different networks have a place for every
network, and among the running statistics, which no optimiser changes, a flag for each: 1 for the one that the client
uses. Training takes this network out, and puts it back; clients that are trained side by side have the same network.
Tests compute all networks for clients side by side, and one for clients one after another, as on a CPU.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from fljax.tree import (
    STATISTICS,
    apart,
    broadcast,
    everyone,
    join_statistics,
    own,
    side_by_side,
    split_statistics,
    stacked,
    without,
)
from fljax.types import Model, ModelTable, Params, Stacked

HEAD, FLAGS = "head", "own_network"
"""The last layer, which all networks have, and the entry of the running statistics with the flags."""


def check_shared(model: Model, shared: Params, own: Params) -> None:
    """Raises ValueError if clients with different networks would share more than their last layer, unless each keeps
    a whole model beside."""
    if model.n_networks > 1 and not (set(shared) <= {HEAD} or set(model.layers) <= set(own)):
        raise ValueError(f"clients have {model.n_networks} different networks, so they can share {HEAD!r} alone")


def network_numbers(models: Stacked | ModelTable) -> tuple[Array | None, int]:
    """(clients,) the number of the network that each client has, or None if all have one; and how many there are."""
    table = models if isinstance(models, ModelTable) else own(models)
    flags = _flags(table.params) or {}
    return (None, 1) if len(flags) < 2 else (_number(flags)[table.row], len(flags))


def _number(flags: dict[str, Array]) -> Array:
    """The number of the network whose flag is 1, in the order of their names, as in a traced dict."""
    return jnp.argmax(jnp.stack([flags[name] for name in sorted(flags)]), axis=0).astype(jnp.int32)


def with_own_network(
    function: Callable[..., tuple[Any, Params]], params: Params, *others: Any, number: Array | None = None
) -> tuple[Any, Params]:
    """``function(params, *others)``, which returns a result and new parameters, with the client's own network alone.

    Args:
        function: it gets `own_network` of all arguments; of parameters without different networks, all of them.
        params: one client's parameters.
        *others: further arguments, such as another model to which its own is compared.
        number: the network's number, see `network_numbers`, if clients side by side have the same; None: that of the
            flags, which under `jax.vmap` makes all networks computed.

    Returns:
        The result, and ``params`` with the parts that the function returned.
    """
    if (flags := _flags(params)) is None:
        return function(params, *others)

    def branch(name: str) -> Callable[[], tuple[Any, Params]]:
        def run() -> tuple[Any, Params]:
            result, updated = function(*(own_network(part, name) for part in (params, *others)))
            return result, _merged(params, updated)

        return run

    return lax.switch(_number(flags) if number is None else number, list(map(branch, sorted(flags))))


def own_network(params: Any, name: str) -> Any:
    """The parameters without the networks of other names; anything that is no such parameters is returned as it is."""
    if (flags := _flags(params)) is None:
        return params
    if FLAGS not in params[STATISTICS]:
        return side_by_side(**{key: own_network(part, name) for key, part in apart(params).items()})
    layers, statistics = split_statistics(without(params, *(set(flags) - {name})))
    kept = {layer: part for layer, part in statistics[STATISTICS].items() if layer == name}
    return join_statistics(layers, {STATISTICS: kept} if kept else {})


def _flags(params: Any) -> dict[str, Array] | None:
    """Name of a network -> whether the client has it; None if these are not parameters of different networks.

    They may be one of the models that `fljax.tree.side_by_side` joined.
    """
    statistics = params.get(STATISTICS) if isinstance(params, dict) else None
    if not isinstance(statistics, dict):
        return None
    parts = [part for part in (statistics, *statistics.values()) if isinstance(part, dict)]
    return next((part[FLAGS] for part in parts if FLAGS in part), None)


def _merged(params: Any, updated: Any) -> Any:
    """``params`` with the leaves of ``updated``."""
    if not isinstance(params, dict):
        return updated
    return params | {name: _merged(params.get(name), part) for name, part in updated.items()}


def first_network(model: Model, params: Params) -> Params:
    """The parameters of one network, the first, with the common last layer; if there is one network, all."""
    return params if model.n_networks == 1 else own_network(params, model.layers[0])


def starting_models(model: Model, params: Params, n_clients: int) -> ModelTable:
    """Every client's first model, ``params``, of which one row serves all; or the part of it that clients keep.

    If there are different networks, client i has network i modulo their number.
    """
    models = everyone(params, n_clients)
    if model.n_networks == 1:
        return models
    position = jnp.arange(n_clients, dtype=jnp.int32)
    number = position % model.n_networks
    flags = {name: (number == i).astype(jnp.float32) for i, name in enumerate(model.layers[:-1])}
    return ModelTable(models.params | {STATISTICS: models.params[STATISTICS] | {FLAGS: flags}}, position)


def own_copies(model: Model, params: Params, n_clients: int) -> Stacked:
    """Every client's first model, as `starting_models`, with a row for each client, (clients, ...)."""
    return broadcast(params, n_clients) if model.n_networks == 1 else stacked(starting_models(model, params, n_clients))
