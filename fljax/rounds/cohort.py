"""The participants of a round, as a method receives them: sampled, split among devices, some of them dropped out."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import get_opaque_trace_state

from fljax.client.finetune import client_keys
from fljax.client.map import AtHome
from fljax.client.steps import steps_taken
from fljax.data.federation import select
from fljax.keys import descend, uniforms
from fljax.placement import n_client_devices, whole
from fljax.rounds.draw_checks import as_asked, as_drawn
from fljax.rounds.named_samplings import uniform
from fljax.rounds.sampling import Draw, Losses, Sampling
from fljax.types import ClientData, Cohort, Federation, Key, Work


class CohortKeys(NamedTuple):
    """A round's keys for its participants."""

    ids: Key  # for the sampling
    dropout: Key  # for the dropout
    clients: Key  # for the participants' own draws


def sample_cohort(
    key: Key, round: Array, federation: Federation, draw: Draw | int, dropout: Array | float | None
) -> Cohort:
    """`cohort_of` with the round's keys, derived from the run's ``key`` for cohorts."""
    return cohort_of(CohortKeys(*descend(key, round, np.arange(3))), round, federation, draw, dropout)


def cohort_of(
    keys: CohortKeys,
    round: Array,
    federation: Federation,
    draw: Draw | int,
    dropout: Array | float | None,
    loss: Losses | None = None,
    memory: Any = None,
) -> Cohort:
    """The participants of a round; each of them drops out with probability ``dropout``.

    At least one of the sampled clients that are present stays active: if all drop out, the one nearest to staying
    stays. With Poisson sampling, which allows empty rounds, all may drop out: epsilon relies on it. With several
    devices, participants are split so that each device has a similar number of examples; the order changes no result.

    Args:
        keys: of the round.
        round: () int32.
        federation: the clients and their data.
        draw: how participants are sampled; an int: this many, uniformly.
        dropout: () in [0, 1); None: nobody drops out.
        loss: the clients' losses, for a sampling by them; None: there are none.
        memory: what the sampling has kept so far, if it keeps something; None: there is no memory.

    Raises:
        ValueError: the sampling does not draw a cohort, or there are no losses or no memory for it.
    """
    data = federation.train
    n_clients = data.n_clients
    sampling, size = (uniform(), draw) if isinstance(draw, int) else draw
    given = keys.ids, round, _sizes(sampling, federation), size
    asked: list[Array] = []
    ids, active = as_drawn(
        sampling.draw(*given, *_losses(sampling, loss, asked, federation), *_memories(sampling, memory)), size
    )
    candidates = jnp.concatenate(asked) if asked else None
    if federation.there is not None:
        active &= federation.there[ids]
    is_at_home = size == n_clients and isinstance(data.pool, AtHome)  # each client trains where its examples are
    if n_client_devices() > 1 and not is_at_home:
        order = balanced_order(jnp.arange(size), data.size[ids], n_client_devices())
        ids, active = whole(ids[order]), whole(active[order])
    keys_of_clients = descend(keys.clients, ids)
    if dropout is not None:
        random_numbers = uniforms(descend(keys.dropout, ids))
        stays = random_numbers >= dropout
        if not sampling.is_independent:  # otherwise whether a client counts would depend on others' dropout
            active_numbers = jnp.where(active, random_numbers, -1.0)
            stays |= ~(stays & active).any() & (active_numbers == active_numbers.max())
        active &= stays
    if sampling.cut is not None:
        active = sampling.cut(ids, active)
    val = None if federation.val is None else select(federation.val, ids)
    n_missing = None
    if sampling.timing is not None and sampling.timing.deadline is not None:
        # The draw from above, including clients that do not come: the compiler merges the two.
        further = *_losses(sampling, loss, [], federation), *_memories(sampling, memory)
        asking = (sampling.ask or sampling.draw)(*given, *further)
        n_missing = _n_there(federation, *asking) - active.sum(dtype=jnp.int32)
    expected = sampling.expected(n_clients, dropout)
    effort = None if sampling.effort is None else sampling.effort(keys.ids, ids, round)
    return Cohort(
        round,
        ids,
        select(data, ids),
        active,
        federation.public,
        keys_of_clients,
        val,
        expected,
        n_missing,
        effort,
        candidates,
    )


def _n_there(federation: Federation, ids: Array, is_sampled: Array) -> Array:
    """() int32 number of sampled clients that the federation has in this round."""
    is_sampled = is_sampled if federation.there is None else is_sampled & federation.there[ids]
    return is_sampled.sum(dtype=jnp.int32)


def _sizes(sampling: Sampling, federation: Federation) -> Array:
    """The clients' sizes as the sampling sees them, (clients,)."""
    size = federation.train.size
    if sampling.memory is None or federation.there is None:
        return size
    return jnp.where(federation.there, size, 0)  # who never comes is never known, and would be tried in all rounds


def _memories(sampling: Sampling, memory: Any) -> list[Any]:
    """The last argument of a draw with a memory."""
    if sampling.memory is None:
        return []
    if memory is None:
        raise ValueError("the sampling draws from its memory, but there is none; give that of a run's state")
    return [memory]


def _losses(sampling: Sampling, loss: Losses | None, asked: list[Array], federation: Federation) -> list[Losses]:
    """The further argument of a draw by loss; the clients that it asks are appended to ``asked``, absent ones as -1."""
    if not sampling.by_loss:
        return []
    if loss is None:
        raise ValueError("the sampling chooses clients by their losses, but there is no model; give the losses")

    trace = get_opaque_trace_state()

    def recorded(ids: Any, examples: int | None = None) -> Array:
        if get_opaque_trace_state() != trace:
            raise ValueError(
                "the sampling asks for losses inside a function of JAX, such as jax.vmap or jax.lax.cond, outside of "
                "which nobody knows whom; call loss outside of it, with the ids of all clients that are asked"
            )
        ids = as_asked(ids, federation.train.n_clients)
        if federation.there is not None:
            ids = jnp.where(federation.there[ids], ids, -1)
        asked.append(ids)
        return jnp.where(ids >= 0, loss(jnp.maximum(ids, 0), examples), -jnp.inf)

    return [recorded]


def everyone(key: Key, round: Array, data: ClientData) -> Cohort:
    """A cohort of all clients of ``data`` with their training rows only; client i has the key ``fold_in(key, i)``."""
    ids = jnp.arange(data.n_clients, dtype=jnp.int32)
    return Cohort(round, ids, data, jnp.ones(ids.shape, bool), None, client_keys(key, data))


def balanced_order(ids: Array, size: Array, n_devices: int) -> Array:
    """``ids`` reordered so that ``n_devices`` equal consecutive shares hold similar numbers of examples.

    Clients go to the shares in turn, by decreasing size; the order within a share does not matter.
    """
    if n_devices == 1 or ids.shape[0] % n_devices:
        return ids
    return ids[jnp.argsort(-size, stable=True)].reshape(-1, n_devices).T.reshape(-1)


def steps_of(cohort: Cohort, work: Work) -> Array:
    """(cohort,) int32 number of local steps that each participant makes in a round of ``work``."""
    return steps_taken(cohort.data.size, work, cohort.effort)


def keys_for(cohort: Cohort, number: int) -> Array:
    """(cohort,) keys of the participants for a separate part of a round."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(cohort.key)
