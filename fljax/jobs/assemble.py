"""From settings to what runs: the federation, the model, the sampling, and each method with its numbers."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.attacks.attack import attacked
from fljax.catalogue.entries import names
from fljax.catalogue.own import find, short_name
from fljax.catalogue.parameters import parameters
from fljax.catalogue.words import MOST, written
from fljax.client.local import n_batches
from fljax.client.optimizer import OPTIMIZERS, local_optimizer
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.data.holdout import hold_out_clients
from fljax.data.scale import ScaleWarning
from fljax.drift.drifting import drifting
from fljax.jobs.job import Job
from fljax.jobs.optimizers import optimizer_of
from fljax.jobs.own_data import halves, of_data, own_federation, scaled, scaling
from fljax.models.own import as_model
from fljax.models.scored import scored, validated
from fljax.numbers import numbers_of
from fljax.rounds.effort import stragglers
from fljax.rounds.sampling import Sampling, sampling_of
from fljax.run.check_network import check_takes
from fljax.run.clocked import clocked
from fljax.run.enough import enough_devices
from fljax.run.memory import check_fits, n_bytes
from fljax.run.mesh import Device
from fljax.run.privacy import with_target
from fljax.types import Algorithm, Federation, Model, Work


class Made(NamedTuple):
    """A method of a job as it runs."""

    algorithm: Algorithm
    hyper: Any  # its numbers
    sampling: Sampling


Methods = dict[str, Made]
"""Section of each method -> the method."""


def make_federation(job: Job) -> Federation:
    """Reads the data set and deals it out.

    Raises:
        ValueError: the partition cannot be made so, or a function of a user's that is named as one makes none.
    """
    if job.own.get("normalize") != "standard":
        return _federation(job)
    with warnings.catch_warnings(action="ignore", category=ScaleWarning):  # whatever it is, the network sees another
        return _federation(job)


def _federation(job: Job) -> Federation:
    if job.own.get("data") is not None:
        if (federation := own_federation(job)) is not None:
            return federation
        train, test = halves(job)
    else:
        train, test = load(job.own["dataset"], job.own["data_folder"])
    deal = find("partition", job.own["partition"])
    return _made("partition", job, deal(train, test, seed=job.own["seed"], **job.settings["partition"]), Federation)


def data_name(own: Mapping[str, Any]) -> str:
    """The data set, or the file of the user's own data."""
    return own["dataset"] if own.get("data") is None else Path(own["data"]).name


def make_parts(job: Job) -> tuple[Federation, Federation | None]:
    """The federation that trains, and the clients that are new at the end where the job holds some out.

    Raises:
        ValueError: a client would make more steps than can be counted, or nobody is left on one side.
    """
    federation, share = make_federation(job), job.run.new_clients
    _check_steps(job, federation)
    return (federation, None) if share is None else hold_out_clients(federation, share, job.run.seed)


def make_model(job: Job, federation: Federation) -> Model:
    """The network, scaled and told its task as the job and the training examples have it.

    Raises:
        ValueError: naming the network, where it cannot be built so.
        MemoryError: it is larger than the machine.
    """
    return scaled(plain_model(job, federation), scaling(federation, job.run.task, job.run.normalize))


def plain_model(job: Job, federation: Federation) -> Model:
    """The network alone, with the shape of the data's examples, a logit for each class, and what tests say of it.

    Raises:
        ValueError, MemoryError: as `make_model`.
    """
    name, shape = job.run.model, federation.train.pool.x.shape[1:]
    make = find("model", name)
    try:
        as_it_is = federation.train.pool.x.dtype == jnp.int32 and job.run.normalize == "unit"
        seen = jnp.int32 if as_it_is else jnp.float32
        made = as_model(make, shape, n_classes(federation), with_words(job), seen)
        check_takes(getattr(made, "about", ()), federation.train.pool.x.dtype)
    except (ValueError, TypeError) as error:
        raise ValueError(f"--model {name}: {error}") from None
    model = _made("model", job, made, Model)
    check_fits(f"two copies of --model {name} need", 2 * n_bytes(jax.eval_shape(model.init, jax.random.key(0))))
    return _scored(job, model)


