"""A clock: the speed of clients, synchronous and asynchronous rounds, and simulated seconds.

``devices.seconds(data, work, n_floats)`` returns the seconds of each client's round. Samplings of synchronous rounds:
`wait_for_all`, `with_deadline`, `partial_by_deadline` (late clients send what they have done), `over_selection`,
`tiers`; `with_availability`: each client is available with a probability; `with_asking`: the time in which clients are
asked for their losses. `asynchronous` and `buffered` make asynchronous rounds.
"""

from fljax.rounds.clock.buffered import BufferHyper, Schedule, asynchronous, buffered
from fljax.rounds.clock.devices import Devices, devices, devices_of_file, drawn_devices
from fljax.rounds.clock.waiting import (
    over_selection,
    partial_by_deadline,
    round_seconds,
    tiers,
    wait_for_all,
    with_asking,
    with_availability,
    with_deadline,
)

__all__ = [
    "BufferHyper",
    "Devices",
    "Schedule",
    "asynchronous",
    "buffered",
    "devices",
    "devices_of_file",
    "drawn_devices",
    "over_selection",
    "partial_by_deadline",
    "round_seconds",
    "tiers",
    "wait_for_all",
    "with_asking",
    "with_availability",
    "with_deadline",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
