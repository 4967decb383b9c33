"""Samplings that see the clients' losses: the participants are those for whom the models are worst.

The server asks some clients, the candidates, for their loss. Each of them receives its model, as a participant does,
and sends one number; both are counted in the run's traffic (`fljax.metrics.cost`).
"""

import math
from functools import cache

import jax.numpy as jnp
from jax import Array, lax

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.placement import whole
from fljax.ranges import real
from fljax.rounds.sampling import Losses, Sampling, cohort_size, ids_by_size, share_of_clients
from fljax.types import Key


@checked_kinds
def power_of_choice(participation: float = 1.0, candidates: float = 2.0, examples: Positive | None = None) -> Sampling:
    """Of more clients, drawn by size, those with the largest losses participate (Cho et al., AISTATS 2022).

    Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning", pi_pow-d, where d is
    ``candidates`` times the participants, rounded up: d candidates are drawn without replacement, each with probability
    ~ n_i, and the participants are those with the largest mean training losses, if equal those with the smallest ids.
    One whose loss is NaN is chosen only if no other is left. One that is absent, or not available, sends no loss and
    does not participate. With candidates=1 and everyone there, it is `by_size`. Averages usually have equal weights
    (``weighting="uniform"``).

    Args:
        participation: share of the clients that participate, in (0, 1].
        candidates: number of candidates per participant, at least 1; at most all clients are candidates.
        examples: number of its examples on which a candidate computes its loss, drawn in each round without replacement
            (the paper's pi_cpow-d); None: all (its pi_pow-d).

    Raises:
        ValueError: a number is out of its range.
    """
    if not 1 <= real("candidates", candidates) < math.inf:
        raise ValueError(f"candidates={candidates} per participant; choose a finite number >= 1")
    return _power_of_choice(float(share_of_clients(participation)), float(candidates), examples)


@cache
def _power_of_choice(participation: float, candidates: float, examples: int | None) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int, loss: Losses) -> tuple[Array, Array]:
        n_candidates = math.ceil(candidates * n - 1e-9)  # products such as 1.1 * 10 are meant as decimals
        ids = ids_by_size(key, size, min(size.shape[0], n_candidates))
        losses = loss(ids, examples)
        # Chosen by its loss, a client that computes NaN would participate in all rounds, and its results be left out.
        known = jnp.where(jnp.isnan(losses), jnp.finfo(jnp.float32).min, losses)
        priority = jnp.where(size[ids] > 0, known, -jnp.inf)
        chosen = jnp.sort(lax.top_k(whole(priority), n)[1])  # the candidates are in ascending order
        return ids[chosen], losses[chosen] != -jnp.inf

    choices = ("participation", participation), ("candidates", candidates), ("examples", examples)
    about = ("sampling", "power_of_choice"), *choices
    return Sampling(draw, lambda n: cohort_size(participation, n), about, by_loss=True)
