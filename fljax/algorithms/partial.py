"""Models in two parts, one shared through the server and one that stays with the client.

A part is a dict of some of a model's layers, with their running statistics where they keep any; the layers are named
statically, so a part that is not shared is never averaged, sent or copied.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.server.aggregate import weighted_mean
from fljax.tree import STATISTICS
from fljax.types import Assigned, ClientData, Key, Model, Params, Stacked, State


def last_layers(model: Model, n_layers: int, field: str) -> tuple[str, ...]:
    """Names of the last ``n_layers`` layers of ``model``.

    Raises:
        ValueError: naming ``field``, where the model does not have so many.
    """
    if not 0 <= n_layers <= len(model.layers):
        raise ValueError(f"{field}={n_layers}: the model has layers {model.layers}; choose 0 to {len(model.layers)}")
    return model.layers[len(model.layers) - n_layers :]


def split(params: Params, layers: tuple[str, ...]) -> tuple[Params, Params]:
    """``params`` as (all other layers, the named layers); works on one model and on stacked ones."""
    trainable, statistics = tree.split_statistics(params)

    def part(named: bool) -> Params:
        own = {name: leaf for name, leaf in trainable.items() if (name in layers) == named}
        kept = {name: leaf for name, leaf in statistics.get(STATISTICS, {}).items() if (name in layers) == named}
        return own | {STATISTICS: kept} if kept else own

    return part(False), part(True)


def compose(a: Params, b: Params) -> Params:
    """One model of two parts: the inverse of `split`, in either order."""
    (a, kept_a), (b, kept_b) = tree.split_statistics(a), tree.split_statistics(b)
    kept = kept_a.get(STATISTICS, {}) | kept_b.get(STATISTICS, {})
    return a | b | ({STATISTICS: kept} if kept else {})


def compose_rows(shared: Params, personal: Stacked, n_clients: int) -> Stacked:
    """Every client's model: the one shared part, and the client's own row of the other."""
    return compose(tree.broadcast(shared, n_clients), personal)


def part_mean(part: Stacked, weight: Array, empty: Params) -> Params:
    """`weighted_mean` of a part, which may have no layer at all."""
    return weighted_mean(part, weight, empty=empty) if jax.tree.leaves(part) else empty


def deploy_composed(key: Key, hyper: NamedTuple, state: State, data: ClientData) -> Assigned:
    """Every client is tested with the server's shared part, which is not copied, and its own personal part."""
    n_clients = data.size.shape[0]
    if not jax.tree.leaves(state.clients):
        return tree.everyone(state.server, n_clients)
    shared = jax.tree.map(lambda leaf: leaf[None], state.server)
    return Assigned(compose(shared, state.clients), jnp.arange(n_clients, dtype=jnp.int32))
