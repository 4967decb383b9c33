"""A clock: how fast clients are, rounds that wait for them or do not, and simulated seconds.

``devices.seconds(data, work, n_floats)`` are the seconds of each client's round. `until`, `first_of` and `tiers` are
samplings of rounds that wait, `answering` one of clients that may not be there; `asynchronous` and `buffered` are
rounds that do not wait.
"""

from fljax.rounds.clock.buffered import BufferHyper, Schedule, asynchronous, buffered
from fljax.rounds.clock.devices import Devices, devices, devices_of_file, drawn_devices
from fljax.rounds.clock.waiting import answering, first_of, for_all, round_seconds, tiers, until

__all__ = [
    "BufferHyper",
    "Devices",
    "Schedule",
    "answering",
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
