"""Makes from settings what methods train on: the federation, and the network with its task and its scores."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.catalogue.entries import names
from fljax.catalogue.file_words import short_name
from fljax.catalogue.job import RunSettings
from fljax.catalogue.own import find
from fljax.catalogue.parameters import parameters
from fljax.catalogue.words import written
from fljax.checks.network import check_takes
from fljax.choices import MOST
from fljax.client.minibatches import n_batches
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.data.holdout import hold_out_clients
from fljax.data.scale import ScaleWarning
from fljax.devices.memory import check_fits, n_bytes
from fljax.jobs.common_test import Pool, check_common_test, with_test_set
from fljax.jobs.job import Job
from fljax.jobs.own_data import halves, of_data, own_federation, read_data, scaled, scaling
from fljax.models.own import as_model
from fljax.models.scored import scored, validated
from fljax.sealed import naming
from fljax.types import Federation, Model


def make_federation(job: Job) -> Federation:
    """Reads the data set and splits it among clients.

    Raises:
        ValueError: the partition rejects its settings, or a user's function returns no federation.
    """
    if job.run.normalize != "standard":
        return _federation(job)
    with warnings.catch_warnings(action="ignore", category=ScaleWarning):  # the network sees standardised inputs anyway
        return _federation(job)


def _federation(job: Job) -> Federation:
    if job.run.common_test:
        check_common_test(job)
    if job.run.data is not None:
        if (federation := own_federation(job)) is not None:
            return federation
        train, test = halves(job)
    else:
        train, test = load(job.run.dataset, job.run.data_folder)
    function = find("partition", job.run.partition)

    def deal(train: Pool, test: Pool) -> Federation:
        federation = function(train, test, seed=job.run.seed, **job.settings["partition"])
        return made_as("partition", job, federation, Federation)

    return with_test_set(deal, train, test) if job.run.common_test else deal(train, test)


def data_name(run: RunSettings) -> str:
    """The name of the data set, or of the file of the user's own data."""
    return run.dataset if run.data is None else Path(run.data).name


def make_parts(job: Job) -> tuple[Federation, Federation | None]:
    """The federation that trains, and the new clients, if the job holds some out, else None.

    Raises:
        ValueError: a client would make more steps than can be counted, or no client is left on one side.
    """
    federation, share = make_federation(job), job.run.new_clients
    _check_steps(job, federation)
    if share is None:
        return federation, None
    training, new_clients = hold_out_clients(federation, share, job.run.seed)
    if job.run.data is None or job.run.partition != "natural":
        return training, new_clients
    data = read_data(job)  # the values that fill empty cells come from the clients that train only
    values = data.fills(training)
    return data.filled(training, values), data.filled(new_clients, values)


def make_model(job: Job, federation: Federation) -> Model:
    """The network, with the scaling and the task that follow from the job and the training examples.

    Raises:
        ValueError: the network cannot be built; the message names it.
        MemoryError: it is larger than the memory.
    """
    return scaled(plain_model(job, federation), scaling(federation, job.run.task, job.run.normalize))


def plain_model(job: Job, federation: Federation) -> Model:
    """The network without scaling, with the shape of the data's examples, one logit per class, and the job's scores.

    Raises:
        ValueError, MemoryError: as `make_model`.
    """
    name, shape = job.run.model, federation.train.pool.x.shape[1:]
    make = find("model", name)
    try:
        reads_tokens = federation.train.pool.x.dtype == jnp.int32 and job.run.normalize == "unit"
        dtype = jnp.int32 if reads_tokens else jnp.float32
        network = as_model(make, shape, n_classes(federation), with_words(job), dtype)
        check_takes(getattr(network, "about", ()), federation.train.pool.x.dtype)
    except (ValueError, TypeError) as error:
        raise ValueError(f"--model {name}: {error}") from None
    model = made_as("model", job, network, Model)
    check_fits(f"two copies of --model {name} need", 2 * n_bytes(jax.eval_shape(model.init, jax.random.key(0))))
    return _scored(job, model)


def with_words(job: Job) -> dict[str, Any]:
    """The network's settings; for texts, a vocabulary that is not set is that of the data's words.

    Raises:
        ValueError: the network is one of fljax that would read the tokens as numbers.
    """
    settings, words, name = dict(job.settings["model"]), of_data(job)[-1], job.run.model
    if not words:
        return settings
    vocabulary = parameters(find("model", name)).get("vocabulary")
    if vocabulary is not None and settings["vocabulary"] == vocabulary.default:
        settings["vocabulary"] = len(words)
    elif vocabulary is None and name in names("model"):
        embedding = [network for network in names("model") if "vocabulary" in parameters(find("model", network))]
        raise ValueError(f"it would read words as numbers; choose a network that embeds them, {', '.join(embedding)}")
    return settings


def _scored(job: Job, model: Model) -> Model:
    """The model with the job's scores, and with tests on the validation split if the job asks for them.

    Raises:
        ValueError: a score is unknown or is none, is given twice, or has the name of a metric of every test.
    """
    for word in job.run.score:
        score = find("score", word)
        with naming(f"--score {' '.join(job.run.score)}"):
            model = scored(model, **{short_name(word): score})
    return validated(model) if job.run.validate else model


def made_as(kind: str, job: Job, value: Any, expected: type) -> Any:
    """Returns ``value``, which a user's function has returned; raises ValueError if it is not an ``expected``."""
    if not isinstance(value, expected):
        remedy = ", as fljax.build(train, rows, ...)" if expected is Federation else ""
        raise ValueError(
            f"--{kind} {getattr(job.run, kind)} returns a {type(value).__name__}; return a {expected.__name__}{remedy}"
        )
    return value


def _check_steps(job: Job, federation: Federation) -> None:
    """Raises ValueError if a client would make more steps in a round than a program can count."""
    longest = np.asarray(federation.train.size, np.int64).max()
    for section in job.methods:
        epochs, batches = job.settings[section]["epochs"], n_batches(longest, job.settings[section]["batch_size"])
        if epochs is not None and epochs * batches > MOST:
            text = f"of {batches} batches each; choose at most {MOST // batches}"
            raise ValueError(f"--{written(section)}.epochs {epochs}: {text}")
