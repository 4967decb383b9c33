"""Oort: clients are sampled by what their last losses promise, divided by the time they take.

Lai, Zhu, Madhyastha, Chowdhury, "Oort: efficient federated learning via guided participant selection", OSDI 2021,
https://arxiv.org/abs/2010.06081. Constants that the paper leaves open are those of the authors' code, in FedScale.
"""

from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.placement import whole
from fljax.ranges import Number, check_stated
from fljax.rounds.memory import SamplingMemory, Seen
from fljax.rounds.sampling import Sampling, cohort_size, share_of_clients
from fljax.types import Key

Share = Annotated[float, Number(least=0, most=1)]

WINDOW, STEP, FIRST_SHARE = 20, 0.05, 0.3
"""The pacer: after every window of so many rounds it may raise the preferred duration, by so large a share of the
clients; it begins with the duration that this share of the clients keeps."""


class Explored(NamedTuple):
    """What Oort remembers."""

    utility: Array  # (clients,) float32 statistical utility when the client last came; 0 if it never has
    last: Array  # (clients,) int32 the last round in which it was sampled, from 1; 0: never
    seconds: Array  # (clients,) float32 duration of its round when it last came; 0 without a clock
    share: Array  # () float32 of the explored clients, those that keep the preferred duration
    gained: Array  # (2,) float32 utility of the participants in this window of rounds, and in the one before


@checked_kinds
def oort(
    participation: float = 1.0,
    exploration: Share = 0.9,
    exploration_decay: Share = 0.98,
    least_exploration: Share = 0.2,
    cut_off: Share = 0.95,
    clip: Share = 0.95,
    penalty: Annotated[float, Number(least=0)] = 2.0,
) -> Sampling:
    """Clients with a high utility, and a shrinking share of clients never seen before (Oort: Lai et al., OSDI 2021).

    The statistical utility of a client is ``|B| sqrt(mean of the squared losses of its examples)``, with the model that
    it would have been tested with at the beginning of its last round; it sends this one number. The clients' utilities
    are limited to their ``clip`` quantile, scaled to [0, 1], and get ``sqrt(0.1 log R / L)`` for uncertainty, where R
    is this round's number and L that of the client's last. Participants are drawn in proportion to it among the clients
    above ``cut_off`` times the last that would be admitted by rank; the places for exploration go to clients never
    seen, at random.

    Under a clock (`fljax.rounds.clock`), the utility of a client whose round takes t seconds is multiplied by ``(T / t)
    ^ penalty`` if t is more than the preferred duration T. T begins with that of the fastest 30 % of the clients, and
    is relaxed by 5 % of them after every 20 rounds whose participants had less utility than in the 20 before. Not here:
    the limit on how often a client is chosen, which the authors' code leaves out by default, and the fairness knob.

    Args:
        participation: share of the clients that participate, in (0, 1].
        exploration: share of the places for clients never seen, before the first decay.
        exploration_decay: factor on it per round.
        least_exploration: it never becomes less; when all clients have been seen, it is 0.
        cut_off: 0 admits all clients that have been seen, 1 the best only.
        clip: quantile of the statistical utilities to which larger ones, such as those of corrupt clients, are limited.
        penalty: exponent alpha for slow clients; 0: none.

    Raises:
        ValueError: a number is out of its range.
    """
    numbers = {
        "exploration": exploration,
        "exploration_decay": exploration_decay,
        "least_exploration": least_exploration,
        "cut_off": cut_off,
        "clip": clip,
        "penalty": penalty,
    }
    check_stated(get_type_hints(oort, include_extras=True), numbers)
    return _oort(float(share_of_clients(participation)), *map(float, numbers.values()))


