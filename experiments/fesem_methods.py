"""What FeSEM's experiments run: clients by writer or dealt otherwise, networks, FeSEM and the paper's ten baselines."""

from functools import cache
from typing import Any

from comparison import SHORT_RUN
from reporting import Methods, Scale, same_shapes, some

import fljax
from fljax.algorithms.cfl import cfl
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.feddane import feddane
from fljax.algorithms.feddist import feddist
from fljax.algorithms.feddws import feddws
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fesem import fesem
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.hypcluster import hypcluster
from fljax.algorithms.robust_cfl import robust_cfl
from fljax.algorithms.standalone import standalone
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import femnist_cnn, mlp
from fljax.types import Algorithm, Examples, Federation, Model, Work

SIZES = (2, 3, 4)
"""The K of the paper."""

DATA = {False: "MNIST-writers", True: "FEMNIST"}
"""At the paper's scale or not -> what the tables are of; the first is a proxy."""


@cache
def everything(paper: bool, n_seeds: int) -> dict[str, list[Federation]]:
    """By writer, and the paper's two other ways to deal the same images; tables of one width, to compile once."""
    if paper:
        sets = load("femnist")
        ways = {"writers": ("natural", 400, {}), "IID": ("iid", 400, {}), "Dirichlet 0.5": ("dirichlet", 400, {})}
    else:
        train, test = (Examples(split.x, split.y) for split in load("mnist"))
        sets = some(train, 3200), some(test, 800)
        pooled = {"public": False}
        ways = {
            "writers (proxy)": ("writers", 20, {"sigma": 0.3}),
            "IID": ("iid", 20, pooled),
            "Dirichlet 0.5": ("dirichlet", 20, pooled | {"beta": 0.5}),
        }
    made = [
        PARTITIONS[name](*sets, n, seed=s, val_fraction=0.1, **o)
        for name, n, o in ways.values()
        for s in range(n_seeds)
    ]
    wide = iter(same_shapes(made))
    return {way: [next(wide) for _ in range(n_seeds)] for way in ways}


def by_writer(scale: Scale) -> dict[str, list[Federation]]:
    """The setting of the tables."""
    name, federations = next(iter(everything(scale.paper, scale.n_seeds).items()))
    return {name: federations}


def network(scale: Scale) -> Model:
    """The network of the official code, 845,510 parameters; at smoke an MLP."""
    return scale.pick(mlp((28, 28, 1), (64,)), femnist_cnn(hidden=248))


def work(scale: Scale) -> Work:
    """Five epochs of batches of 10 (smoke: 16)."""
    return Work(5, scale.pick(16, 10))


def systems(scale: Scale, model: Model, local: Work, lr: float) -> Methods:
    """FeSEM with each K, with matched averaging, and the paper's ten baselines, by its names."""
    one_epoch = local._replace(epochs=1)  # of mini-batches, as in the official code
    methods: Methods = {
        "NonFed": (standalone(model, local), fljax.standalone.Hyper(lr=lr)),
        "FedSGD": (fedavg(model, one_epoch), fljax.fedavg.Hyper(lr=lr)),
        "FedAvg": (fedavg(model, local), fljax.fedavg.Hyper(lr=lr)),
        "FedDist": (feddist(model, local), fljax.feddist.Hyper(lr=lr)),
        "FedDWS": (feddws(model, local), fljax.feddws.Hyper(lr=lr)),
        "Robust (TKM)": (robust_cfl(model, local, 4), fljax.robust_cfl.Hyper(lr=lr)),
        "FedCluster": (cfl(model, local), fljax.cfl.Hyper(lr=lr, **scale.pick(SHORT_RUN["cfl"], {}))),
        "HypoCluster(3)": (hypcluster(model, local, 3), fljax.hypcluster.Hyper(lr=lr)),
        "FedDane": (feddane(model, local), fljax.feddane.Hyper(lr=lr, mu=0.0)),
        "FedProx": (fedprox(model, local), fljax.fedprox.Hyper(lr=lr)),
    }
    centers = {f"FeSEM({k})": centered(model, local, lr, k) for k in SIZES}
    return methods | centers | {"FeSEM-MA(4)": (fesem_ma(model, local, 4), fljax.fesem.Hyper(lr=lr))}


def centered(model: Model, local: Work, lr: float, k: int) -> tuple[Algorithm, Any]:
    """FeSEM with so many centers, its objective (5) among the metrics."""
    return fesem(model, local, k, objective=True), fljax.fesem.Hyper(lr=lr)


def of_writers(scale: Scale) -> tuple[Model, Work, float]:
    """Network, effort and learning rate of FEMNIST (smoke: of the proxy)."""
    return network(scale), work(scale), scale.pick(0.1, 0.003)


def n_rounds(scale: Scale) -> int:
    """Rounds of a run."""
    return scale.rounds or planned(scale)


def planned(scale: Scale) -> int:
    """Rounds of a whole run."""
    return scale.pick(15, 100)
