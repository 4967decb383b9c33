"""A run with files, a progress bar and resume: what must be ready before its rounds. The only impure function."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fljax.numbers import check_numbers
from fljax.rounds.clustered import check_labels
from fljax.rounds.sampling import Sampling, sampling_of
from fljax.run import checkpoint as files
from fljax.run import hosts
from fljax.run.check import check_patience, check_run, fields_of
from fljax.run.check_network import check_outputs, check_subjects
from fljax.run.chunk import check_traceable, on_devices, prepared, shapes_of_metrics
from fljax.run.chunk import run_chunk as run_chunk
from fljax.run.identity import run_identity
from fljax.run.loop import Loop
from fljax.run.memory import check_compiled
from fljax.run.mesh import Device, over_devices, replicated
from fljax.run.patience import Ender, Patience, Stop, Stopping, measures_by_validation
from fljax.run.privacy import epsilons, mechanism, with_target
from fljax.run.programs import Compile
from fljax.run.progress import Progress, told
from fljax.run.record import Record
from fljax.run.record import Run as Run
from fljax.run.resume import begin
from fljax.run.rounds import read_rounds
from fljax.run.same import check_same_run
from fljax.run.simulate import as_traced, first_state
from fljax.run.spread import spreads
from fljax.run.surroundings import continued, surroundings
from fljax.run.termination import put_off
from fljax.run.writer import only_run
from fljax.types import Algorithm, Federation, Key


def train(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    folder: str | Path | None = None,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    patience: int | None = None,
    stop: Stop | None = None,
    devices: Sequence[Device] | None = None,
    seconds_per_chunk: float = 1.0,
    seconds_per_checkpoint: float = 10.0,
    progress: Progress | None = None,
    force_resume: bool = False,
    compile: Compile = "auto",
    program: str | None = None,
    compiled_ahead: float = 0.0,
) -> Run:
    """`simulate` in chunks, with results on disk and resume: the same run again goes on where it was killed.

    However often a run is killed and started again, its metrics and final state are bit-identical to those of an
    uninterrupted one with the same versions, devices and cores, whatever the chunks' lengths. Where files of the folder
    were damaged since, the newest checkpoint before the damage is gone on from, with a warning. On SIGTERM or Ctrl-C
    the chunk is finished and the checkpoint written first, if this is the main thread and there is a folder; a second
    Ctrl-C ends it at once.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: the algorithm's numbers.
        federation: the clients and their data.
        key: everything random comes from it.
        n_rounds: rounds in all, those done before a resume included.
        folder: for ``metrics.jsonl``, ``rounds/``, ``clients.npz`` and ``checkpoints/``; None writes nothing.
        participation: share of the clients in each round, in (0, 1].
        sampling: who takes part, see `fljax.rounds.sampling`; None: a share ``participation``, uniformly.
        evaluate_every: test after every so many rounds, and always after the last.
        dropout: probability that a participant drops out of a round, see `simulate`; None: nobody does.
        patience: early stopping: the run ends at the first test that comes so many rounds or more after the best one,
            by accuracy_macro (of a regression r2_micro), of the validation split where the model is `fljax.validated`;
            None: it makes all rounds. A folder may be gone on with by another.
        stop: ``stop(round, metrics)`` is asked after every test and ends the run by True: of how many rounds were made,
            and the metrics of the last one, as ``metrics["accuracy_macro"]`` or ``["client_accuracy"]`` (clients,). It
            is asked again of earlier tests when a folder is gone on with, so that what it remembers of them is there.
            None: nothing ends the run. A chunk is no longer than to the next test then: with rounds of milliseconds,
            test less often.
        devices: to spread the clients over; None: all.
        seconds_per_chunk: chunks grow to about this long: how often the bar moves.
        seconds_per_checkpoint: least time between checkpoints.
        progress: told of every chunk; None is silent.
        force_resume: go on though versions, devices or cores are others than before; the checkpoint keeps both.
        compile: how to compile: "fast" is ready soonest, "full" has the quickest rounds, "medium" lies between; "auto"
            weighs them by the rounds to come (`fljax.run.programs`), and goes on as the folder's run began. Levels
            differ in the last bits.
        program: a text that names all that ``algorithm`` and ``sampling`` are made of, so that equal texts promise
            equal programs: they are then kept beside JAX's own cache, and found without tracing. None: not kept.
        compiled_ahead: seconds that compiling took before this call, where `compile_ahead` did it.

    Raises:
        ValueError: a number is out of its range, ``hyper`` is not the method's, or the folder holds another run or a
            damaged one, has more rounds than ``n_rounds``, was made with other versions or devices, is being written by
            another process, or cannot be written.
        OSError: writing failed, for instance on a full disk; the run can be gone on with.
        MemoryError: it needs more memory than there is.
    """
    check_run(n_rounds, evaluate_every, dropout)
    check_numbers(hyper)
    check_subjects(algorithm, federation, key)
    check_patience(patience, federation)
    if stop is not None and not callable(stop):
        raise ValueError(f"stop={stop!r} is no function; give stop(round, metrics), True to end the run")
    n_rounds, evaluate_every = int(n_rounds), int(evaluate_every)
    folder, progress = None if folder is None else Path(folder), told(progress)
    n_clients = federation.train.size.shape[0]
    draw = sampling_of(sampling, participation).of(n_clients)
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    given, spent = (hyper, federation, key), epsilons(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with (
        put_off(folder is not None) as asked,
        only_run(folder) as open_,
        over_devices(devices) as mesh,
        fields_of(hyper, algorithm),
    ):
        check_outputs(algorithm, hyper, federation, key)
        progress.prepare()
        numbers = on_devices(mesh, hyper, federation, key, dropout, evaluate_every, n_rounds)
        check_traceable(algorithm, draw, numbers, program)
        programs = prepared(algorithm, draw, numbers, compile, program, folder)
        hyper, federation, key, *_ = numbers
        check_compiled("to begin with needs", programs.init)
        state = programs.init(key, hyper, federation.train)
        check_labels(state)
        identity = {} if folder is None else run_identity(algorithm, state, *given, draw, evaluate_every, dropout)
        now = surroundings(1 if mesh is None else mesh.size) | {"compile": programs.compiler.level}
        begun = begin(folder, state, identity, n_clients, n_rounds, open_, now, force_resume)
        hosts.all_there("folder read")
        compiling = max(compiled_ahead, programs.seconds)
        record = Record(folder, identity, begun, spent, draw.sampling.timing, compiling)
        enders: list[Ender] = [] if patience is None else [Patience(int(patience), evaluate_every)]
        enders += [] if stop is None else [Stopping(stop, evaluate_every)]
        if folder is not None and begun.round:
            made = read_rounds(folder)
            for ender in enders:
                ender.took(made)
        loop = Loop(record, seconds_per_chunk, seconds_per_checkpoint, progress, asked, enders)
        if begun.round < n_rounds:
            check_compiled("a round needs", programs.chunk)
        done = loop.run(partial(programs.chunk, *numbers), replicated(begun.state, mesh), n_rounds)
        return done._replace(compiler=programs.compiler)


def compile_ahead(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    folder: str | Path | None = None,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
    compile: Compile = "auto",
    program: str | None = None,
) -> None:
    """Compiles what `train` with the same arguments needs, and finds then: for another thread, while something runs."""
    draw = sampling_of(sampling, 1.0).of(federation.train.size.shape[0])
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        numbers = on_devices(mesh, hyper, federation, key, dropout, evaluate_every, n_rounds)
        prepared(algorithm, draw, numbers, compile, program, None if folder is None else Path(folder))


def check_ahead(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
    program: str | None = None,
) -> None:
    """Sees that `train` with the same arguments can run, before anything else does.

    Raises:
        ValueError: as `train`, of everything but the folder.
        MemoryError: it needs more than there is.
    """
    check_subjects(algorithm, federation, key)
    draw = sampling_of(sampling, 1.0).of(federation.train.size.shape[0])
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        numbers = on_devices(mesh, hyper, federation, key, dropout, evaluate_every, n_rounds)
        check_traceable(algorithm, draw, numbers, program)


def numbers_of_rounds(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
    program: str | None = None,
) -> list[str]:
    """What `train` with the same arguments tells by a number a round, from its trace: metrics, spreads over clients."""
    draw = sampling_of(sampling, 1.0).of(federation.train.size.shape[0])
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        numbers = on_devices(mesh, hyper, federation, key, dropout, evaluate_every, n_rounds)
        metrics = shapes_of_metrics(algorithm, draw, numbers)
    names = sorted(name for name, leaf in metrics.items() if leaf.ndim == 1)
    host = {  # what `fljax.run.record.Record` adds
        "churn": "label" in metrics,
        "epsilon": mechanism(hyper, draw.sampling, algorithm.about.work) is not None,
        "simulated_seconds": draw.sampling.timing is not None,
    }
    return [
        *names,
        *(name for name, is_there in host.items() if is_there),
        *spreads(metrics),
        *measures_by_validation(metrics),
    ]


def check_folder(
    folder: Path,
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    devices: Sequence[Device] | None = None,
    program: str | None = None,
    compile: Compile = "auto",
    force_resume: bool = False,
) -> None:
    """Sees that `train` with the same arguments would go on with the run in ``folder``, before anything is written.

    Raises:
        ValueError: the folder's newest whole checkpoint is of another run, or one made with other versions or devices.
    """
    if (stored := files.identity_of(folder)) is None:
        return
    draw = sampling_of(sampling, 1.0).of(federation.train.size.shape[0])
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        begins = key, as_traced(hyper), federation.train
        state: Any = jax.eval_shape(partial(first_state, algorithm.init), *begins)
        given = hyper, federation, key, draw, evaluate_every, dropout
        done, history = files.rounds_done(folder), files.history_of(folder)
        now = surroundings(1 if mesh is None else mesh.size)
        check_same_run(folder, stored, run_identity(algorithm, state, *given), [*history, now])
        if history and done < n_rounds:
            level = history[-1].get("compile", "full") if compile == "auto" else compile
            now |= {"compile": level}
            continued(folder, history, now, {"round": done}, force_resume)
