"""A clock: how fast clients are, rounds that wait for them or do not, and simulated seconds.

``devices.seconds(data, work, n_floats)`` are the seconds of each client's round. `until`, `first_of` and `tiers` are
samplings of rounds that wait, `as_far_as` one of clients that come back in time with a part of their work, `answering`
one of clients that may not be there; `asynchronous` and `buffered` are
rounds that do not wait.
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
