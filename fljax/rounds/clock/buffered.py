"""Asynchronous rounds in fixed shapes: a buffer of the clients that finish first, each with its own initial model.

- FedBuff: Nguyen et al., AISTATS 2022, https://arxiv.org/abs/2106.06639
- FedAsync: Xie, Koyejo, Gupta, 2019, https://arxiv.org/abs/1903.03934

The order in which clients finish depends only on the devices, so it is computed before the run. A run keeps as many
past models as the stalest update needs.
"""

import heapq
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fljax import tree
from fljax.choices import Positive, Seed, check_choices
from fljax.numbers import Scalar, hyper, number
from fljax.ranges import real
from fljax.rounds.averaging import ReceivedModels
from fljax.rounds.clock.devices import seconds_of_clients
from fljax.rounds.named_samplings import table
from fljax.rounds.sampling import Sampling
from fljax.rounds.timing import Timing
from fljax.rounds.uplink.chain import with_uplink
from fljax.rounds.wrapping import inside, within_server
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Params, Stacked, State, Upload


class Schedule(NamedTuple):
    """Which clients' updates make each version of the model; static."""

    ids: tuple[tuple[int, ...], ...]  # (rounds, buffer)
    staleness: tuple[tuple[int, ...], ...]  # (rounds, buffer) versions since the client started
    ends: tuple[float, ...]  # (rounds,) simulated seconds at which the buffer was full

    @property
    def sampling(self) -> Sampling:
        """The sampling of its cohorts: a round is a version."""
        # Who finishes when depends on who else is there: without a client, the others would come in other rounds.
        return table(self.ids)._replace(timing=Timing(ends=self.ends), once_in=1, separation=1)

    @property
    def oldest(self) -> int:
        """The largest staleness."""
        return max(map(max, self.staleness))


def asynchronous(
    seconds: ArrayLike, *, concurrency: Positive, buffer: Positive, n_rounds: Positive, seed: Seed = 0
) -> Schedule:
    """The order in which clients finish, if another client starts as soon as one finishes.

    Clients that finish at the same instant are received together before others start. So with equal speeds and a buffer
    of all concurrent clients, no update is stale.

    Args:
        seconds: (clients,) of each client's round, as `Devices.seconds`.
        concurrency: number of clients that train at the same time.
        buffer: number of updates per new version; 1 is FedAsync.
        n_rounds: number of versions.
        seed: of the draw of the next client.

    Raises:
        ValueError: a number is out of its range.
    """
    seconds = seconds_of_clients(seconds)
    n_clients = len(seconds)
    check_choices(asynchronous, {"concurrency": concurrency, "buffer": buffer, "n_rounds": n_rounds, "seed": seed})
    for name, value in (("concurrency", concurrency), ("buffer", buffer)):
        if value > n_clients:
            raise ValueError(f"{name}={value}: there are {n_clients} clients; choose 1 to {n_clients}")
    rng, training, finished, versions = np.random.default_rng(seed), [], [], []
    idle, version, time = set(range(n_clients)), 0, 0.0
    while True:
        waiting = sorted(idle - {i for i, _ in finished})
        for i in rng.permutation(waiting)[: concurrency - len(training)]:
            idle.remove(int(i))
            heapq.heappush(training, (time + seconds[i], int(i), version))
        time = training[0][0]
        while training and training[0][0] == time:
            _, i, start_version = heapq.heappop(training)
            idle.add(i)
            finished.append((i, version - start_version))
            if len(finished) == buffer:
                versions.append((sorted(finished), time))
                finished, version = [], version + 1
            if len(versions) == n_rounds:
                pairs = [row for row, _ in versions]
                return Schedule(
                    tuple(tuple(i for i, _ in row) for row in pairs),
                    tuple(tuple(s for _, s in row) for row in pairs),
                    tuple(end for _, end in versions),
                )


class Versions(NamedTuple):
    """The server's state, and the past versions of the shared part, the newest first."""

    own: Any
    past: Stacked  # (versions, ...)


Mixing = Literal["updates", "models"]
"""What the server adds for a client: a share of its update (FedBuff), or of the way to its model (FedAsync)."""


@hyper
class BufferHyper:
    """The weight of stale updates as hyperparameters; join them to a method's if `buffered` gets None for them."""

    share: Scalar = number(1.0, "weight of an update that is not stale; FedAsync's alpha", above=0, most=1)
    damping: Scalar = number(0.5, "an update of staleness s has weight (1 + s) to the power of -damping", least=0)


