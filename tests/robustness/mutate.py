"""Ways in which a file becomes another."""

from collections.abc import Callable

import numpy as np

Rng = np.random.Generator


def flipped(rng: Rng, content: bytes) -> bytes:
    """One bit is another."""
    changed = bytearray(content)
    changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
    return bytes(changed)


def truncated(rng: Rng, content: bytes) -> bytes:
    """The end is missing."""
    return content[: rng.integers(len(content))]


def _block(rng: Rng, content: bytes) -> slice:
    start = int(rng.integers(len(content)))
    return slice(start, start + int(rng.integers(1, 1 + min(512, len(content) - start))))


def zeroed(rng: Rng, content: bytes) -> bytes:
    """Some bytes are 0, as after a power failure."""
    block = _block(rng, content)
    return content[: block.start] + bytes(block.stop - block.start) + content[block.stop :]


def scrambled(rng: Rng, content: bytes) -> bytes:
    """Some bytes are random."""
    block = _block(rng, content)
    return content[: block.start] + rng.bytes(block.stop - block.start) + content[block.stop :]


def without(rng: Rng, content: bytes) -> bytes:
    """Some bytes are missing."""
    block = _block(rng, content)
    return content[: block.start] + content[block.stop :]


def twice(rng: Rng, content: bytes) -> bytes:
    """Some bytes come twice."""
    block = _block(rng, content)
    return content[: block.stop] + content[block] + content[block.stop :]


def swapped(rng: Rng, content: bytes) -> bytes:
    """Two blocks have changed places."""
    cuts = sorted(rng.integers(len(content) + 1, size=3).tolist())
    return content[: cuts[0]] + content[cuts[1] : cuts[2]] + content[cuts[0] : cuts[1]] + content[cuts[2] :]


def digit(rng: Rng, content: bytes) -> bytes:
    """A digit of a text, or a byte like one, is another."""
    positions = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not positions:
        return flipped(rng, content)
    changed = bytearray(content)
    changed[positions[rng.integers(len(positions))]] = 48 + rng.integers(10)
    return bytes(changed)


WAYS: tuple[Callable[[Rng, bytes], bytes], ...] = (
    *(flipped, flipped, truncated, zeroed, scrambled, without, twice, swapped, digit),
)
