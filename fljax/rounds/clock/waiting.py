"""Synchronous rounds: until a deadline, for the first clients, for one tier of similar clients; and their duration."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.placement import whole
from fljax.ranges import real
from fljax.rounds.clock.devices import seconds_of_clients
from fljax.rounds.effort import partial_work
from fljax.rounds.per_client import for_each_client, numbers_of_clients
from fljax.rounds.sampling import Losses, Sampling
from fljax.rounds.timing import Timing
from fljax.types import Key


@checked_kinds
def wait_for_all(sampling: Sampling, seconds: ArrayLike) -> Sampling:
    """``sampling`` with rounds that last until the slowest participant has finished.

    Args:
        sampling: which clients are sampled.
        seconds: (clients,) of each client's round, as `Devices.seconds`.

    Raises:
        ValueError: a run has more or fewer clients.
    """
    return _wait_for_all(sampling, seconds_of_clients(seconds))


@cache
def _wait_for_all(sampling: Sampling, seconds: tuple[float, ...]) -> Sampling:
    return for_each_client("seconds", seconds, sampling)._replace(timing=Timing(seconds))


@checked_kinds
def with_deadline(sampling: Sampling, seconds: ArrayLike, deadline: float) -> Sampling:
    """``sampling`` whose participants must finish by a deadline; late clients do not count.

    Args:
        sampling: which clients are sampled.
        seconds: (clients,) of each client's round, as `Devices.seconds`.
        deadline: seconds; at least those of the fastest client.

    Raises:
        ValueError: no client can finish by then, or a run has more or fewer clients.
    """
    seconds, deadline = seconds_of_clients(seconds), float(real("deadline", deadline))
    if not min(seconds) <= deadline:
        raise ValueError(f"deadline={deadline:g}: the fastest client takes {min(seconds):g} seconds; choose more")
    return _with_deadline(sampling, seconds, deadline)


@cache
def _with_deadline(sampling: Sampling, seconds: tuple[float, ...], deadline: float) -> Sampling:
    def draw(*given: Any) -> tuple[Array, Array]:
        ids, is_present = sampling.draw(*given)
        return ids, is_present & (jnp.asarray(seconds, jnp.float32)[ids] <= deadline)

    timing = (sampling.timing or Timing())._replace(seconds=seconds, deadline=deadline)
    about = (*sampling.about, ("deadline", deadline))
    limited = sampling._replace(draw=draw, about=about, timing=timing, ask=sampling.ask or sampling.draw)
    return for_each_client("seconds", seconds, limited)


@checked_kinds
def partial_by_deadline(
    sampling: Sampling, seconds: ArrayLike, deadline: float, *, steps: ArrayLike, speed: ArrayLike
) -> Sampling:
    """`with_deadline`, but clients that would be late return in time, with the local steps that they can make by then.

    A client that cannot make a step does not count. Partial work counts as any update (Li et al., MLSys 2020).

    Args:
        sampling: which clients are sampled.
        seconds: (clients,) of each client's whole round, as `Devices.seconds`.
        deadline: seconds; at least those in which the fastest client makes a step.
        steps: (clients,) local steps of each client's whole round.
        speed: (clients,) local steps per second, as `Devices.speed`.

    Raises:
        ValueError: as `with_deadline` and `fljax.rounds.partial_work`, or the sequences have different lengths.
    """
    full, deadline = np.asarray(seconds_of_clients(seconds)), float(real("deadline", deadline))
    n, pace = (np.asarray(numbers_of_clients(name, row)) for name, row in (("steps", steps), ("speed", speed)))
    if not len(full) == len(n) == len(pace):
        raise ValueError(f"{len(full)} seconds, {len(n)} steps and {len(pace)} speeds; give one of each per client")
    if (stuck := np.flatnonzero(~(pace > 0))).size:
        raise ValueError(f"speed={pace[stuck[0]]:g} of client {stuck[0]} is not a speed; choose speed > 0")
    n_done = np.clip(np.floor((deadline - full) * pace + n + 1e-6), 0, n)
    is_partial = (n_done >= 1) & (full > deadline)
    times = np.where(is_partial, np.minimum(full - (n - n_done) / pace, deadline), full)
    effort = np.where(is_partial, n_done, n) / np.maximum(n, 1)
    return partial_work(with_deadline(sampling, times.tolist(), deadline), np.where(n > 0, effort, 1.0).tolist())


@checked_kinds
def with_availability(sampling: Sampling, available: ArrayLike) -> Sampling:
    """``sampling`` of clients that are each available with a probability, drawn in every round; others are left out.

    Args:
        sampling: which clients are sampled.
        available: (clients,) probabilities in (0, 1], as `Devices.available`.

    Raises:
        ValueError: a client is never available, or a run has more or fewer clients.
    """
    chances = numbers_of_clients("available", available)
    if not all(0 < chance <= 1 for chance in chances):
        raise ValueError(f"available={chances}: choose 0 < available <= 1 for each client")
    return _with_availability(sampling, chances)


@cache
def _with_availability(sampling: Sampling, available: tuple[float, ...]) -> Sampling:
    def answering(key: Key) -> Array:
        tickets = jax.random.uniform(jax.random.fold_in(key, _ANSWER), (len(available),), jnp.float32)
        return tickets < jnp.asarray(available, jnp.float32)

    def seen_of(answers: Array, size: Array, n: int, *further: Any) -> tuple[Any, ...]:
        """The arguments of a draw that sees who answers: by the losses, and if it has a memory, by the sizes."""

        def of_those(loss: Losses) -> Losses:
            return lambda ids, examples=None: loss(jnp.where(answers[jnp.asarray(ids)], ids, -1), examples)

        if sampling.memory is not None:
            size = jnp.where(answers, size, 0)
        losses, memory = further[: int(sampling.by_loss)], further[int(sampling.by_loss) :]
        return size, n, *map(of_those, losses), *memory

    def draw(key: Key, round: Array, *rest: Any) -> tuple[Array, Array]:
        answers = answering(key)
        ids, is_present = sampling.draw(key, round, *seen_of(answers, *rest))
        return ids, is_present & answers[ids]

    def ask(key: Key, round: Array, *rest: Any) -> tuple[Array, Array]:
        return (sampling.ask or sampling.draw)(key, round, *seen_of(answering(key), *rest))

    sees_who_answers = sampling.by_loss or sampling.memory is not None
    limited = sampling._replace(draw=draw, ask=ask if sees_who_answers else sampling.ask or sampling.draw)
    return for_each_client("available", available, limited)


_ANSWER = 0x616E7377


@checked_kinds
def with_asking(sampling: Sampling, seconds: ArrayLike) -> Sampling:
    """``sampling`` with rounds that begin when all clients that are asked for their loss have answered.

    Those that participate have received their model then: give the clock the seconds of a round without the download.

    Args:
        sampling: one by losses with a clock, such as ``wait_for_all(power_of_choice(0.1), seconds)``.
        seconds: (clients,) until a client that is asked has answered, as `Devices.asking`.

    Raises:
        ValueError: the sampling does not ask clients or has no clock, or a run has more or fewer clients.
    """
    if not sampling.by_loss or sampling.timing is None:
        lacking = "does not ask clients for losses" if not sampling.by_loss else "has no clock"
        raise ValueError(f"sampling={sampling} {lacking}; give one by losses, such as wait_for_all(power_of_choice())")
    return _with_asking(sampling, seconds_of_clients(seconds))


@cache
def _with_asking(sampling: Sampling, seconds: tuple[float, ...]) -> Sampling:
    timing = (sampling.timing or Timing())._replace(asking=seconds)
    return for_each_client("asking", seconds, sampling._replace(timing=timing))


@checked_kinds
def over_selection(sampling: Sampling, seconds: ArrayLike, count: Positive) -> Sampling:
    """``sampling`` samples more clients than needed, and the first ``count`` to finish count (over-selection).

    Clients that are absent, not available or drop out never finish; the next client counts instead.

    Raises:
        ValueError: ``count`` is below 1, or a run has more or fewer clients.
    """
    return _over_selection(sampling, seconds_of_clients(seconds), int(count))


@cache
def _over_selection(sampling: Sampling, seconds: tuple[float, ...], count: int) -> Sampling:
    def cut(ids: Array, active: Array) -> Array:
        active = active if sampling.cut is None else sampling.cut(ids, active)
        times = jnp.where(active, jnp.asarray(seconds, jnp.float32)[ids], jnp.inf)
        place = jnp.argsort(jnp.lexsort((ids, times)), stable=True)  # ties by id, whatever their order
        return active & (place < count)

    timing = (sampling.timing or Timing())._replace(seconds=seconds, count=count)
    about = (*sampling.about, ("first", count))
    limited = sampling._replace(cut=cut, about=about, timing=timing)
    return for_each_client("seconds", seconds, limited)


@checked_kinds
def tiers(seconds: ArrayLike, n_tiers: Positive, n_participants: Positive) -> Sampling:
    """Clients of similar speed participate together: each round draws a tier, and participants in it (TiFL).

    Chai et al., HPDC 2020, https://arxiv.org/abs/2001.09249, with equally likely tiers.

    Raises:
        ValueError: a tier has fewer clients than participants, or a run has more or fewer clients.
    """
    seconds = seconds_of_clients(seconds)
    least = len(seconds) // n_tiers
    if not least:
        raise ValueError(f"n_tiers={n_tiers} of {len(seconds)} clients; choose 1 to {len(seconds)}")
    if not 1 <= n_participants <= least:
        raise ValueError(
            f"n_participants={n_participants} of {len(seconds)} clients in {n_tiers} tiers; choose 1 to {least}"
        )
    return _tiers(seconds, int(n_tiers), int(n_participants))


@cache
def _tiers(seconds: tuple[float, ...], n_tiers: int, n_participants: int) -> Sampling:
    tier = np.empty(len(seconds), np.int32)
    for t, members in enumerate(np.array_split(np.argsort(seconds, kind="stable"), n_tiers)):
        tier[members] = t

    def draw(key: Key, round: Array, size: Array, n: int) -> tuple[Array, Array]:
        key_tier, key_clients = jax.random.split(key)
        drawn_tier = jax.random.randint(key_tier, (), 0, n_tiers, jnp.int32)
        ticket = jnp.where(
            jnp.asarray(tier) == drawn_tier, jax.random.uniform(key_clients, (len(seconds),), jnp.float32), -1.0
        )
        return jnp.sort(jax.lax.top_k(whole(ticket), n)[1]).astype(jnp.int32), jnp.ones(n, bool)

    about = (("sampling", "tiers"), ("tiers", n_tiers), ("participants", n_participants))
    return for_each_client("seconds", seconds, Sampling(draw, lambda n_clients: n_participants, about, Timing(seconds)))


def round_seconds(
    metrics: Mapping[str, Any], seconds: ArrayLike, deadline: float | None = None, asking: ArrayLike | None = None
) -> np.ndarray:
    """Simulated seconds of each round of a run, (rounds,): those of the slowest client that counted.

    Args:
        metrics: of the run, with ``ids`` and ``active``, ``n_missing`` if not all places were sampled, and
            ``candidates`` if clients were asked.
        seconds: (clients,) of each client's round.
        deadline: a round with an unfinished client lasts until then; None: no deadline.
        asking: (clients,) until a client that is asked for its loss has answered; None: asking takes no time.
    """
    timing = Timing(seconds_of_clients(seconds), deadline, asking=() if asking is None else seconds_of_clients(asking))
    return timing.of_rounds(0, metrics)
