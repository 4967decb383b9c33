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


@hyper
class FoolsGoldHyper:
    confidence: Scalar = number(1.0, "kappa: steepness of the logit that separates duplicates from others", above=0)


def weights(history: Array, came: Array, confidence: Any) -> Array:
    """alpha (cohort,) in [0, 1] of the clients that ``came`` (cohort,), from the sums (cohort, d) of their updates."""
    length = jnp.sqrt(jnp.square(history).sum(axis=1, keepdims=True))
    unit = history / jnp.where(length > 0, length, 1.0)
    pairs = came[:, None] & came[None, :] & ~jnp.eye(len(came), dtype=bool)
    alike = jnp.where(pairs, tree.product(unit, unit.T), 0.0)
    most = alike.max(axis=1)
    # Pardoning: a client whose nearest other client is even nearer to a third one is less likely to be a duplicate.
    ratio = most[:, None] / jnp.where(most[None, :] != 0, most[None, :], 1.0)
    alike = jnp.where(most[:, None] < most[None, :], alike * ratio, alike)
    alpha = jnp.where(came, jnp.clip(1 - alike.max(axis=1), 0, 1), 0.0)
    alpha = alpha / jnp.where(alpha.max() > 0, alpha.max(), 1.0)
    alpha = jnp.where(alpha >= 1, NEARLY_ONE, alpha)
    logit = jnp.log(alpha / (1 - alpha))  # -inf of 0
    return jnp.clip(confidence * (logit + 0.5), 0, 1)


def _init(hyper: Any, n_clients: int, shapes: tuple) -> Memory:
    return Memory(clients=jnp.zeros((n_clients, n_numbers(shapes)), jnp.float32))


def _apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    came = message.weight > 0
    history = memory.clients + jnp.where(came[:, None], message.values, 0.0)
    weight = message.weight * weights(history, came, hyper.confidence)
    return Memory(memory.server, history), message._replace(weight=weight)


fools_gold = Transform(_apply, _init, is_last=True, sees_each=True, name="fools_gold")
"""Clients whose summed updates have a direction similar to another client's get smaller weights, or 0."""
