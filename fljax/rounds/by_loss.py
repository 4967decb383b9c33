"""Samplings that see the clients' losses: the participants are those for whom the models are worst.

The server asks some clients, the candidates, for their loss. Each of them receives its model, as a participant does,
and sends one number; both are counted in the run's traffic (`fljax.metrics.cost`). Or it asks nobody and remembers the
losses of earlier rounds.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.placement import whole
from fljax.ranges import real
from fljax.rounds.memory import SamplingMemory, Seen
from fljax.rounds.sampling import Losses, Sampling, cohort_size, ids_by_size, share_of_clients
from fljax.types import Key


@checked_kinds
def power_of_choice(
    participation: float = 1.0, candidates: float = 2.0, examples: Positive | None = None, memory: bool = False
) -> Sampling:
    """Of more clients, drawn by size, those with the largest losses participate (Cho et al., AISTATS 2022).

    Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning", pi_pow-d, where d is
    ``candidates`` times the participants, rounded up: d candidates are drawn without replacement, each with probability
    ~ n_i, and the participants are those with the largest mean training losses, if equal those with the smallest ids.
    One whose loss is NaN is chosen only if no other is left. One that is absent, or not available, sends no loss and
    does not participate. With candidates=1 and everyone there, it is `by_size`. Averages usually have equal weights
    (``weighting="uniform"``).

    With ``memory`` (the paper's pi_rpow-d) candidates are not asked: the server compares the training losses that they
    sent when they last participated, one number each. Clients that have not been sampled yet come first, in random
    order. Until it has come once, one that was sampled and did not come counts as the mean of the others.

    Args:
        participation: share of the clients that participate, in (0, 1].
        candidates: number of candidates per participant, at least 1; at most all clients are candidates.
        examples: number of its examples on which a candidate computes its loss, drawn in each round without replacement
            (the paper's pi_cpow-d); None: all (its pi_pow-d).
        memory: True: remember the losses of earlier rounds instead of asking the candidates.

    Raises:
        ValueError: a number is out of its range, or there are ``examples`` for candidates that are not asked.
    """
    if not 1 <= real("candidates", candidates) < math.inf:
        raise ValueError(f"candidates={candidates} per participant; choose a finite number >= 1")
    if not isinstance(memory, bool):
        raise ValueError(f"memory={memory!r} is not a choice; choose True or False")
    if memory and examples is not None:
        raise ValueError(f"examples={examples}: with memory=True candidates compute no loss; leave one of them out")
    share = float(share_of_clients(participation))
    if memory:
        return _remembering_power_of_choice(share, float(candidates))
    return _power_of_choice(share, float(candidates), examples)


@cache
def _power_of_choice(participation: float, candidates: float, examples: int | None) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int, loss: Losses) -> tuple[Array, Array]:
        ids = ids_by_size(key, size, _n_candidates(candidates, n, size.shape[0]))
        losses = loss(ids, examples)
        # Chosen by its loss, a client that computes NaN would participate in all rounds, and its results be left out.
        known = jnp.where(jnp.isnan(losses), jnp.finfo(jnp.float32).min, losses)
        priority = jnp.where(size[ids] > 0, known, -jnp.inf)
        chosen = jnp.sort(lax.top_k(whole(priority), n)[1])  # the candidates are in ascending order
        return ids[chosen], losses[chosen] != -jnp.inf

    choices = ("participation", participation), ("candidates", candidates), ("examples", examples)
    about = ("sampling", "power_of_choice"), *choices
    return Sampling(draw, lambda n: cohort_size(participation, n), about, by_loss=True)


@cache
def _remembering_power_of_choice(participation: float, candidates: float) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int, last: Array) -> tuple[Array, Array]:
        ids = ids_by_size(key, size, _n_candidates(candidates, n, size.shape[0]))
        priority = jnp.where(size[ids] > 0, whole(expected_losses(last))[ids], -jnp.inf)
        tie = whole(jax.random.uniform(jax.random.fold_in(key, _TIE), ids.shape, jnp.float32))
        chosen = jnp.sort(jnp.lexsort((tie, -priority))[:n])
        return ids[chosen], size[ids[chosen]] > 0

    choices = ("participation", participation), ("candidates", candidates), ("memory", True)
    about = ("sampling", "power_of_choice"), *choices
    memory = SamplingMemory(lambda n_clients: jnp.full(n_clients, jnp.inf, jnp.float32), last_losses, sends=1)
    return Sampling(draw, lambda n: cohort_size(participation, n), about, memory=memory)


_TIE = 0x746965


def last_losses(last: Array, seen: Seen) -> Array:
    """(clients,) the loss of each client when it last participated; inf: never sampled, -inf: sampled, never there.

    A loss that is not finite is the least of all, or the client would be chosen again and again.
    """
    assert seen.loss is not None
    before = last[seen.ids]
    sampled = tree.put(last, seen.ids, jnp.where(before == jnp.inf, -jnp.inf, before))
    return seen.put(sampled, jnp.where(jnp.isfinite(seen.loss), seen.loss, _LEAST))


def expected_losses(last: Array) -> Array:
    """(clients,) the `last_losses`, with the mean of those that are known in place of -inf."""
    is_known = jnp.isfinite(last) & (last > _LEAST)
    mean = jnp.where(is_known, last, 0.0).sum() / jnp.maximum(is_known.sum(), 1).astype(jnp.float32)
    return jnp.where(last == -jnp.inf, mean, last)


_LEAST = jnp.finfo(jnp.float32).min


def _n_candidates(candidates: float, n: int, n_clients: int) -> int:
    return min(n_clients, math.ceil(candidates * n - 1e-9))  # products such as 1.1 * 10 are meant as decimals
