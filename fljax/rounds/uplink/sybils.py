"""FoolsGold: clients with too similar updates get smaller weights, a defence against one attacker behind many clients.

Fung, Yoon, Beschastnikh: The Limitations of Federated Learning in Sybil Settings, RAID 2020,
https://arxiv.org/abs/1808.04866.
The server sums up the updates of each client. Clients whose sums have similar directions are treated as duplicates
(sybils). So honest clients must differ more than attackers do: clients with similar data (a hidden group, iid) are also
treated as duplicates, and a single attacker that differs from all others keeps its full weight.

Differences from the paper: all numbers of an update are compared, not only those of the output layer; the weights
multiply those of the method, whose average is normalised.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.message import Message, Trip, n_numbers

NEARLY_ONE = 0.99
"""Used instead of a weight of 1, whose logit is infinite."""
_LARGEST = 1e37
"""Largest number of a sum of updates. XLA multiplies by its inverse, which must not be subnormal: that counts as 0."""


@hyper
class FoolsGoldHyper:
    confidence: Scalar = number(1.0, "kappa: steepness of the logit that separates duplicates from others", above=0)


def weights(history: Array, is_received: Array, confidence: Any) -> Array:
    """alpha (cohort,) in [0, 1] of the clients with ``is_received`` (cohort,), by their summed updates (cohort, d)."""
    # Squares of numbers above 2e19 overflow in float32: duplicates with such updates would look unlike each other.
    # A power of two scales without rounding.
    _, exponent = jnp.frexp(jnp.abs(history).max(axis=1, keepdims=True))
    scaled = jnp.ldexp(history, -exponent)
    length = jnp.sqrt(jnp.square(scaled).sum(axis=1, keepdims=True))
    unit = scaled / jnp.where(length > 0, length, 1.0)
    pairs = is_received[:, None] & is_received[None, :] & ~jnp.eye(len(is_received), dtype=bool)
    similarity = jnp.where(pairs, tree.product(unit, unit.T), 0.0)
    largest = similarity.max(axis=1)
    # Pardoning: a client whose nearest other client is even nearer to a third one is less likely to be a duplicate.
    ratio = largest[:, None] / jnp.where(largest[None, :] != 0, largest[None, :], 1.0)
    similarity = jnp.where(largest[:, None] < largest[None, :], similarity * ratio, similarity)
    alpha = jnp.where(is_received, jnp.clip(1 - similarity.max(axis=1), 0, 1), 0.0)
    alpha = alpha / jnp.where(alpha.max() > 0, alpha.max(), 1.0)
    alpha = jnp.where(alpha >= 1, NEARLY_ONE, alpha)
    logit = jnp.log(alpha / (1 - alpha))  # -inf of 0
    return jnp.clip(confidence * (logit + 0.5), 0, 1)


def _init(hyper: Any, n_clients: int, shapes: tuple) -> Memory:
    return Memory(clients=jnp.zeros((n_clients, n_numbers(shapes)), jnp.float32))


def _apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    # A sum that is not finite would make all clients' weights NaN.
    is_received = (message.weight > 0) & jnp.isfinite(message.values).all(axis=1)
    history = memory.clients + jnp.where(is_received[:, None], message.values, 0.0)
    history = jnp.clip(history, -_LARGEST, _LARGEST)
    weight = message.weight * weights(history, is_received, hyper.confidence)
    return Memory(memory.server, history), message._replace(weight=weight)


fools_gold = Transform(_apply, _init, is_last=True, sees_each=True, name="fools_gold")
"""Clients whose summed updates have a direction similar to another client's get smaller weights, or 0."""
