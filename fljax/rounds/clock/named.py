"""The clocks by name: simulated time of a run on clients' devices."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fljax.choices import Positive, Seed
from fljax.ranges import Number
from fljax.rounds.clock import waiting
from fljax.rounds.clock.buffered import asynchronous, buffered
from fljax.rounds.clock.devices import Devices, devices_of_file, drawn_devices
from fljax.rounds.named_samplings import uniform
from fljax.rounds.sampling import Sampling, cohort_size
from fljax.static_values import static_value
from fljax.types import Algorithm

More = Annotated[float, Number(above=0)]
AtLeast0 = Annotated[float, Number(least=0)]
Share = Annotated[float, Number(above=0, most=1)]
PROFILES = ("lognormal", "equal")
"""How devices are drawn; any other value is a file."""


class Profile(NamedTuple):
    """The devices of a federation's clients.

    devices: lognormal: speeds about the medians; equal: the medians; or a CSV file with one row per client and the
        columns speed, up, down, and optionally available.
    speed: median of the local steps per second.
    up: median of the bytes per second to the server.
    down: median of the bytes per second from the server.
    available: probability that a sampled client is available.
    spread: standard deviation of the logarithms of lognormal speeds.
    device_seed: of the draw of the devices, and in asynchronous rounds of the draw of the next client.
    """

    devices: str = "lognormal"
    speed: More = 20.0
    up: More = 1e6
    down: More = 1e7
    available: Share = 1.0
    spread: AtLeast0 = 0.5
    device_seed: Seed = 0

    def of(self, n_clients: int) -> Devices:
        """The devices of ``n_clients`` clients.

        Raises:
            ValueError: there is no such profile or file, or the file has other clients or a speed of 0.
        """
        if self.devices not in PROFILES:
            if not Path(self.devices).is_file():
                raise ValueError(f"devices={self.devices!r}: choose one of {', '.join(PROFILES)}, or an existing file")
            devices = devices_of_file(self.devices)
            if len(devices.speed) != n_clients:
                raise ValueError(
                    f"{self.devices}: {len(devices.speed)} devices for {n_clients} clients; give one per client"
                )
            return devices
        numbers = {name: getattr(self, name) for name in ("speed", "up", "down", "available")}
        spread = self.spread if self.devices == "lognormal" else 0.0
        return drawn_devices(n_clients, **numbers, spread=spread, seed=self.device_seed)


class ClockedRun(NamedTuple):
    """What a clock knows of a run."""

    algorithm: Algorithm
    sampling: Sampling
    devices: Devices
    seconds: tuple[float, ...]  # (clients,) of each client's round
    steps: tuple[int, ...]  # (clients,) local steps of each client's round
    n_rounds: int
    seed: int

    @property
    def n_participants(self) -> int:
        """Number of participants per round.

        Raises:
            ValueError: they are not sampled uniformly, so that the clock cannot sample another number of them.
        """
        about = dict(self.sampling.about)
        if (name := about.get("sampling")) != "uniform":
            other = "a sampling of your own" if name is None else f"--sampling {name}"
            raise ValueError(f"it draws the participants itself, and {other} does too; choose uniform")
        return cohort_size(about["participation"], len(self.seconds))

    def available_only(self, sampling: Sampling) -> Sampling:
        """``sampling`` restricted to clients whose devices are available."""
        chances = self.devices.available
        return sampling if all(chance == 1 for chance in chances) else waiting.with_availability(sampling, chances)


Start = Callable[[ClockedRun], tuple[Algorithm, Sampling]]
"""The method and the sampling of a run under a clock."""


class Clock(NamedTuple):
    """The simulated time of a run; static."""

    name: str
    profile: Profile | None = None  # None: there is no clock
    start: Start | None = None


def _clock(make: Callable[..., Start]) -> Callable[..., Clock]:
    """``make`` as a function that also takes the fields of a `Profile`."""

    def clock(start: Start, fields: dict[str, Any]) -> Clock:
        return Clock(make.__name__, Profile(**{name: fields[name] for name in Profile._fields}), start)

    return static_value(make, clock, beside=Profile)


def none() -> Clock:
    """No simulated time."""
    return Clock("none")


@_clock
def wait():
    """Rounds wait for the slowest participant."""
    return lambda run: (run.algorithm, waiting.wait_for_all(run.available_only(run.sampling), run.seconds))


@_clock
def deadline(*, limit: More | None = None, in_time: Share = 0.6, late: Literal["dropped", "partial"] = "dropped"):
    """Rounds end at a deadline; late clients are dropped, or send their partial work (FedProx, MLSys 2020).

    Args:
        limit: simulated seconds; None: computed from in_time.
        in_time: share of the clients that are fast enough to do all of their work.
        late: dropped: late clients do not count; partial: they send the result of the steps make until then.
    """

    def start(run: ClockedRun) -> tuple[Algorithm, Sampling]:
        end = float(np.quantile(run.seconds, in_time)) if limit is None else limit
        sampling, seconds = run.available_only(run.sampling), run.seconds
        if late == "dropped":
            return run.algorithm, waiting.with_deadline(sampling, seconds, end)
        work = {"steps": run.steps, "speed": run.devices.speed}
        return run.algorithm, waiting.partial_by_deadline(sampling, seconds, end, **work)

    return start


@_clock
def over_select(*, extra: AtLeast0 = 0.5):
    """More clients are sampled than needed, and only the first that finish count (Bonawitz et al., MLSys 2019).

    Args:
        extra: additional clients, as a share of those needed.
    """

    def start(run: ClockedRun) -> tuple[Algorithm, Sampling]:
        n_counted, n = run.n_participants, len(run.seconds)
        larger = uniform(min(1.0, round((1 + extra) * n_counted) / n))
        return run.algorithm, waiting.over_selection(run.available_only(larger), run.seconds, n_counted)

    return start


@_clock
def tiered(*, n_tiers: Positive = 3):
    """Clients of similar speed participate together (TiFL: Chai et al., HPDC 2020).

    Args:
        n_tiers: number of groups of clients of similar speed.
    """

    def start(run: ClockedRun) -> tuple[Algorithm, Sampling]:
        n, n_participants = len(run.seconds), run.n_participants
        if n_tiers <= n and n_participants > n // n_tiers:
            raise ValueError(
                f"{n_participants} of {n} clients participate in a round, but a tier of {n_tiers} has {n // n_tiers}; "
                f"choose participation up to {math.floor(100 * (n // n_tiers) / n) / 100:g}"
            )
        return run.algorithm, run.available_only(waiting.tiers(run.seconds, n_tiers, n_participants))

    return start


@_clock
def fedbuff(*, buffer: Positive = 5, share: Share = 1.0, damping: AtLeast0 = 0.5):
    """Asynchronous: a buffer of updates makes a version, stale ones count less (FedBuff: Nguyen et al., AISTATS 2022).

    Args:
        buffer: number of updates per new version; a round is a version.
        share: weight of an update that is not stale.
        damping: an update of staleness s has weight (1 + s) to the power of -damping.
    """
    return lambda run: _asynchronous(run, buffer, mixing="updates", share=share, damping=damping)


@_clock
def fedasync(*, share: Share = 0.6, damping: AtLeast0 = 0.5):
    """Asynchronous: the server moves part of the way to each received model (FedAsync: Xie et al., 2019).

    Args:
        share: share of the way to a model that is not stale.
        damping: a model of staleness s has weight (1 + s) to the power of -damping.
    """
    return lambda run: _asynchronous(run, 1, mixing="models", share=share, damping=damping)


def _asynchronous(run: ClockedRun, buffer: int, **choices: Any) -> tuple[Algorithm, Sampling]:
    if any(chance < 1 for chance in run.devices.available):
        raise ValueError("asynchronous rounds need devices that are always available; choose available=1")
    times = {"concurrency": run.n_participants, "n_rounds": run.n_rounds, "seed": run.seed}
    schedule = asynchronous(run.seconds, buffer=buffer, **times)
    return buffered(run.algorithm, schedule, **choices), schedule.sampling


CLOCKS: dict[str, Callable[..., Clock]] = {
    make.__name__: make for make in (none, wait, deadline, over_select, tiered, fedbuff, fedasync)
}
"""Name -> function that makes the clock."""