def with_words(job: Job) -> dict[str, Any]:
    """The network's settings; of texts in words a vocabulary that nobody has set is that of the words.

    Raises:
        ValueError: the network, one of ours, would take the words' tokens for numbers.
    """
    settings, words, name = dict(job.settings["model"]), of_data(job)[-1], job.run.model
    if not words:
        return settings
    usual = parameters(find("model", name)).get("vocabulary")
    if usual is not None and settings["vocabulary"] == usual.default:
        settings["vocabulary"] = len(words)
    elif usual is None and name in names("model"):
        able = [known for known in names("model") if "vocabulary" in parameters(find("model", known))]
        raise ValueError(f"it reads words as numbers; choose a network that embeds them, {', '.join(able)}")
    return settings


def _scored(job: Job, model: Model) -> Model:
    """The model, tested by the job's scores, and on the validation split where the job asks for it.

    Raises:
        ValueError: one is unknown or no score, stands there twice, or has the name of what every test says.
    """
    for word in job.run.score:
        made = find("score", word)
        try:
            model = scored(model, **{short_name(word): made})
        except ValueError as error:
            raise ValueError(f"--score {' '.join(job.run.score)}: {error}") from None
    return validated(model) if job.run.validate else model


def make_sampling(job: Job) -> Sampling:
    """Who takes part; the run's participation goes to the samplings that have one.

    Raises:
        ValueError: it cannot be made so.
    """
    make, given = find("sampling", job.run.sampling), dict(job.settings["sampling"])
    if isinstance(make, Sampling):
        return sampling_of(make, job.run.participation)
    if "participation" in parameters(make):
        given["participation"] = job.run.participation
    elif job.run.participation != 1:
        raise ValueError(f"--participation {job.run.participation}: --sampling {job.run.sampling} says who takes part")
    return _made("sampling", job, make(**given), Sampling)


def with_stragglers(job: Job, sampling: Sampling, work: Work) -> Sampling:
    """The job's sampling of a method with so much work: of one epoch a straggler does a part, else whole epochs.

    Raises:
        ValueError: the least effort of stragglers is given, and there are none.
    """
    rate, least = job.run.stragglers, job.run.least_effort
    if rate is not None:
        return stragglers(sampling, rate, least=least, epochs=work.epochs if work.epochs > 1 else None)
    if least:
        raise ValueError(f"--least-effort {least}: nobody is a straggler; give --stragglers, such as 0.5, too")
    return sampling


def make_algorithm(name: str, job: Job, model: Model) -> Made:
    """A method, by its section's name, its Hyper, and the job's sampling.

    Raises:
        ValueError: the method cannot be made so, or its optimiser has no use for one of its numbers.
    """
    work, hyper, static = split_section(name, job)
    algorithm = find("algorithm", job.methods[name])(model, work, **static)
    sampling = with_stragglers(job, make_sampling(job), work)
    hyper = with_target(hyper, sampling, work, job.run.rounds)
    if hasattr(hyper, "lr_of") and work.optimizer != "sgd":
        jax.eval_shape(lambda: (local_optimizer(hyper, work, jnp.int32(0)), jnp.int32(0))[1])
    return Made(algorithm, hyper, sampling)


def program_text(name: str, job: Job, federation: Federation) -> str | None:
    """All that a method's programs are made of besides fljax itself, by its section's name.

    None where something is a user's own: what that does is known only when it is traced.
    """
    word, run = job.methods[name], job.run
    method, *bricks = word.split("+")
    ours = (
        method in names("algorithm")
        and all(brick in names("brick") for brick in bricks)
        and run.model in names("model")
        and run.sampling in names("sampling")
        and all(score in names("score") for score in run.score)
        and job.settings[name]["optimizer"] in OPTIMIZERS
        and run.attack == run.clock == "none"  # who attacks, and who is quick, follow from the federation
    )
    if not ours:
        return None
    work, _, static = split_section(name, job)
    parts = (job.settings["model"], job.settings["sampling"], run.model, run.normalize, run.sampling, run.participation)
    parts = (*parts, run.stragglers, run.least_effort, run.score, run.validate)
    return repr((word, work, sorted(static.items()), n_classes(federation), *parts))


def as_clients_are(job: Job, methods: Methods, federation: Federation) -> tuple[Methods, Federation]:
    """The methods and the federation with the job's clock, its drift, and its attackers among the clients.

    Raises:
        ValueError: a drift that does not fit the data or the rounds, an attack that begins after the last of them,
            attackers that do not exist, nobody who is honest, a method whose updates cannot be attacked, or a clock
            that does not fit the method, the clients or who takes part.
    """
    clock = find("clock", job.run.clock)(**job.settings["clock"])
    drift = find("drift", job.run.drift)(**job.settings["drift"])
    attack = find("attack", job.run.attack)(**job.settings["attack"])
    for kind, chosen, begins in (("drift", drift, drift.begins[-1]), ("attack", attack, attack.start)):
        if begins >= job.run.rounds:
            raise ValueError(
                f"--{kind} {chosen.name}: round {begins} is beyond --rounds {job.run.rounds}; choose more rounds, or "
                f"an earlier --{kind}.start"
            )
    started = {name: clocked(*made, clock, federation, job.run.rounds) for name, made in methods.items()}
    federation = clean = drifting(federation, drift)
    found = {}
    for name, (algorithm, sampling) in started.items():
        algorithm, federation, _ = attacked(algorithm, clean, attack)
        found[name] = Made(algorithm, methods[name].hyper, sampling)
    return found, federation


