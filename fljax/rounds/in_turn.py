"""Samplings that spread the participations of each client over the rounds: in turn, or with a minimum separation."""

from functools import cache

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.placement import whole
from fljax.rounds.memory import SamplingMemory, Seen
from fljax.rounds.sampling import Sampling, cohort_size, share_of_clients
from fljax.types import Key


@checked_kinds
def least_recent(participation: float = 1.0, separation: Positive | None = None) -> Sampling:
    """The clients whose last round is longest ago, those of the same round in random order: round robin.

    With m of n clients in a round, each is sampled within the first ceil(n / m) rounds, and again after floor(n / m) to
    ceil(n / m) rounds. With ``separation`` b, all clients that were not sampled in the last b - 1 rounds are equally
    likely: a minimum separation of each client's participations, as private training with correlated noise asks for
    (the brick banded_client_dp); b = 1 is `uniform`'s distribution. If fewer clients have rested, places stay empty; a
    private method's epsilon then counts a client's participations as one in b rounds. A client that is sampled and does
    not come has had its turn.

    Args:
        participation: share of the clients that participate, in (0, 1].
        separation: least number of rounds from a client's participation to its next one, at most n / m; None: as many
            as possible.

    Raises:
        ValueError: a number is out of its range; when a run begins: there are too few clients for the ``separation``.
    """
    return _least_recent(float(share_of_clients(participation)), None if separation is None else int(separation))


@cache
def _least_recent(participation: float, separation: int | None) -> Sampling:
    rest = separation or 1

    def n_places(n_clients: int) -> int:
        n = cohort_size(participation, n_clients)
        if separation is not None and separation * n > n_clients:
            raise ValueError(
                f"separation={separation}: {n} of {n_clients} clients participate in a round, so that a client is "
                f"needed again after {n_clients // n}; choose separation <= {n_clients // n}, or fewer participants"
            )
        return n

    def draw(key: Key, round: Array, size: Array, n: int, last: Array) -> tuple[Array, Array]:
        age = (round - last).astype(jnp.float32)  # of which the largest are found faster; exact for 2^24 rounds
        if separation is not None:
            age = jnp.minimum(age, float(separation))
        age = jnp.where(size > 0, age, 0.0)
        # Without sorting all, as in `uniform`: all that are older than the n-th, and some of its age.
        least, tie = lax.top_k(whole(age), n)[0][-1], jax.random.uniform(key, size.shape, jnp.float32)
        priority = jnp.where(age > least, 1.0, jnp.where(age == least, tie, -1.0))
        ids = jnp.sort(lax.top_k(whole(priority), n)[1]).astype(jnp.int32)
        return ids, age[ids] >= rest

    def update(last: Array, seen: Seen) -> Array:
        # Those that have not rested only filled the cohort's places, and were not sampled.
        has_rested = seen.round - last[seen.ids] >= rest
        return tree.put(last, seen.ids, jnp.broadcast_to(seen.round, seen.ids.shape), has_rested)

    about = ("sampling", "least_recent"), ("participation", participation), ("separation", separation)
    # Before the first round all clients have the same age, have rested, and none that has been sampled becomes as old.
    memory = SamplingMemory(lambda n_clients: jnp.full(n_clients, -rest, jnp.int32), update)
    return Sampling(draw, n_places, about, memory=memory, once_in=rest, separation=rest)
