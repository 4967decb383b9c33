"""Partial work: how much of its local work each participant does, as a straggler or because of its device.

Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127 (FedProx): "systems heterogeneity"; Wang et al., NeurIPS 2020,
https://arxiv.org/abs/2007.07481 (FedNova): clients with random numbers of epochs. Methods that train by
`fljax.rounds.train` need no code for it.
"""

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fljax.argument_kinds import Allowed, check_allowed, checked_kinds
from fljax.choices import Positive, short_repr
from fljax.keys import descend, uniforms
from fljax.ranges import real
from fljax.rounds.per_client import for_each_client, numbers_of_clients
from fljax.rounds.sampling import Sampling
from fljax.types import Key


@checked_kinds
def stragglers(sampling: Sampling, rate: float, *, least: float = 0.0, epochs: Positive | None = None) -> Sampling:
    """``sampling`` whose participants are stragglers with probability ``rate``, drawn in every round.

    A straggler does only a part of its local work; its update counts like others. FedProx's experiments are
    ``stragglers(uniform(0.01), 0.9, epochs=20)``, with 1 to 20 epochs, equally likely; FedNova's are
    ``stragglers(uniform(0.5), 1.0, least=0.4, epochs=5)``, with 2 to 5 epochs. In FedProx's code exactly that share of
    a round's participants are stragglers; here each participant is one with that probability.

    Args:
        sampling: which clients participate.
        rate: in [0, 1].
        least: least share of the work that a straggler does, in [0, 1].
        epochs: of the clients' `Work`; a straggler then does a whole number of epochs. None: any share, at least one
            step.

    Raises:
        ValueError: a number is out of its range, or ``sampling`` already sets partial work.
    """
    for name, value in (("rate", rate), ("least", least)):
        if not 0 <= real(name, value) <= 1:
            raise ValueError(f"{name}={value} is not a share; choose 0 <= {name} <= 1")
    return _stragglers(_without_effort(sampling), float(rate), float(least), None if epochs is None else int(epochs))


@cache
def _stragglers(sampling: Sampling, rate: float, least: float, epochs: int | None) -> Sampling:
    def effort(key: Key, ids: Array, round: Array) -> Array:
        keys = descend(jax.random.fold_in(key, _EFFORT), ids)  # one per client, whatever their order
        chance, share = uniforms(keys, 2).T
        if epochs is None:
            share = 1 - (1 - least) * share
        else:
            fewest = max(1, math.ceil(least * epochs - 1e-9))  # products such as 0.4 * 5 are meant as decimals
            share = (fewest + jnp.floor(share * (epochs + 1 - fewest))) / epochs
        return jnp.where(chance < rate, share, 1.0)

    about = (("stragglers", rate), ("least_effort", least), ("whole_epochs", epochs))
    return sampling._replace(effort=effort, about=(*sampling.about, *about))


@checked_kinds
def partial_work(sampling: Sampling, effort: ArrayLike | Callable[[Array], Array]) -> Sampling:
    """``sampling`` whose clients do a fixed share of their local work: each its own, or all that of the round.

    Args:
        sampling: which clients participate.
        effort: (clients,) shares in (0, 1], as with devices of different speeds; or ``(round) -> share`` for all
            clients, both (), the round int32 and counted from 0. The number of steps is rounded up, at least 1; a share
            above 1 is 1. With ``Work(epochs=10)``, ``lambda round: jnp.where(round < 5, 0.1, 1.0)`` is one epoch in
            each of the first five rounds, and ten later.

    Raises:
        ValueError: a share is out of its range, a run has other clients, or ``sampling`` already sets partial work.
    """
    if callable(effort):
        check_allowed("effort", effort, Allowed((), is_function=True, form="(round) -> share"))
        first = np.asarray(effort(jnp.int32(0)))
        if first.shape != () or not jnp.issubdtype(first.dtype, jnp.number) or not 0 < first <= 1:
            raise ValueError(
                f"effort={short_repr(first.tolist())} of round 0; let it return one share, 0 < effort <= 1"
            )
        return _work_of_round(_without_effort(sampling), effort)
    shares = numbers_of_clients("effort", effort)
    for i, share in enumerate(shares):
        if not 0 < share <= 1:
            raise ValueError(f"effort={share:g} of client {i}; choose 0 < effort <= 1")
    return _partial_work(_without_effort(sampling), shares)


@cache
def _partial_work(sampling: Sampling, shares: tuple[float, ...]) -> Sampling:
    def effort(key: Key, ids: Array, round: Array) -> Array:
        return jnp.asarray(shares, jnp.float32)[ids]

    return for_each_client("effort", shares, sampling._replace(effort=effort))


@cache
def _work_of_round(sampling: Sampling, share: Callable[[Array], Array]) -> Sampling:
    def effort(key: Key, ids: Array, round: Array) -> Array:
        return jnp.broadcast_to(jnp.minimum(jnp.asarray(share(round), jnp.float32), 1.0), ids.shape)

    return sampling._replace(effort=effort, about=(*sampling.about, ("effort", share)))


def _without_effort(sampling: Sampling) -> Sampling:
    if sampling.effort is not None:
        raise ValueError(f"sampling={dict(sampling.about)} already sets partial work; give one that does not")
    return sampling


_EFFORT = 0x65666672
