"""The arguments of a run, put together inside its mesh, and the checks before its first round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
from jax.sharding import Mesh

from fljax.checks.arguments import fields_of
from fljax.checks.network import check_subjects
from fljax.devices.mesh import Device, over_devices
from fljax.devices.programs import Compile
from fljax.folder.checkpoint import Standing, standing_of
from fljax.folder.resume import check_has_checkpoints
from fljax.folder.same_run import check_rounds, check_same_run
from fljax.folder.surroundings import continued, surroundings
from fljax.metrics.best_round import measures_by_validation
from fljax.metrics.spread import spreads
from fljax.numbers import check_numbers
from fljax.rounds.memory import remembering
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Draw, Sampling
from fljax.run.chunk import Numbers, check_traceable, on_devices, shapes_of_metrics
from fljax.run.identity import run_identity
from fljax.run.one_round import as_traced, shapes_of_state
from fljax.run.privacy import epsilons, mechanism, with_target
from fljax.types import Algorithm, Federation, Key


class Arguments(TypedDict):
    """The arguments of `called`, each as in `fljax.run.train.train`."""

    algorithm: Algorithm
    hyper: Any
    federation: Federation
    key: Key
    n_rounds: int
    participation: NotRequired[float]
    sampling: NotRequired[Sampling | None]
    evaluate_every: NotRequired[int]
    dropout: NotRequired[float | None]
    devices: NotRequired[Sequence[Device] | None]


@dataclass(frozen=True)
class Call:
    """A run with all its arguments."""

    algorithm: Algorithm  # whose state holds the sampling's memory, if it has one
    hyper: Any  # with the noise that follows from a target epsilon
    federation: Federation
    key: Key
    n_rounds: int
    draw: Draw
    evaluate_every: int
    dropout: float | None
    mesh: Mesh | None

    @cached_property
    def numbers(self) -> Numbers:
        """The arguments of the run's programs, on the devices."""
        arguments = self.hyper, self.federation, self.key, self.dropout, self.evaluate_every, self.n_rounds
        return on_devices(self.mesh, *arguments)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a folder's run to be resumed."""
        state = shapes_of_state(self.algorithm.init, self.key, as_traced(self.hyper), self.federation.train)
        arguments = self.hyper, self.federation, self.key, self.draw, self.evaluate_every, self.dropout
        return run_identity(self.algorithm, state, *arguments)

    @property
    def n_clients(self) -> int:
        """The number of clients of the federation."""
        return self.federation.train.n_clients

    def epsilons(self) -> np.ndarray | None:
        """The epsilon spent after each round, (rounds,); None if the run is not private."""
        return epsilons(self.hyper, self.draw.sampling, self.algorithm.about.work, self.n_rounds)

    def surroundings(self) -> dict[str, Any]:
        """The versions and devices of the run; all hosts must call this."""
        return surroundings(1 if self.mesh is None else self.mesh.size)


@contextmanager
def called(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
) -> Iterator[Call]:
    """Enters the run's mesh and yields its `Call`; everything else about the run must happen inside.

    Raises:
        ValueError: the participation or a target epsilon is not possible, or ``hyper`` is not the method's.
    """
    draw = sampling_of(sampling, participation).of(federation.train.n_clients)
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        algorithm = remembering(algorithm, draw.sampling.memory)
        yield Call(algorithm, hyper, federation, key, n_rounds, draw, evaluate_every, dropout, mesh)


def check_ahead(*, program: str | None = None, **run: Unpack[Arguments]) -> None:
    """Checks that `train` with the same arguments can run, before anything else does.

    Raises:
        ValueError: as `train`, except for errors of the folder.
        MemoryError: it needs more memory than there is.
    """
    check_numbers(run["hyper"])
    check_subjects(run["algorithm"], run["federation"], run["key"])
    with called(**run) as call:
        check_traceable(call.algorithm, call.draw, call.numbers, program)


def numbers_of_rounds(*, program: str | None = None, **run: Unpack[Arguments]) -> list[str]:
    """The names of all metrics (rounds,) of `train` with the same arguments, from its trace, with spreads over
    clients."""
    with called(**run) as call:
        metrics = shapes_of_metrics(call.algorithm, call.draw, call.numbers)
    sampling = call.draw.sampling
    names = sorted(name for name, leaf in metrics.items() if leaf.ndim == 1)
    host_metrics = {  # metrics that `fljax.run.record.Record` adds
        "churn": "label" in metrics,
        "epsilon": mechanism(call.hyper, sampling, call.algorithm.about.work) is not None,
        "simulated_seconds": sampling.timing is not None,
    }
    return [
        *names,
        *(name for name, applies in host_metrics.items() if applies),
        *spreads(metrics),
        *measures_by_validation(metrics),
    ]


def check_folder(
    folder: Path,
    *,
    compile: Compile = "auto",
    force_resume: bool = False,
    program: str | None = None,
    **run: Unpack[Arguments],
) -> None:
    """Checks that `train` with the same arguments would resume the run in ``folder``, before anything is written.

    Raises:
        ValueError: as `check_continues`.
    """
    standing = standing_of(folder)
    if standing.identity is None:
        check_has_checkpoints(folder, run["n_rounds"])
        return
    with called(**run) as call:
        check_continues(call, folder, standing, compile, force_resume)


def check_continues(call: Call, folder: Path, standing: Standing, compile: Compile, force_resume: bool) -> None:
    """Compares a run with the record of the run in ``folder``; all hosts must call this.

    `fljax.folder.resume.begin` checks the rest, when the run's first state is known.

    Raises:
        ValueError: the folder's run is another one, has more rounds, or was made with other versions or devices.
    """
    if standing.identity is None:
        check_has_checkpoints(folder, call.n_rounds)
        return
    current = call.surroundings()
    check_same_run(folder, standing.identity, call.identity, [*standing.history, current])
    check_rounds(folder, standing.round, call.n_rounds)
    if standing.history and standing.round < call.n_rounds:
        current |= {"compile": standing.level if compile == "auto" else compile}
        continued(folder, standing.history, current, {"round": standing.round}, force_resume)
