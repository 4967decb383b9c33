"""Runs with a clock: what a round takes each client's device, and who takes part then."""

from typing import Any

import jax
import jax.numpy as jnp

from fljax.rounds.clock.named import Asked, Clock
from fljax.rounds.sampling import Sampling
from fljax.run.programs import options_of
from fljax.run.simulate import as_traced, run_round, split_key
from fljax.types import Algorithm, Federation, Key


def clocked(
    algorithm: Algorithm, hyper: Any, sampling: Sampling, clock: Clock, federation: Federation, n_rounds: int
) -> tuple[Algorithm, Sampling]:
    """The method and the sampling of a run under a clock; as they are without one.

    A client's round is the download, the local steps that epochs and batch size say, and the upload: as many bytes as a
    participant of the second round sends on average, for some methods send more in the first. A method that trains two
    models in a round is timed as if it trained one.

    Args:
        algorithm: the method.
        hyper: its numbers.
        sampling: who is asked.
        clock: of `fljax.rounds.clock.named`.
        federation: the clients; where they change over the rounds, as they are at the start.
        n_rounds: of the run.

    Raises:
        ValueError: in one line, for a clock that does not fit the clients, the method or the sampling.
    """
    if clock.profile is None or clock.start is None:
        return algorithm, sampling
    work = algorithm.about.work
    if work is None:
        raise ValueError(f"--clock {clock.name}: the method does not say how many local steps a client makes")
    n_clients, seed = federation.train.size.shape[0], clock.profile.device_seed
    try:
        devices = clock.profile.of(n_clients)
        down, up = _traffic(algorithm, hyper, federation, jax.random.key(0), sampling)
        seconds = devices.seconds(federation.train, work, down, up)
        return clock.start(Asked(algorithm, sampling, devices, tuple(map(float, seconds)), n_rounds, seed))
    except ValueError as error:
        raise ValueError(f"--clock {clock.name}: {error}") from None


def _traffic(
    algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, sampling: Sampling
) -> tuple[float, float]:
    """Floats that a participant of the second round receives and sends, on average."""
    draw = sampling.of(federation.train.size.shape[0])

    def sent(hyper: Any, federation: Federation) -> tuple[jax.Array, jax.Array]:
        state = algorithm.init(split_key(key).init, hyper, federation.train)
        _, metrics = run_round(algorithm, draw, hyper, federation, key, None, state, jnp.int32(1))
        return metrics["downlink"].mean(), metrics["uplink"].mean()

    # Only what the counts depend on is compiled, and for one run of it.
    arguments = as_traced(hyper), federation
    down, up = jax.jit(sent).lower(*arguments).compile(options_of("fast"))(*arguments)
    return float(down), float(up)
