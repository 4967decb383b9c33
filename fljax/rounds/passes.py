"""Sampling in passes: every client participates once before any participates again."""

from functools import cache, partial

import jax
import jax.numpy as jnp
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import Seed
from fljax.placement import whole
from fljax.rounds.sampling import Sampling, rounds_of_a_pass, share_of_clients
from fljax.types import Key


@checked_kinds
def shuffled(participation: float = 1.0, *, seed: Seed = 0) -> Sampling:
    """In passes: every client participates once, in a random order, before any of them participates again.

    A pass over n clients, of which ``participation`` is a share of m, has ``ceil(n / m)`` rounds, whose numbers of
    participants differ by at most one. Each pass has another order; `fljax.rounds.least_recent` keeps about a pass
    between two participations of a client. A private method's epsilon counts one participation in a pass.

    Args:
        participation: share of the clients in a round, at most, in (0, 1].
        seed: of the orders, which do not depend on the run's key: a round knows those of other rounds.

    Raises:
        ValueError: ``participation`` is not a number in (0, 1].
    """
    return _shuffled(float(share_of_clients(participation)), int(seed))


@cache
def _shuffled(participation: float, seed: int) -> Sampling:
    def n_places(n_clients: int) -> int:
        return -(-n_clients // rounds_of_a_pass(participation, n_clients))

    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        n_clients = size.shape[0]
        n_rounds = rounds_of_a_pass(participation, n_clients)
        which, place = round // n_rounds, round % n_rounds
        order = whole(jax.random.permutation(jax.random.fold_in(jax.random.key(seed), which), n_clients))
        # Round `place` of a pass has those from floor(place n_clients / n_rounds) on, without a product that overflows.
        quotient, remainder = divmod(n_clients, n_rounds)
        begin, end = (quotient * p + (remainder * p) // n_rounds for p in (place, place + 1))
        positions = begin + jnp.arange(n, dtype=jnp.int32)
        # Places that are left over are filled with clients that follow in the order, so that ids stay distinct.
        ids, is_in_round = order[positions % n_clients].astype(jnp.int32), positions < end
        by_id = jnp.argsort(ids)
        return ids[by_id], is_in_round[by_id]

    about = (("sampling", "shuffled"), ("participation", participation), ("seed", seed))
    return Sampling(draw, n_places, about, once_in=partial(rounds_of_a_pass, participation))
