"""The host loop of a sweep: batches of runs with files and resume, and halving. The only impure part."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import check_run, fields_of
from fljax.checks.network import check_outputs, check_subjects
from fljax.devices.mesh import Device, chosen, n_sweep_devices, over_devices, replicated, shapes
from fljax.devices.programs import Compile
from fljax.drift.stages import at
from fljax.files import as_path
from fljax.folder.surroundings import surroundings
from fljax.folder.writer import only_run
from fljax.metrics.agreement import truth_of
from fljax.numbers import as_dict
from fljax.ranges import said
from fljax.rounds.memory import remembering
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Draw, Sampling
from fljax.run.chunk import most_rounds
from fljax.run.identity import run_identity
from fljax.run.one_round import as_traced, due_rounds
from fljax.run.sweep import parts
from fljax.run.sweep.batch import OnRounds
from fljax.run.sweep.cells import Cell, Setting, all_cells
from fljax.run.sweep.halving import rungs
from fljax.run.sweep.host_metrics import OF_ROUNDS, host_metrics
from fljax.run.sweep.needs import level_of, plan, shapes_of_metrics
from fljax.run.sweep.points import count_points, epsilons_of_points, point, vectors, with_targets
from fljax.run.sweep.stages import RUNS_PER_CALL, Stage, run_stages
from fljax.run.sweep.stages import Found as Found
from fljax.run.sweep.table import check_agreement, metric_of
from fljax.run.sweep.widened import HYPER, NUMBERS
from fljax.run.termination import put_off
from fljax.types import Algorithm, Federation, Key


def search(
    algorithm: Algorithm,
    hypers: Any,
    federation: Federation,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    *,
    halving: int | None = None,
    metric: str | None = None,
    folder: str | Path | None = None,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
    at_once: int | None = None,
    memory: int | None = None,
    devices: Sequence[Device] | None = None,
    on_rounds: OnRounds | None = None,
    seconds_per_checkpoint: float = 60.0,
    compile: Compile = "auto",
    force_resume: bool = False,
) -> Found:
    """`fljax.sweep` in batches of runs, with files, resume and successive halving; runs are spread over the devices.

    The same call again resumes an interrupted search: finished batches (of ``at_once`` runs per device; for None on a
    CPU of 4) are read, and the last one goes on from its last checkpoint, unless ``at_once`` is now smaller. On SIGTERM
    or Ctrl-C the checkpoint is written first, as by `fljax.train`. Without halving, a search can be resumed with more
    seeds and points, in any order; those of the folder must be among them. Points that halving keeps have the results
    of the full sweep.

    Args:
        algorithm: from `fljax.algorithms`.
        hypers: the points, as for `fljax.sweep`.
        federation: the clients and their data; see `on_validation` for choosing on the validation split.
        key: seed s runs with ``jax.random.fold_in(key, s)``.
        n_seeds: seeds per point.
        n_rounds: rounds of each run that is not stopped early.
        halving: keep one point in so many at each stage, by the mean over seeds of ``metric``; None: the full sweep.
        metric: metric of the tests, see `fljax.run.sweep.table.HEADLINES`, or ``"ari"``, the agreement of clusters with
            the true groups; lower is better for losses and errors. None: accuracy_macro, for regression r2_micro.
        folder: for the batches' files; None writes nothing.
        participation: as in `fljax.simulate`.
        sampling: as in `fljax.simulate`.
        evaluate_every: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.
        at_once: runs side by side on a device; None: the best number.
        memory: bytes that the search may use on a device; None: the device's memory.
        devices: devices over which the runs are spread; None: all.
        on_rounds: ``on_rounds(done, n)`` is called about every second: of the ``n`` rounds of all runs of a stage,
            ``done`` are done.
        seconds_per_checkpoint: least time between checkpoints of a batch.
        compile: see `fljax.run.train.train`.
        force_resume: resume though versions, devices or cores have changed; the folder records both.

    Raises:
        ValueError: as `fljax.sweep`, the metric is unknown, or the folder holds another search or damaged files, was
            made with other versions or devices, is being written by another process or is not writable.
        OSError: writing failed, for instance on a full disk; the search can be resumed.
        MemoryError: it needs more memory than there is.
    """
    check_run(n_rounds, evaluate_every, dropout)
    metric = metric_of(metric, algorithm)
    check_subjects(algorithm, federation, key)
    if on_rounds is not None and not callable(on_rounds):
        raise ValueError(f"{said('on_rounds', on_rounds)} is not a function; give on_rounds(done, n), or None")
    hypers, n_rounds, evaluate_every = vectors(hypers), int(n_rounds), int(evaluate_every)
    host_federation, draw = federation, sampling_of(sampling, participation).of(federation.train.n_clients)
    hypers = with_targets(hypers, draw.sampling, algorithm.about.work, n_rounds)
    epsilon = epsilons_of_points(hypers, draw.sampling, algorithm.about.work, n_rounds)
    stages = rungs(count_points(hypers), n_rounds, halving, evaluate_every)
    cells = all_cells(hypers, key, n_seeds)
    n_devices = len(chosen(devices))
    folder = None if folder is None else as_path("folder", folder)
    with (
        put_off(folder is not None) as termination,
        only_run(folder) as writable,
        over_devices(devices, n_devices) as mesh,
        fields_of(hypers, algorithm),
    ):
        check_outputs(algorithm, point(hypers, 0), federation, key)
        federation, dropout_rate = replicated((federation, as_traced(dropout)), mesh)
        setting = Setting(remembering(algorithm, draw.sampling.memory), draw, n_rounds, 1)
        check_agreement(metric, shapes_of_metrics(setting, cells, federation, dropout_rate))
        setting = setting._replace(at_once=plan(setting, cells, federation, dropout_rate, at_once, memory).at_once)
        stored_level = parts.level_of(folder) if compile == "auto" and folder is not None else None  # the choice there
        level = stored_level or level_of(setting, cells, federation, dropout_rate, compile)
        in_turn = RUNS_PER_CALL if at_once is None and setting.at_once == 1 else 1
        batch = setting.at_once * n_sweep_devices() * in_turn
        room = min(n_rounds, most_rounds(batch * federation.train.n_clients))
        setting = setting._replace(level=level, n_rounds=room)
        due = due_rounds(evaluate_every, n_rounds)
        on_rounds, implementation = on_rounds or (lambda done, n: None), jax.random.key_impl(key)
        store = parts.Store(folder, surroundings(n_devices), force_resume, int(n_seeds))
        rest = on_rounds, implementation, batch, seconds_per_checkpoint, termination
        stage = Stage(setting, federation, dropout_rate, due, store, *rest)
        if folder is not None:
            run = (algorithm, stage.shapes(cells), point(hypers, 0), host_federation, key, draw, evaluate_every)
            of_search = {
                "n_seeds": int(n_seeds),
                "n_rounds": n_rounds,
                "halving": halving and int(halving),
                "metric": None if halving is None else metric,
                "compile": setting.level,
            }
            identity = run_identity(*run, dropout) | _identity_of_points(hypers) | of_search
            stage = stage._replace(store=store.open(identity, writable))
        result = run_stages(stage, stages, _on_host(cells), metric, truth_of(host_federation))
        round_metrics = {name: result.metrics[name] for name in OF_ROUNDS if name in result.metrics}
        added = host_metrics(round_metrics, result.rounds, epsilon, draw.sampling, host_federation)
        return result._replace(metrics=result.metrics | added)


def _identity_of_points(hypers: Any) -> dict[str, Any]:
    fields = {f"{HYPER}{name}": parts.plain(value) for name, value in as_dict(hypers).items()}
    return fields | {NUMBERS: list(range(count_points(hypers)))}


def check_ahead(
    algorithm: Algorithm,
    hypers: Any,
    federation: Federation,
    key: Key,
    n_seeds: int,
    n_rounds: int,
    draw: Draw,
    at_once: int | None = None,
    devices: Sequence[Device] | None = None,
    metric: str | None = None,
) -> None:
    """Traces a search ahead of time, so that its errors are raised before anything is done.

    Raises:
        ValueError: a static choice does not fit the federation, the points do not fit into memory, or the runs do not
            have the ``metric``.
        MemoryError: a run needs more memory than there is.
    """
    hypers = with_targets(hypers, draw.sampling, algorithm.about.work, n_rounds)
    n_devices = len(jax.devices() if devices is None else devices)
    with over_devices(devices, n_devices) as mesh, fields_of(hypers, algorithm):
        sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        setting = Setting(remembering(algorithm, draw.sampling.memory), draw, n_rounds, 1)
        cells = all_cells(hypers, key, n_seeds)
        data = shapes(federation, sharding)
        check_agreement(metric, shapes_of_metrics(setting, cells, data, None))
        plan(setting, cells, data, None, at_once, None)


@checked_kinds
def on_validation(federation: Federation) -> Federation:
    """The federation with its validation split as the test split, for choosing points without the test split.

    Clients without test examples, such as attackers, are not tested here either.

    Raises:
        ValueError: it has no validation split.
    """
    if federation.val is None:
        raise ValueError(
            "the federation has no validation split; make it with val_fraction above 0 (--partition.val-fraction 0.1)"
        )
    stages = federation.stages
    if stages is not None:
        assert stages.val is not None
        tested = stages.there & (stages.test.size > 0)  # clients that are not there are not tested
        size = jnp.where(tested, stages.val.size, 0)
        stages = stages._replace(test=stages.val._replace(size=size))
        return at(federation._replace(test=federation.val, stages=stages), 0)._replace(stages=stages)
    size = jnp.where(federation.test.size > 0, federation.val.size, 0)
    return federation._replace(test=federation.val._replace(size=size))


def over_settings(run: Callable[..., Any], say: Callable[[str], None] = print, **choices: Sequence[Any]) -> list:
    """``[(setting, run(**setting)), ...]`` for every combination of static ``choices``: the outer loop of a sweep.

    Each combination is a separate program, compiled once; ``say`` is called with a line about it. Example::

        over_settings(lambda epochs: search(fedavg(model, Work(epochs, 32)), hypers, ...), epochs=(1, 5))

    Raises:
        ValueError: a choice has no values.
    """
    settings: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        if not len(values):
            raise ValueError(f"{name}: an empty grid; give at least one value")
        settings = [setting | {name: value} for setting in settings for value in values]
    results = []
    for i, setting in enumerate(settings):
        text = ", ".join(f"{name}={value}" for name, value in setting.items())
        say(f"static setting {i + 1} of {len(settings)}: {text} (compiled once)")
        results.append((setting, run(**setting)))
    return results


def _on_host(cells: Cell) -> Cell:
    """The cells as NumPy arrays, their keys as plain numbers."""
    return jax.device_get(cells._replace(key=jax.random.key_data(cells.key)))