def make_methods(job: Job, model: Model, federation: Federation) -> tuple[Methods, Federation]:
    """All methods of a job, and the federation, as `as_clients_are` has them.

    Raises:
        ValueError: as `make_algorithm` and `as_clients_are`.
    """
    made: Methods = {}
    for name in job.methods:
        with method_named(name, job.methods):
            made[name] = make_algorithm(name, job, model)
    return as_clients_are(job, made, federation)


@contextmanager
def method_named(name: str, methods: Collection[str]) -> Iterator[None]:
    """Inside it, a ValueError says of which of several methods it is."""
    try:
        yield
    except ValueError as error:
        if len(methods) > 1:
            error.args = (f"--algorithm {name}: {error}",)
        raise  # the same, whose place in a user's file is told


def devices_of(
    job: Job, model: Model, federation: Federation, begun: Iterable[int | None] = (), n_runs: int = 1
) -> Sequence[Device] | None:
    """The devices that all methods of a job run on, see `fljax.run.enough`; None: all.

    Args:
        job: its settings.
        model: the clients'.
        federation: the clients and their data.
        begun: numbers of devices that parts of it have begun with; None: one has not.
        n_runs: runs of each method in one program.
    """
    n_clients, run = len(federation.train.size), job.run
    return enough_devices(
        model,
        federation,
        [split_section(name, job)[0] for name in job.methods],
        run.rounds * n_runs,
        participation=make_sampling(job).of(n_clients).size / n_clients,
        evaluate_every=run.evaluate_every,
        begun=[n_devices for n_devices in begun if n_devices],
    )


def planned(
    job: Job, made: Made, federation: Federation, name: str, devices: Sequence[Device] | None = None
) -> dict[str, Any]:
    """What `train` is called with for one method, but for where and how."""
    return {
        "algorithm": made.algorithm,
        "hyper": made.hyper,
        "federation": federation,
        "key": jax.random.key(job.run.seed),
        "n_rounds": job.run.rounds,
        "sampling": made.sampling,
        "evaluate_every": job.run.evaluate_every,
        "dropout": job.run.dropout,
        "devices": devices,
        "program": kept_as(program_text(name, job, federation), made.algorithm),
    }


def kept_as(text: str | None, algorithm: Algorithm) -> str | None:
    """What a method's programs are made of: with the numbers that its network has from the data."""
    return None if text is None else f"{text} {algorithm.about.model}"


def split_section(name: str, job: Job) -> tuple[Work, Any, dict[str, Any]]:
    """A method's section as its local work, its Hyper and its static choices."""
    Hyper, section = find("algorithm", job.methods[name]).Hyper, dict(job.settings[name])
    own = {field: section.pop(field) for field in Work._fields if field in section}
    work = Work(**own)._replace(optimizer=optimizer_of(own["optimizer"]))
    hyper = Hyper(**{field: section.pop(field) for field in numbers_of(Hyper)})
    return work, hyper, section


def _made(kind: str, job: Job, made: Any, wanted: type) -> Any:
    """Raises ValueError where a user's function has made something else."""
    if not isinstance(made, wanted):
        remedy = "; return fljax.build(train, rows, ...)" if wanted is Federation else ""
        raise ValueError(f"--{kind} {job.own[kind]} makes a {type(made).__name__}, not a {wanted.__name__}{remedy}")
    return made


def _check_steps(job: Job, federation: Federation) -> None:
    """Raises ValueError where a client would make more steps in a round than a program can count."""
    longest = np.asarray(federation.train.size, np.int64).max()
    for section in job.methods:
        epochs, batches = job.settings[section]["epochs"], n_batches(longest, job.settings[section]["batch_size"])
        if epochs * batches > MOST:
            text = f"of {batches} batches each; choose at most {MOST // batches}"
            raise ValueError(f"--{written(section)}.epochs {epochs}: {text}")
