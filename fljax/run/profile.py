"""The time of each part of a round, from JAX's profiler, by the names of the parts in the program."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.checks.arguments import check_run
from fljax.checks.network import check_outputs, check_subjects
from fljax.devices.mesh import Device
from fljax.devices.programs import Compile
from fljax.numbers import check_numbers
from fljax.rounds.sampling import Sampling
from fljax.run.arguments import called
from fljax.run.chunk import begins_with, prepared
from fljax.types import Algorithm, Federation, Key

PARTS = ("cohort", "round", "send", "train", "receive", "test")
"""Names of a round's parts; of nested parts, an operation belongs to the innermost."""
REST = "rest"
"""Operations of no part: transfers between the parts, and the run's own loop."""
_HOLDS_OTHERS = ("while", "conditional", "call")
"""Operations whose time consists of others' time."""

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_NAME, _CALLS = re.compile(r'op_name="([^"]*)"'), re.compile(r"calls=%?([\w.\-]+)")


def profile(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    *,
    n_rounds: int = 3,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
    compile: Compile = "full",
) -> dict[str, float]:
    """Device seconds in each part of a round, the mean of ``n_rounds`` rounds after one that warms up.

    They are summed over devices and their cores. The profiler makes operations a little slower, small ones the most, so
    read them as shares. An operation that the compiler has fused from several parts counts for one of them.

    Args:
        algorithm: from `fljax.algorithms`, or your own.
        hyper: the algorithm's hyperparameters.
        federation: the clients and their data.
        key: all randomness comes from it.
        n_rounds: rounds that are measured.
        participation: share of the clients in each round, in (0, 1].
        sampling: the sampling of clients, see `fljax.rounds.sampling`; None: a share ``participation``, uniformly.
        evaluate_every: test after every so many rounds.
        dropout: probability that a participant drops out of a round; None: nobody drops out.
        devices: devices over which the clients are spread; None: all.
        compile: see `fljax.run.train.train`.

    Returns:
        ``cohort``: sampling; ``train``: local training; ``send``: the clients' other work; ``receive``: the server's
        work; ``round``: the rest of a round, which for a method without these parts is all but ``train``; ``test``:
        tests; ``rest``: operations of no part, such as transfers between them.

    Raises:
        ValueError: as `fljax.simulate`.
        RuntimeError: the profiler does not report this device's operations.
    """
    check_run(n_rounds, evaluate_every, dropout)
    check_numbers(hyper)
    check_subjects(algorithm, federation, key)
    args = algorithm, hyper, federation, key, int(n_rounds) + 1, participation, sampling, int(evaluate_every), dropout
    with called(*args, devices) as run:
        check_outputs(algorithm, run.hyper, federation, key)
        programs = prepared(run.algorithm, run.draw, run.numbers, compile, None, None)
        state = programs.init(*begins_with(run.numbers))
        state, _ = programs.chunk(*run.numbers, state, jnp.int32(0), jnp.int32(1))
        jax.block_until_ready(state)
        program: Any = programs.chunk
        operations = operations_of(program.as_text())
        seconds_of_part: dict[str, float] = dict.fromkeys((*PARTS, REST), 0.0)
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready(programs.chunk(*run.numbers, state, jnp.int32(1), jnp.int32(n_rounds)))
            for name, seconds in _events(Path(folder)):
                if name in operations and operations[name].kind not in _HOLDS_OTHERS:
                    seconds_of_part[operations[name].part] += seconds / n_rounds
    if not sum(seconds_of_part.values()):
        raise RuntimeError(f"JAX's profiler does not report operations on {jax.devices()[0].device_kind}")
    return seconds_of_part


class Operation(NamedTuple):
    """An operation of a compiled program."""

    kind: str  # XLA's name: "fusion", "copy"
    part: str  # of a round


def operations_of(text: str) -> dict[str, Operation]:
    """The operations of a compiled program, by name, with the part of a round to which each belongs.

    An operation without a part, such as a copy or a fusion, belongs to the most frequent part among the operations
    inside it, or else among those beside it.
    """
    kinds, own_parts, parts_inside, calls, parts = {}, {}, {}, {}, Counter()
    for line in text.splitlines():
        if computation := _COMPUTATION.match(line):
            parts = parts_inside[computation[1]] = Counter()
        elif operation := _OPERATION.match(line):
            name, kinds[operation[1]] = operation[1], operation[2]
            called, op_name = _CALLS.search(line), _NAME.search(line)
            calls[name] = parts, called and called[1]
            if op_name and (named_parts := [part_name for part_name in op_name[1].split("/") if part_name in PARTS]):
                own_parts[name] = named_parts[-1]
                parts[named_parts[-1]] += 1

    def part(name: str) -> str:
        beside, made_of = calls[name]
        around = parts_inside.get(made_of, Counter()), beside
        return own_parts.get(name) or next((counts.most_common(1)[0][0] for counts in around if counts), REST)

    return {name: Operation(kind, part(name)) for name, kind in kinds.items()}


def _events(folder: Path) -> Iterator[tuple[str, float]]:
    """(operation, seconds) of each execution."""
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    name = next((value for what, value in event.stats if what == "hlo_op"), None)
                    if name is not None:
                        yield str(name), event.duration_ns / 1e9
