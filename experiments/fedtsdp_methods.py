"""What FedTSDP's experiments run: the paper's settings, networks and methods.

Ditto's lambda, FedProx's mu and CFL's thresholds are not in the paper; here they are the library's defaults.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from reporting import Methods, Result, Scale, compare, same_shapes

import fljax
from fljax.algorithms.cfl import cfl
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedper import fedper
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fedtsdp import fedtsdp
from fljax.algorithms.standalone import standalone
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import cnn, mlp, resnet18
from fljax.types import Federation, Model, Work

SETTINGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "IID": ("iid", {}),
    "Dirichlet 0.5": ("dirichlet", {"beta": 0.5}),
    "Dirichlet 0.2": ("dirichlet", {"beta": 0.2}),
    "2 classes": ("classes_per_client", {"classes": 2}),
}
"""The paper's settings: name -> partition and its options; 20 clients."""


RESNET = "2 classes ResNet18"
"""Table 5's setting with its other network."""


def network(paper: bool, setting: str = "") -> Model:
    """The paper's CNN of four layers (`RESNET`: its ResNet18), or an MLP of two."""
    if not paper:
        return mlp((8, 8, 1), (32,), 10)
    return resnet18((32, 32, 3), 10) if setting == RESNET else cnn((32, 32, 3), 10)


MOST_SEEDS = 5
"""Seeds of the Hopkins table; the other tables take the first of them."""


@cache
def everything(paper: bool, n_seeds: int) -> dict[str, list[Federation]]:
    """All settings with index tables of one width, so that a method compiles once for all of them."""
    train, test = load("cifar10" if paper else "digits")
    drawn = []
    for partition, options in SETTINGS.values():
        least_size = {"min_size": 5} if partition == "dirichlet" and not paper else {}
        drawn += [PARTITIONS[partition](train, test, 20, seed=s, **options, **least_size) for s in range(n_seeds)]
    drawn = same_shapes(drawn)
    return {name: drawn[i * n_seeds : (i + 1) * n_seeds] for i, name in enumerate(SETTINGS)}


def federations(scale: Scale, setting: str) -> list[Federation]:
    """One federation a seed."""
    return everything(scale.paper, max(MOST_SEEDS, scale.n_seeds))[setting][: scale.n_seeds]


def optimizer(scale: Scale) -> dict[str, float]:
    """The paper's SGD; at smoke scale its learning rate falls slower, for there are fewer steps in a round."""
    return {"lr": 0.05, "momentum": 0.5, "lr_decay": scale.pick(0.99, 0.95)}


def work(scale: Scale) -> Work:
    """Two local epochs."""
    return Work(2, scale.pick(16, 50))


def n_rounds(scale: Scale) -> int:
    """Rounds of a run."""
    return scale.pick(30, 200)


@cache
def runs(scale: Scale, setting: str) -> list[Result]:
    """FedTSDP and what the paper compares it with, tested now and then on the way."""
    return compared(scale, "", systems(scale, setting), (setting,), evaluate_every=scale.pick(1, 5))


def systems(scale: Scale, setting: str = "") -> Methods:
    """FedTSDP and its rivals, by their names in the tables."""
    model, local_work, sgd = network(scale.paper, setting), work(scale), optimizer(scale)
    return {
        "FedTSDP": (fedtsdp(model, local_work), fljax.fedtsdp.Hyper(**sgd)),
        "FedAvg": (fedavg(model, local_work), fljax.fedavg.Hyper(**sgd)),
        "FedProx": (fedprox(model, local_work), fljax.fedprox.Hyper(**sgd)),
        "FedPer": (fedper(model, local_work), fljax.fedper.Hyper(**sgd)),
        "Ditto": (ditto(model, local_work), fljax.ditto.Hyper(**sgd)),
        "CFL": (cfl(model, local_work), fljax.cfl.Hyper(**sgd)),
        "Standalone": (standalone(model, local_work), fljax.standalone.Hyper(**sgd)),
    }


def compared(
    scale: Scale, name: str, methods: Methods, settings: Iterable[str], evaluate_every: int | None = None
) -> list[Result]:
    """The methods that were asked for on the settings, tested after every so many rounds (None: after the last).

    At the paper's scale runs are in folders of the experiment's ``name``, and go on where they were stopped.
    """
    by_setting = {setting: federations(scale, setting.removesuffix(" ResNet18")) for setting in settings}
    # A run in a folder is the same however short a part of it is asked for.
    evaluate_every, folder = (
        evaluate_every or scale.pick(None, n_rounds(scale)),
        scale.pick(None, scale.folder / "runs" / name),
    )
    return compare(
        scale.chosen(methods), by_setting, scale.rounds or n_rounds(scale), evaluate_every=evaluate_every, folder=folder
    )
