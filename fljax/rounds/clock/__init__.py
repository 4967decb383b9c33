"""A clock: the speed of clients, synchronous and asynchronous rounds, and simulated seconds.

``devices.seconds(data, work, n_floats)`` returns the seconds of each client's round. `until`, `first_of` and `tiers`
make samplings of synchronous rounds; with `as_far_as`, late clients return partial work in time; with `answering`,
clients are available with a probability. `asynchronous` and `buffered` make asynchronous rounds.
"""

from fljax.rounds.clock.buffered import BufferHyper, Schedule, asynchronous, buffered
from fljax.rounds.clock.devices import Devices, devices, devices_of_file, drawn_devices
from fljax.rounds.clock.waiting import answering, as_far_as, first_of, for_all, round_seconds, tiers, until

__all__ = [
    "BufferHyper",
    "Devices",
    "Schedule",
    "answering",
    "as_far_as",
    "asynchronous",
    "buffered",
    "devices",
    "devices_of_file",
    "drawn_devices",
    "first_of",
    "for_all",
    "round_seconds",
    "tiers",
    "until",
]
