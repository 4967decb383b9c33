"""What runs under one static setting of a sweep's outer loop: its federation, network, method and devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.catalogue.own import find
from fljax.devices.mesh import Device
from fljax.jobs.assemble import Made, as_clients_are, devices_of, make_algorithm
from fljax.jobs.job import Job
from fljax.jobs.parts import make_model, make_parts
from fljax.jobs.sweep import SweepJob
from fljax.numbers import replace
from fljax.run.clocked import check_alike
from fljax.run.privacy import with_target
from fljax.run.sweep.halving import rungs
from fljax.run.sweep.parts import n_devices_of
from fljax.run.sweep.points import count_points, point
from fljax.run.sweep.search import check_ahead, on_validation
from fljax.run.sweep.table import metric_of
from fljax.sealed import naming
from fljax.types import Federation, Model


class Ready(NamedTuple):
    """What runs under one static setting."""

    job: Job
    federation: Federation
    model: Model
    made: Made


def ready_for(sweep: SweepJob, setting: dict[str, Any]) -> Ready:
    """What runs under a static ``setting``, by label.

    Raises:
        ValueError: the federation, the network or the method rejects the setting.
    """
    job = sweep.job_with(setting)
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    if sweep.own.judge == "val":
        with naming("--judge val"):
            federation = on_validation(federation)
    method = make_algorithm(sweep.name, sweep.at_first_point(job), model, len(federation.train.size))
    _check_clock(sweep, job, method, federation)
    methods, federation = as_clients_are(job, {sweep.name: method}, federation)
    return Ready(job, federation, model, methods[sweep.name])


def checked(sweep: SweepJob, setting: dict[str, Any]) -> Ready:
    """`ready_for`, after checking that the search can be carried out.

    Raises:
        ValueError: it cannot.
        MemoryError: it needs more memory than there is.
    """
    ready = ready_for(sweep, setting)
    (algorithm, _, sampling), run, settings = ready.made, ready.job.run, sweep.own
    hypers, draw = sweep.hypers(ready.job), sampling.of(len(ready.federation.train.size))
    metric = metric_of(sweep.metric, algorithm)
    rungs(count_points(hypers), run.rounds, settings.halving, run.evaluate_every)
    key, devices = jax.random.key(run.seed), devices_for(sweep, ready, None)
    search_arguments = settings.seeds, run.rounds, draw, settings.runs_at_once, devices, metric
    check_ahead(algorithm, hypers, ready.federation, key, *search_arguments)
    return ready


def devices_for(sweep: SweepJob, ready: Ready, folder: Path | None) -> Sequence[Device] | None:
    """The devices of the search under one static setting, which may have begun in ``folder``; None: all."""
    begun = [] if folder is None else [n_devices_of(folder)]
    n_runs = count_points(sweep.hypers(ready.job)) * sweep.own.seeds
    return devices_of(ready.job, ready.model, ready.federation, begun, n_runs)


def _check_clock(sweep: SweepJob, job: Job, method: Made, federation: Federation) -> None:
    """Raises ValueError if rounds under a clock do not take the same time at all points of the search."""
    if job.run.clock == "none":
        return
    (algorithm, _, sampling), hypers = method, sweep.hypers(job)
    first = point(hypers, 0)

    def with_ends(name: str) -> list[Any]:
        """The Hyper with the least and the greatest value of a hyperparameter."""
        values = np.asarray(getattr(hypers, name))
        ends = [replace(first, **{name: float(end)}) for end in (values.min(), values.max())]
        known = sampling.of(len(federation.train.size)).sampling
        return [with_target(end_hyper, known, algorithm.about.work, job.run.rounds) for end_hyper in ends]

    clock = find("clock", job.run.clock)(**job.settings["clock"])
    check_alike(algorithm, {name: with_ends(name) for name in sweep.axes}, sampling, clock, federation)
