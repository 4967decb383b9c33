"""Runs with a clock: the seconds of a round on each client's device, and the sampling that follows from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.client.steps import n_steps
from fljax.devices.programs import options_of
from fljax.rounds.clock.named import Clock, ClockedRun
from fljax.rounds.clock.waiting import with_asking
from fljax.rounds.memory import remembering
from fljax.rounds.sampling import Sampling
from fljax.run.one_round import as_traced, run_round, split_key
from fljax.sealed import naming
from fljax.types import Algorithm, Federation


def clocked(
    algorithm: Algorithm, hyper: Any, sampling: Sampling, clock: Clock, federation: Federation, n_rounds: int
) -> tuple[Algorithm, Sampling]:
    """The method and the sampling of a run under a clock; unchanged without a clock.

    A client's round is the download, the local steps that follow from epochs and batch size, and the upload. Clients
    that are asked for their loss download the model and send the loss before the round; all participants are among
    them. The traffic is the average of a participant in the second round, because some methods send more in the first.
    A method that trains two models in a round is timed as if it trained one.

    Args:
        algorithm: the method.
        hyper: its hyperparameters.
        sampling: which clients are sampled.
        clock: of `fljax.rounds.clock.named`.
        federation: the clients; if they change over the rounds, as they are at the start.
        n_rounds: number of rounds of the run.

    Raises:
        ValueError: in one line: the clock does not fit the clients, the method or the sampling.
    """
    if clock.profile is None or clock.start is None:
        return algorithm, sampling
    work = algorithm.about.work
    if work is None:
        raise ValueError(
            f"--clock {clock.name}: the method does not state its number of local steps; leave --clock out"
        )
    if sampling.effort is not None:
        raise ValueError(
            f"--clock {clock.name} and --stragglers both set the work of slow clients; choose one of them, such as "
            "--clock deadline --clock.late partial"
        )
    n_clients, seed = federation.train.n_clients, clock.profile.device_seed
    with naming(f"--clock {clock.name}"):
        devices = clock.profile.of(n_clients)
    ((down, up),) = _traffic(algorithm, [hyper], federation, sampling)  # its errors concern the method
    with naming(f"--clock {clock.name}"):
        seconds = devices.seconds(federation.train, work, 0 if sampling.by_loss else down, up)
        steps = tuple(map(int, n_steps(np.asarray(federation.train.size), work)))
        run = ClockedRun(algorithm, sampling, devices, tuple(map(float, seconds)), steps, n_rounds, seed)
        algorithm, timed = clock.start(run)
        if not sampling.by_loss:
            return algorithm, timed
        examples = dict(sampling.about).get("examples")
        return algorithm, with_asking(timed, devices.asking(federation.train, work, down, examples))


def check_alike(
    algorithm: Algorithm, hypers: Mapping[str, Sequence[Any]], sampling: Sampling, clock: Clock, federation: Federation
) -> None:
    """Checks that rounds take the same time at all points of a sweep, because all points use the times of one.

    Args:
        algorithm: the method.
        hypers: the name of a swept hyperparameter -> the Hyper with its least and its greatest value.
        sampling: which clients are sampled.
        clock: of `fljax.rounds.clock.named`.
        federation: the clients.

    Raises:
        ValueError: a hyperparameter changes how much participants send or receive, and so their times.
    """
    if clock.start is None or not hypers:
        return
    all_hypers = [hyper for extremes in hypers.values() for hyper in extremes]
    traffic = iter(_traffic(algorithm, all_hypers, federation, sampling))
    for name, extremes in hypers.items():
        if len({next(traffic) for _ in extremes}) > 1:
            raise ValueError(
                f"--clock {clock.name}: {name} changes how much participants send, and so how long their rounds take; "
                f"run one sweep for each value of {name}"
            )


def _traffic(
    algorithm: Algorithm, hypers: Sequence[Any], federation: Federation, sampling: Sampling
) -> list[tuple[float, float]]:
    """Floats that a participant of the second round receives and sends, on average, with each of the ``hypers``.

    The loss of one that was asked is not among them: it is sent before the round.
    """
    key, draw = jax.random.key(0), sampling.of(federation.train.n_clients)
    algorithm = remembering(algorithm, sampling.memory)

    def sent(hyper: Any, federation: Federation) -> tuple[jax.Array, jax.Array]:
        state = algorithm.init(split_key(key).init, hyper, federation.train)
        _, metrics = run_round(algorithm, draw, hyper, federation, key, None, state, jnp.int32(1))
        losses = jnp.isin(metrics["ids"], metrics["candidates"]).mean() if "candidates" in metrics else 0.0
        return metrics["downlink"].mean(), metrics["uplink"].mean() - losses

    # Only what the counts depend on is compiled, and for one run of it.
    program = jax.jit(sent).lower(as_traced(hypers[0]), federation).compile(options_of("fast"))
    averages = [program(as_traced(hyper), federation) for hyper in hypers]
    return [(float(down), float(up)) for down, up in averages]
