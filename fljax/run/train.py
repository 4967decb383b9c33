"""A run with files, a progress bar and resume: the preparation before its rounds. The only impure function."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fljax.checks.arguments import check_patience, check_run
from fljax.checks.network import check_outputs, check_subjects
from fljax.devices import hosts
from fljax.devices.memory import check_compiled
from fljax.devices.mesh import Device, replicated
from fljax.devices.programs import Compile
from fljax.files import as_path
from fljax.folder.checkpoint import standing_of
from fljax.folder.resume import begin
from fljax.folder.rounds import read_rounds
from fljax.folder.writer import only_run
from fljax.metrics.agreement import truth_of
from fljax.numbers import check_numbers
from fljax.ranges import real
from fljax.rounds.clustered import check_labels
from fljax.rounds.sampling import Sampling
from fljax.run.arguments import called, check_continues
from fljax.run.chunk import begins_with, check_traceable, prepared
from fljax.run.chunk import run_chunk as run_chunk
from fljax.run.loop import Loop
from fljax.run.patience import Ender, Patience, Stop, Stopping
from fljax.run.progress import Progress, checked_progress
from fljax.run.record import Record
from fljax.run.record import Run as Run
from fljax.run.termination import put_off
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
    """`simulate` in chunks, with results on disk and resume: the same call again resumes an interrupted run.

    However often a run is interrupted and resumed, its metrics and final state are bit-identical to those of an
    uninterrupted run with the same versions, devices and cores, whatever the lengths of chunks. If files of the folder
    are damaged, the run resumes from the newest checkpoint before the damage, with a warning. On SIGTERM or Ctrl-C the
    chunk is finished and the checkpoint written first, if this is the main thread and there is a folder; a second
    Ctrl-C ends the run at once.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: the algorithm's hyperparameters.
        federation: the clients and their data.
        key: all randomness comes from it.
        n_rounds: total number of rounds, including those before a resume.
        folder: for ``metrics.jsonl``, ``rounds/``, ``clients.npz`` and ``checkpoints/``; None writes nothing.
        participation: share of the clients in each round, in (0, 1].
        sampling: the sampling of clients, see `fljax.rounds.sampling`; None: a share ``participation``, uniformly.
        evaluate_every: test after every so many rounds, and always after the last.
        dropout: probability that a participant drops out of a round, see `simulate`; None: nobody drops out.
        patience: early stopping: the run ends at the first test that comes this many rounds or more after the best one,
            by accuracy_macro (for regression r2_micro), on the validation split if the model is `fljax.validated`;
            None: all rounds. It may be another when a folder is resumed.
        stop: ``stop(round, metrics)`` is called after every test and ends the run by returning True. Its arguments are
            the number of rounds so far and the metrics of the last one, such as ``metrics["accuracy_macro"]`` or
            ``["client_accuracy"]`` (clients,). When a folder is resumed, it is called again for the earlier tests, so
            that it can restore its memory. None: nothing ends the run. Chunks then end at every test: if rounds take
            milliseconds, test less often.
        devices: devices over which the clients are spread; None: all.
        seconds_per_chunk: approximate length of a chunk, after which the bar moves.
        seconds_per_checkpoint: least time between checkpoints.
        progress: called for every chunk; None is silent.
        force_resume: resume though versions, devices or cores have changed; the checkpoint records both.
        compile: "fast" starts soonest, "full" has the fastest rounds, "medium" is in between; "auto" chooses by the
            number of rounds (`fljax.devices.programs`), and keeps the mode of a resumed run. Modes differ in the last
            bits.
        program: a text that describes ``algorithm`` and ``sampling`` completely, so that equal texts promise equal
            programs: these are then kept beside JAX's own cache, and found without tracing. None: not kept.
        compiled_ahead: seconds that compiling took before this call, if `compile_ahead` did it.

    Raises:
        ValueError: a number is out of its range, ``hyper`` is not the method's, or the folder holds another run or a
            damaged one, has more rounds than ``n_rounds``, was made with other versions or devices, is being written by
            another process, or is not writable.
        OSError: writing failed, for instance on a full disk; the run can be resumed.
        MemoryError: it needs more memory than there is.
    """
    check_run(n_rounds, evaluate_every, dropout)
    check_numbers(hyper)
    check_subjects(algorithm, federation, key)
    real("compiled_ahead", compiled_ahead)
    check_patience(patience, federation)
    if stop is not None and not callable(stop):
        raise ValueError(
            f"stop={stop!r} is not a function; give stop(round, metrics), which returns True to end the run"
        )
    folder, progress = None if folder is None else as_path("folder", folder), checked_progress(progress)
    arguments = algorithm, hyper, federation, key, int(n_rounds), participation, sampling, int(evaluate_every), dropout
    with put_off(folder is not None) as termination, called(*arguments, devices) as run, only_run(folder) as writable:
        check_outputs(algorithm, run.hyper, federation, key)
        progress.prepare()
        check_traceable(run.algorithm, run.draw, run.numbers, program)
        identity = {} if folder is None else run.identity
        if folder is not None:
            check_continues(run, folder, standing_of(folder), compile, force_resume)
        programs = prepared(run.algorithm, run.draw, run.numbers, compile, program, folder)
        check_compiled("the first state needs", programs.init)
        state = programs.init(*begins_with(run.numbers))
        check_labels(state)
        current = run.surroundings() | {"compile": programs.compiler.level}
        begun = begin(folder, state, identity, run.n_clients, run.n_rounds, writable, current, force_resume)
        hosts.all_there("folder read")
        compiling = max(compiled_ahead, programs.seconds)
        record = Record(
            folder, identity, begun, run.epsilons(), run.draw.sampling.timing, compiling, truth_of(federation)
        )
        enders: list[Ender] = [] if patience is None else [Patience(int(patience), run.evaluate_every)]
        enders += [] if stop is None else [Stopping(stop, run.evaluate_every)]
        if folder is not None and begun.round:
            metrics = read_rounds(folder)
            for ender in enders:
                ender.took(metrics)
        loop = Loop(record, seconds_per_chunk, seconds_per_checkpoint, progress, termination, enders)
        if begun.round < run.n_rounds:
            check_compiled("a round needs", programs.chunk)
        finished = loop.run(partial(programs.chunk, *run.numbers), replicated(begun.state, run.mesh), run.n_rounds)
        return finished._replace(compiler=programs.compiler)
