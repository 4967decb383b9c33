"""The traffic between devices, counted from a compiled program."""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_ITEM = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_OPERATION = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\(")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Collective(NamedTuple):
    """One exchange of the program."""

    kind: str
    n_bytes: int  # of its result on one device
    group: int  # number of devices that participate together
    times: int  # how often it is carried out in a call of the program; loops of unknown length count once
    in_loop: bool

    @property
    def sent(self) -> float:
        """Bytes that a device sends in a call, with the ring algorithms that are optimal in volume.

        All-reduce 2 (g-1)/g n, all-gather and all-to-all (g-1)/g n, reduce-scatter (g-1) n, n bytes of result.
        """
        g = self.group
        factor = {"all-reduce": 2 * (g - 1) / g, "reduce-scatter": g - 1, "collective-permute": 1.0}
        return self.times * self.n_bytes * factor.get(self.kind, (g - 1) / g)


def collectives(compiled: Any, n_devices: int) -> list[Collective]:
    """The collectives of a compiled program (``jax.jit(f).lower(...).compile()``) over ``n_devices`` devices.

    All branches of a conditional count, so it is an upper bound.
    """
    bodies, entry = _computations(compiled.as_text())
    return list(_walk(bodies, entry, 1, False, n_devices))


def sent(compiled: Any, n_devices: int) -> float:
    """Bytes that each device sends in a call of the program."""
    return sum(collective.sent for collective in collectives(compiled, n_devices))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """({computation: its lines}, the entry's name)."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if line.endswith("{") and "->" in line and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%").split("(")[0]
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            bodies[name].append(line)
    return bodies, entry


def _walk(bodies: dict[str, list[str]], name: str, times: int, in_loop: bool, n_devices: int) -> Iterator[Collective]:
    for line in bodies.get(name, ()):
        operation = _OPERATION.search(line)
        if operation:
            yield Collective(
                operation[2], _bytes(operation[1], bool(operation[3])), _group(line, n_devices), times, in_loop
            )
            continue  # the function that an all-reduce applies exchanges nothing
        trips = int(match[1]) if (match := _TRIPS.search(line)) else 1
        branches = [branch for match in _BRANCHES.finditer(line) for branch in match[1].split(",")]
        is_in_loop = in_loop or " while(" in line
        for called in (*_CALLED.findall(line), *branches):
            yield from _walk(bodies, called.strip().lstrip("%"), times * trips, is_in_loop, n_devices)


def _bytes(shape: str, started: bool) -> int:
    """Bytes of ``f32[10,2]{1,0}`` or of a tuple; an asynchronous start lists operand and result, and one counts."""
    sizes = [
        _ITEM.get(kind, 4) * math.prod(int(n) for n in dims.split(",") if n)
        for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    ]
    return max(sizes, default=0) if started else sum(sizes)


def _group(line: str, n_devices: int) -> int:
    """Devices in a replica group, written ``{{0,1},{2,3}}`` or ``[2,2]<=[4]``."""
    if match := re.search(r"replica_groups=\[(?:\d+,)*(\d+)\]<=", line):
        return int(match[1])
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return len(match[1].split(","))
    return n_devices
