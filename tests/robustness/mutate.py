"""Ways in which a file becomes another."""

from collections.abc import Callable

import numpy as np

Rng = np.random.Generator


def flipped(rng: Rng, old: bytes) -> bytes:
    """One bit is another."""
    new = bytearray(old)
    new[rng.integers(len(old))] ^= 1 << rng.integers(8)
    return bytes(new)


def truncated(rng: Rng, old: bytes) -> bytes:
    """The end is missing."""
    return old[: rng.integers(len(old))]


def _block(rng: Rng, old: bytes) -> slice:
    start = int(rng.integers(len(old)))
    return slice(start, start + int(rng.integers(1, 1 + min(512, len(old) - start))))


def zeroed(rng: Rng, old: bytes) -> bytes:
    """Some bytes are 0, as after a power failure."""
    where = _block(rng, old)
    return old[: where.start] + bytes(where.stop - where.start) + old[where.stop :]


def scrambled(rng: Rng, old: bytes) -> bytes:
    """Some bytes are random."""
    where = _block(rng, old)
    return old[: where.start] + rng.bytes(where.stop - where.start) + old[where.stop :]


def without(rng: Rng, old: bytes) -> bytes:
    """Some bytes are missing."""
    where = _block(rng, old)
    return old[: where.start] + old[where.stop :]


def twice(rng: Rng, old: bytes) -> bytes:
    """Some bytes come twice."""
    where = _block(rng, old)
    return old[: where.stop] + old[where] + old[where.stop :]


def swapped(rng: Rng, old: bytes) -> bytes:
    """Two blocks have changed places."""
    cut = sorted(rng.integers(len(old) + 1, size=3).tolist())
    return old[: cut[0]] + old[cut[1] : cut[2]] + old[cut[0] : cut[1]] + old[cut[2] :]


def digit(rng: Rng, old: bytes) -> bytes:
    """A digit of a text, or a byte like one, is another."""
    places = [i for i, byte in enumerate(old) if 48 <= byte <= 57]
    if not places:
        return flipped(rng, old)
    new = bytearray(old)
    new[places[rng.integers(len(places))]] = 48 + rng.integers(10)
    return bytes(new)


WAYS: tuple[Callable[[Rng, bytes], bytes], ...] = (
    *(flipped, flipped, truncated, zeroed, scrambled, without, twice, swapped, digit),
)