@cache
def buffered(
    algorithm: Algorithm,
    schedule: Schedule,
    *,
    mixing: Mixing = "updates",
    share: float | None = 1.0,
    damping: float | None = 0.5,
) -> Algorithm:
    """``algorithm`` whose participants train from the versions that they started with; run it with `Schedule.sampling`.

    A participant of staleness s has weight ``share / (1 + s)^damping``. Uplink bricks and attacks apply to its own
    update; the server then discounts the received update. If the server must not see single updates (client_dp,
    secure_sum), the participants discount their updates before they send them.

    Args:
        algorithm: a method of the averaging skeleton.
        schedule: result of `asynchronous`.
        mixing: "updates" or "models".
        share: weight of an update that is not stale, in (0, 1]; FedAsync's alpha. None: the hyperparameter
            ``hyper.share``.
        damping: 0 gives stale updates full weight; FedBuff has 0.5. None: the hyperparameter ``hyper.damping``, for a
            sweep, from ``fljax.numbers.joined(fljax.fedavg.Hyper, fljax.rounds.clock.BufferHyper)``.

    Raises:
        ValueError: a number is out of its range, or the method's clients start from more than one model.
    """
    exchange = algorithm.round_exchange
    if exchange is None or not exchange.starts_anywhere:
        reason = "it has more than one model, or a round of its own"
        raise ValueError(f"{algorithm.about.name}: its clients cannot start from a past model; {reason}")
    if (share is not None and not 0 < real("share", share) <= 1) or (
        damping is not None and not real("damping", damping) >= 0
    ):
        raise ValueError(f"share={share}, damping={damping}: choose 0 < share <= 1 and damping >= 0")
    choices = (("mixing", mixing), ("share", share), ("damping", damping), ("staleness", schedule.staleness))
    about = algorithm.about._replace(choices=(*algorithm.about.choices, *choices))
    if about.numbers:
        numbers = [name for name, value in (("share", share), ("damping", damping)) if value is None]
        about = about._replace(numbers=(*about.numbers, *numbers))
    if exchange.chain is not None and not exchange.chain[1].needs:
        inner, transform = exchange.chain
        discounted = buffered(inner, schedule, mixing=mixing, share=share, damping=damping)
        return with_uplink(discounted, transform)._replace(about=about)
    part, weight_of = exchange.part, partial(staleness_weights, share=share, damping=damping)

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        state = algorithm.init(key, hyper, data)
        return State(Versions(state.server, tree.broadcast(part(state.server), schedule.oldest + 1)), state.clients)

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        start = tree.take(state.server.past, staleness(schedule, cohort.round, cohort.ids))
        return exchange.send(key, hyper, State(ReceivedModels(start, state.server.own), state.clients), cohort)

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        stale, shared = staleness(schedule, cohort.round, cohort.ids), part(state.server.own)
        models = mixed_models(upload, shared, stale, weight_of(hyper, stale), mixing)
        upload = upload._replace(start=tree.everyone(shared, cohort.n_clients), params=models)
        new_state, metrics = exchange.receive(key, hyper, within_server(state), cohort, upload)
        newest = tree.broadcast(part(new_state.server), 1)
        past = jax.tree.map(lambda first, rest: jnp.concatenate([first, rest[:-1]]), newest, state.server.past)
        return State(Versions(new_state.server, past), new_state.clients), metrics | {"staleness": stale}

    halves = {"send": send, "receive": receive, "sees": "each", "starts_anywhere": False}
    return inside(algorithm, init, within_server, **halves)._replace(about=about)


def staleness_weights(hyper: Any, stale: Array, share: float | None, damping: float | None) -> Array:
    """(cohort,) weights of updates of staleness ``stale`` (cohort,)."""
    full_weight: Any = hyper.share if share is None else share
    exponent: Any = hyper.damping if damping is None else damping
    return full_weight / (1 + stale.astype(jnp.float32)) ** exponent


def mixed_models(upload: Upload, shared: Params, stale: Array, weight: Array, mixing: Mixing) -> Stacked:
    """Models whose mean is the next version; an update that is not stale and has weight 1 stays, bit for bit.

    Running statistics are mixed as models: a variance plus a difference of two others could be negative.
    """

    shared_rows = tree.broadcast(shared, weight.shape[0])
    start = tree.stacked(upload.start) if mixing == "updates" else shared_rows
    start = tree.join_statistics(tree.trainable(start), tree.split_statistics(shared_rows)[1])
    mixed = jax.tree.map(lambda w, b, p: p + tree.along(weight, w) * (w - b), upload.params, start, shared_rows)
    return tree.where((stale == 0) & (weight == 1), upload.params, mixed)


def staleness(schedule: Schedule, round: Array, ids: Array) -> Array:
    """(cohort,) int32 staleness of the participants ``ids`` (cohort,) of a round."""
    version = round % len(schedule.ids)
    row, stale = (jnp.asarray(rows, jnp.int32)[version] for rows in (schedule.ids, schedule.staleness))
    return jnp.where(ids[:, None] == row[None, :], stale[None, :], 0).sum(axis=1, dtype=jnp.int32)
