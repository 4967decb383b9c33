"""The headline of a job in two lines, and remarks on its settings that may be mistakes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import tree
from fljax.catalogue.file_words import parts_of
from fljax.catalogue.words import written
from fljax.data.federation import n_classes
from fljax.devices.mesh import Device
from fljax.jobs.assemble import make_sampling
from fljax.jobs.job import Job
from fljax.jobs.own_data import read_data
from fljax.jobs.parts import data_name
from fljax.jobs.unlike import not_alike
from fljax.numbers import as_dict
from fljax.rounds.uplink.private import PrivacyHyper
from fljax.run.privacy import NOISES
from fljax.types import Federation, Model


def headline(
    job: Job,
    federation: Federation,
    model: Model,
    newcomers: Federation | None = None,
    devices: Sequence[Device] | None = None,
) -> str:
    """The job in two lines, and further lines with settings in which its methods differ or that may be mistakes."""
    run, size = job.run, np.asarray(federation.train.size)
    n_parameters = tree.size(jax.eval_shape(model.init, jax.random.key(0)))
    networks = "" if model.n_networks == 1 else f" in {model.n_networks} networks"
    groups = "" if federation.group is None else f" in {len(np.unique(federation.group))} groups"
    sizes = f"{size.min()}" if size.min() == size.max() else f"{size.min()} to {size.max()}"
    newcomers_text = "" if newcomers is None else f"; {len(newcomers.train.size)} new clients at the end"
    draw = make_sampling(job).of(len(size))
    expected = draw.sampling.expected(len(size))
    participants = f"; {draw.size} per round" if draw.size < len(size) else ""
    participants = participants if expected is None else f"; about {expected:g} per round"
    where = f"{jax.device_count()} {jax.default_backend()} device" + "s" * (jax.device_count() > 1)
    where = where if devices is None or len(devices) == jax.device_count() else f"{len(devices)} of {where}"
    tests = f", tested on the same {len(federation.test.pool.y)}" if run.common_test else ""
    clients = f"{len(size)} clients{groups}, {sizes} training examples each{tests}{participants}{newcomers_text}"
    lines = (
        f"{data_name(run)}, {run.partition}: {clients}",
        f"{run.model} of {n_parameters:,} parameters{networks}, {run.rounds} rounds on {where}",
        *not_alike(job.of_methods),
        *slips(job, size),
        *without_time(job),
        *many_classes(job, federation),
    )
    return "\n".join(lines)


def noises(job: Job, runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each method with a target epsilon, with the noise that follows from it."""
    lines = []
    for name, run in runs.items():
        target, numbers = job.settings[name].get("target_epsilon"), as_dict(run["hyper"])
        if target is not None and isinstance(run["hyper"], PrivacyHyper):
            for noise in (noise for noise in NOISES if noise in numbers):
                value = float(numbers[noise])
                lines.append(f"{name}: --{written(noise)} {value:.6g} follows from --target-epsilon {target:g}")
    return lines


def slips(job: Job, size: np.ndarray) -> list[str]:
    """Lines on settings that are allowed but probably mistakes: batches larger than any client, more clusters than
    clients, more attackers than an aggregation tolerates."""
    large_batches = [
        method for method, settings in job.of_methods.items() if (settings.get("batch_size") or 0) > size.max()
    ]
    many_clusters = [
        method for method, settings in job.of_methods.items() if (settings.get("n_clusters") or 0) > len(size)
    ]
    one_step = "each epoch is one step, as with --batch-size None"
    lines = []
    if large_batches:
        lines.append(f"batches of {', '.join(large_batches)} are larger than any client's data: {one_step}")
    if many_clusters:
        lines.append(f"{', '.join(many_clusters)}: more clusters than the {len(size)} clients")
    n_models = make_sampling(job).of(len(size)).size
    whole_bodies = [
        method
        for method, settings in job.of_methods.items()
        if "body_epochs" in settings and settings["body_epochs"] == settings["epochs"]
    ]
    if whole_bodies:
        text = "with --body-epochs equal to --epochs, heads are trained only before tests"
        lines.append(f"{', '.join(whole_bodies)}: {text}")
    for method, settings in job.of_methods.items():
        per_attacker = next((BEARS[brick] for brick in parts_of(job.methods[method]) if brick in BEARS), None)
        if per_attacker is not None and settings["n_attackers"] > (most := max((n_models - 3) // per_attacker, 0)):
            limit = f"with {n_models} models it tolerates at most {most} attacker{'s' * (most != 1)}"
            lines.append(f"{method}: {limit}, not --n-attackers {settings['n_attackers']:g}")
    return lines


BEARS = {"krum": 2, "multi_krum": 2, "bulyan": 4}
"""Brick -> number of models needed per attacker: m models tolerate (m - 3) / this number of attackers."""


def without_time(job: Job) -> list[str]:
    """A line if some methods have edge servers under a clock, which does not know their links to the cloud."""
    with_cloud = [method for method, settings in job.of_methods.items() if "cloud_every" in settings]
    if job.run.clock == "none" or not with_cloud:
        return []
    return [f"{', '.join(with_cloud)}: --clock {job.run.clock} counts no time between edge servers and the cloud"]


def many_classes(job: Job, federation: Federation) -> list[str]:
    """A line if whole numbers of a table, such as ages, have become unusually many classes."""
    if job.run.data is None or job.run.task != "auto" or len(job.run.label_column) != 1:
        return []
    y, names = federation.train.pool.y, read_data(job).classes
    if not jnp.issubdtype(y.dtype, jnp.integer) or (n := n_classes(federation)) <= MANY_CLASSES:
        return []
    if not all(name.lstrip("-").isdigit() for name in names):
        return []
    return [f"{job.run.label_column[0]} has {n} classes; if it is an amount, use --task regression"]


MANY_CLASSES = 30
"""Above so many classes that are whole numbers they may be amounts."""
