"""From settings to what runs: the federation, the model, and each method with its numbers."""

from typing import Any

from fljax.algorithms import method_named
from fljax.cli.ranges import check_steps
from fljax.cli.settings import Values
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.data.holdout import hold_out_clients
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS
from fljax.types import Algorithm, Federation, Model, Work


def make_federation(settings: Values) -> Federation:
    """Reads the data set and deals it out."""
    own = settings[""]
    train, test = load(own["dataset"], own["data_folder"])
    return PARTITIONS[own["partition"]](train, test, seed=own["seed"], **settings["partition"])


def make_parts(settings: Values) -> tuple[Federation, Federation | None]:
    """The federation that trains, and the clients that are new at the end where the job holds some out.

    Raises:
        ValueError: a client would make more steps than can be counted, or nobody is left on one side.
    """
    federation, share = make_federation(settings), settings[""]["new_clients"]
    check_steps(settings, federation)
    return (federation, None) if share is None else hold_out_clients(federation, share, settings[""]["seed"])


def make_model(settings: Values, federation: Federation) -> Model:
    """The network, with the shape of the data's examples and a logit for each class.

    Raises:
        ValueError: naming the network, where it cannot be built so.
    """
    name, shape = settings[""]["model"], federation.train.pool.x.shape[1:]
    try:
        return MODELS[name](input_shape=shape, n_classes=n_classes(federation), **settings["model"])
    except ValueError as error:
        raise ValueError(f"--model {name}: {error}") from None


def make_algorithm(name: str, settings: Values, model: Model) -> tuple[Algorithm, Any]:
    """A method and its Hyper."""
    work, hyper, static = split_section(name, settings)
    return method_named(name).factory(model, work, **static), hyper


def split_section(name: str, settings: Values) -> tuple[Work, Any, dict[str, Any]]:
    """A method's section as its local work, its Hyper and its static choices."""
    method, section = method_named(name), settings[name]
    work = Work(**{field: section[field] for field in Work._fields})
    hyper = method.hyper(**{field: section[field] for field in method.hyper._fields if field in section})
    static = {field: value for field, value in section.items() if field not in Work._fields + method.hyper._fields}
    return work, hyper, static