@cache
def _oort(
    participation: float,
    exploration: float,
    exploration_decay: float,
    least_exploration: float,
    cut_off: float,
    clip: float,
    penalty: float,
) -> Sampling:
    def draw(key: Key, round: Array, size: Array, n: int, memory: Explored) -> tuple[Array, Array]:
        is_there, number = size > 0, round + 1
        explored = is_there & (memory.last > 0)
        unexplored = is_there & ~explored
        utility = utilities(memory, explored, number, clip, penalty)
        share = jnp.maximum(exploration * exploration_decay ** number.astype(jnp.float32), least_exploration)
        n_exploring = jnp.where(unexplored.any(), jnp.floor(n * share), 0).astype(jnp.int32)
        n_exploited = jnp.minimum(n - n_exploring, explored.sum(dtype=jnp.int32))
        # The largest values of log utility + Gumbel noise are a sample in proportion to it (Yellott 1977).
        noise = whole(jax.random.gumbel(key, size.shape, jnp.float32))
        ticket = jnp.where(explored, jnp.log(utility) + noise, noise)
        best = lax.top_k(jnp.where(explored, utility, -jnp.inf), n)[0]
        admitted = explored & (utility >= cut_off * best[jnp.maximum(n_exploited - 1, 0)])
        n_new = jnp.minimum(n - n_exploited, unexplored.sum(dtype=jnp.int32))
        taken = first(ticket, admitted, n, n_exploited) | first(ticket, unexplored, n, n_new)
        # Places that no unexplored client takes go to explored ones, also to those that were not admitted.
        priority = jnp.where(taken, jnp.inf, jnp.where(explored, ticket, -jnp.inf))
        ids = jnp.sort(lax.top_k(priority, n)[1]).astype(jnp.int32)
        return ids, is_there[ids]

    names = ("exploration", "exploration_decay", "least_exploration", "cut_off", "clip", "penalty")
    numbers = (exploration, exploration_decay, least_exploration, cut_off, clip, penalty)
    about = ("sampling", "oort"), ("participation", participation), *zip(names, numbers, strict=True)
    memory = SamplingMemory(nothing_explored, explore, sends=1)
    return Sampling(draw, lambda n_clients: cohort_size(participation, n_clients), about, memory=memory)


def nothing_explored(n_clients: int) -> Explored:
    """The memory before the first round."""
    none = jnp.zeros(n_clients, jnp.float32)
    return Explored(none, jnp.zeros(n_clients, jnp.int32), none, jnp.float32(FIRST_SHARE), jnp.zeros(2, jnp.float32))


def explore(memory: Explored, seen: Seen) -> Explored:
    """The memory after a round, with the pacer's step at the end of a window."""
    assert seen.mean_of is not None
    number = seen.round + 1
    utility = seen.size.astype(jnp.float32) * jnp.sqrt(seen.mean_of(jnp.square))
    utility = jnp.where(jnp.isfinite(utility), utility, 0.0)  # or a client that diverges would be the best
    now, before = memory.gained
    now += jnp.where(seen.active, utility, 0.0).sum()
    is_end, relaxes = number % WINDOW == 0, now < before  # in the first window, before is 0
    return Explored(
        seen.put(memory.utility, utility),
        tree.put(memory.last, seen.ids, jnp.broadcast_to(number, seen.ids.shape)),
        seen.put(memory.seconds, seen.seconds),
        jnp.where(is_end & relaxes, jnp.minimum(memory.share + STEP, 1.0), memory.share),
        jnp.where(is_end, jnp.stack([jnp.float32(0), now]), jnp.stack([now, before])),
    )


def utilities(memory: Explored, explored: Array, number: Array, clip: float, penalty: float) -> Array:
    """(clients,) utility of the clients that are ``explored``, in round ``number`` from 1; 0 of the others."""
    statistical = jnp.minimum(memory.utility, quantile(memory.utility, explored, clip))
    least = jnp.where(explored, statistical, jnp.inf).min()
    most = jnp.where(explored, statistical, -jnp.inf).max()
    scaled = jnp.where(explored, statistical - least, 0.0) / jnp.maximum(most - least, 1e-4)
    last = jnp.maximum(memory.last, 1).astype(jnp.float32)
    utility = scaled + jnp.sqrt(0.1 * jnp.log(number.astype(jnp.float32)) / last)
    preferred = quantile(memory.seconds, explored & (memory.seconds > 0), memory.share)
    is_slow = memory.seconds > preferred
    factor = jnp.where(is_slow, preferred / jnp.where(is_slow, memory.seconds, 1.0), 1.0) ** penalty
    return jnp.where(explored, utility * factor, 0.0)


def quantile(values: Array, among: Array, share: Any) -> Array:
    """() the value above a ``share`` of those that are ``among``; the largest for 1, inf if there are none."""
    n = among.sum(dtype=jnp.int32)
    position = jnp.minimum(jnp.floor(n.astype(jnp.float32) * share).astype(jnp.int32), n - 1)
    return jnp.sort(jnp.where(among, values, jnp.inf))[jnp.maximum(position, 0)]


def first(ticket: Array, among: Array, n: int, count: Array) -> Array:
    """(clients,) bool: which have the ``count`` largest tickets of those that are ``among``, of whom there are as many;
    at most n."""
    ids = lax.top_k(jnp.where(among, ticket, -jnp.inf), n)[1]
    return jnp.zeros(ticket.shape, bool).at[ids].set(jnp.arange(n) < count)
