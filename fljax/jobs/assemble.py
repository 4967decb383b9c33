"""Makes what runs from settings: each method with its hyperparameters, the sampling of clients, the devices."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.attacks.attack import attacked
from fljax.catalogue.entries import is_of_fljax, names
from fljax.catalogue.own import find
from fljax.catalogue.parameters import parameters
from fljax.client.optimizer import OPTIMIZERS, local_optimizer
from fljax.data.federation import n_classes
from fljax.devices.device_count import enough_devices
from fljax.devices.mesh import Device
from fljax.drift.drifting import drifting
from fljax.jobs.job import Job
from fljax.jobs.optimizers import optimizer_of
from fljax.jobs.parts import made_as
from fljax.numbers import numbers_of
from fljax.rounds.effort import stragglers
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Sampling
from fljax.run.clocked import clocked
from fljax.run.privacy import with_target
from fljax.types import Algorithm, Federation, Model, Work


class Made(NamedTuple):
    """A method of a job as it runs."""

    algorithm: Algorithm
    hyper: Any  # its hyperparameters
    sampling: Sampling


Methods = dict[str, Made]
"""Section of each method -> the method."""


def make_sampling(job: Job) -> Sampling:
    """The sampling of clients, with the run's participation if the sampling has one.

    Raises:
        ValueError: the sampling rejects its settings, or it has no participation and the run sets one.
    """
    make, settings = find("sampling", job.run.sampling), dict(job.settings["sampling"])
    if isinstance(make, Sampling):
        return sampling_of(make, job.run.participation)
    if "participation" in parameters(make):
        settings["participation"] = job.run.participation
    elif job.run.participation != 1:
        raise ValueError(
            f"--participation {job.run.participation}: --sampling {job.run.sampling} decides who participates; leave "
            "one out"
        )
    return made_as("sampling", job, make(**settings), Sampling)


def with_stragglers(job: Job, sampling: Sampling, work: Work) -> Sampling:
    """The job's sampling with its stragglers, for a method with this local work: a straggler does a part of a single
    epoch, or a whole number of several epochs.

    Raises:
        ValueError: a least effort is given without stragglers.
    """
    rate, least = job.run.stragglers, job.run.least_effort
    if rate is not None:
        return stragglers(sampling, rate, least=least, epochs=work.epochs if work.epochs != 1 else None)
    if least:
        raise ValueError(f"--least-effort {least}: there are no stragglers; give --stragglers, such as 0.5, too")
    return sampling


def make_algorithm(name: str, job: Job, model: Model, n_clients: int) -> Made:
    """A method, by its section's name, its Hyper, and the job's sampling of ``n_clients`` clients.

    Raises:
        ValueError: the method rejects its settings, or its optimiser does not use one of its hyperparameters.
    """
    work, hyper, static = split_section(name, job)
    algorithm = find("algorithm", job.methods[name])(model, work, **static)
    sampling = with_stragglers(job, make_sampling(job), work)
    hyper = with_target(hyper, sampling.of(n_clients).sampling, work, job.run.rounds)
    if hasattr(hyper, "lr_of") and work.optimizer != "sgd":
        jax.eval_shape(lambda: (local_optimizer(hyper, work, jnp.int32(0)), jnp.int32(0))[1])
    return Made(algorithm, hyper, sampling)


def program_text(name: str, job: Job, federation: Federation) -> str | None:
    """A text of everything that a method's programs depend on besides fljax itself, by its section's name.

    None if something is a user's own code: its effect is known only when it is traced.
    """
    word, run = job.methods[name], job.run
    is_known = (
        is_of_fljax(word)
        and run.model in names("model")
        and run.sampling in names("sampling")
        and all(score in names("score") for score in run.score)
        and job.settings[name]["optimizer"] in OPTIMIZERS
        and run.attack == run.clock == "none"  # attackers and fast clients depend on the federation
    )
    if not is_known:
        return None
    work, _, static = split_section(name, job)
    parts = (job.settings["model"], job.settings["sampling"], run.model, run.normalize, run.sampling, run.participation)
    parts = (*parts, run.stragglers, run.least_effort, run.score, run.validate)
    return repr((word, work, sorted(static.items()), n_classes(federation), *parts))


def as_clients_are(job: Job, methods: Methods, federation: Federation) -> tuple[Methods, Federation]:
    """The methods and the federation with the job's clock, its drift, and its attackers among the clients.

    Raises:
        ValueError: a drift does not fit the data or the rounds, an attack begins after the last round, an attacker
            does not exist, no client is honest, a method's updates cannot be attacked, or a clock does not fit the
            method, the clients or the sampling.
    """
    clock = find("clock", job.run.clock)(**job.settings["clock"])
    drift = find("drift", job.run.drift)(**job.settings["drift"])
    attack = find("attack", job.run.attack)(**job.settings["attack"])
    for kind, chosen, begin in (("drift", drift, drift.begins[-1]), ("attack", attack, attack.start)):
        if begin >= job.run.rounds:
            raise ValueError(
                f"--{kind} {chosen.name}: round {begin} is beyond --rounds {job.run.rounds}; choose more rounds, or "
                f"an earlier --{kind}.start"
            )
    clocked_methods = {}
    for name, method in methods.items():
        with method_named(name, methods):
            clocked_methods[name] = clocked(*method, clock, federation, job.run.rounds)
    federation = unattacked = drifting(federation, drift)
    attacked_methods = {}
    for name, (algorithm, sampling) in clocked_methods.items():
        algorithm, federation, _ = attacked(algorithm, unattacked, attack)
        attacked_methods[name] = Made(algorithm, methods[name].hyper, sampling)
    return attacked_methods, federation


def make_methods(job: Job, model: Model, federation: Federation) -> tuple[Methods, Federation]:
    """All methods of a job, and the federation, as `as_clients_are` returns them.

    Raises:
        ValueError: as `make_algorithm` and `as_clients_are`, or there are too few clients for the job's sampling.
    """
    make_sampling(job).of(len(federation.train.size))  # its errors do not concern a method
    methods: Methods = {}
    for name in job.methods:
        with method_named(name, job.methods):
            methods[name] = make_algorithm(name, job, model, len(federation.train.size))
    return as_clients_are(job, methods, federation)


@contextmanager
def method_named(name: str, methods: Collection[str]) -> Iterator[None]:
    """Puts the method's name in front of a ValueError of the block, if there are several methods and the error does
    not name a setting of the run."""
    try:
        yield
    except ValueError as error:
        if len(methods) > 1 and not str(error).startswith("--clock"):
            error.args = (f"--algorithm {name}: {error}",)
        raise  # the same error, which still has its place in a user's file


def devices_of(
    job: Job, model: Model, federation: Federation, begun: Iterable[int | None] = (), n_runs: int = 1
) -> Sequence[Device] | None:
    """The devices on which all methods of a job run, see `fljax.devices.device_count`; None: all devices.

    Args:
        job: the settings.
        model: the clients' model.
        federation: the clients and their data.
        begun: for each part of the job, the number of devices that it began with; None if it has not begun.
        n_runs: number of runs of each method in one program.
    """
    n_clients, run = len(federation.train.size), job.run
    kinds = [getattr(find("algorithm", word), "kind", None) for word in job.methods.values()]
    return enough_devices(
        model,
        federation,
        [split_section(name, job)[0] for name in job.methods],
        run.rounds * n_runs,
        participation=make_sampling(job).of(n_clients).size / n_clients,
        evaluate_every=run.evaluate_every,
        begun=[n_devices for n_devices in begun if n_devices],
        several_models=sum(kind != "one model" for kind in kinds) / len(kinds),
    )


def planned(
    job: Job, method: Made, federation: Federation, name: str, devices: Sequence[Device] | None = None
) -> dict[str, Any]:
    """The arguments of `fljax.train` for one method, except the folder and the compile mode."""
    return {
        "algorithm": method.algorithm,
        "hyper": method.hyper,
        "federation": federation,
        "key": jax.random.key(job.run.seed),
        "n_rounds": job.run.rounds,
        "sampling": method.sampling,
        "evaluate_every": job.run.evaluate_every,
        "dropout": job.run.dropout,
        "devices": devices,
        "program": kept_as(program_text(name, job, federation), method.algorithm),
    }


def kept_as(text: str | None, algorithm: Algorithm) -> str | None:
    """`program_text` with the numbers that the network has from the data."""
    return None if text is None else f"{text} {algorithm.about.model}"


def split_section(name: str, job: Job) -> tuple[Work, Any, dict[str, Any]]:
    """A method's section as its local work, its Hyper and its static choices."""
    Hyper, section = find("algorithm", job.methods[name]).Hyper, dict(job.settings[name])
    work_settings = {field: section.pop(field) for field in Work._fields if field in section}
    work = Work(**work_settings)._replace(optimizer=optimizer_of(work_settings["optimizer"]))
    hyper = Hyper(**{field: section.pop(field) for field in numbers_of(Hyper)})
    return work, hyper, section
