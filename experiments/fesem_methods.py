"""What FeSEM's experiments run: clients by writer or dealt otherwise, networks, FeSEM and the paper's ten baselines."""

from functools import cache
from typing import Any

import jax
import numpy as np
from comparison import SHORT_RUN
from reporting import Methods, Scale, random_examples, same_shapes

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
from fljax.types import Algorithm, ClientData, Examples, Federation, Model, Work

SIZES = (2, 3, 4)
"""The K of the paper."""

DEALT = {False: "writers (proxy)", True: "writers"}
"""At the paper's scale or not -> how the tables' images are dealt."""
DATA = {False: "MNIST-writers", True: "FEMNIST"}
"""At the paper's scale or not -> what the tables are of; the first is a proxy."""


@cache
def everything(paper: bool, n_seeds: int, validated: bool = False) -> dict[str, list[Federation]]:
    """By writer, and the paper's two other ways to deal the same images; tables of one width, to compile once.

    Four fifths of a client's images are for training. At smoke, or if ``validated``, a tenth of all, taken from these,
    is for validation.
    """
    split_options = {"val_fraction": 0.1 if validated or not paper else 0.0}
    if paper:
        sets = load("femnist")
        writers = [PARTITIONS["natural"](*sets, 400, seed=s, **split_options) for s in range(n_seeds)]
    else:
        train, test = (Examples(split.x, split.y) for split in load("mnist"))
        sets = random_examples(train, 3200), random_examples(test, 800)
        writers = [PARTITIONS["writers"](*sets, 20, seed=s, sigma=0.3, **split_options) for s in range(n_seeds)]
    ways = {
        DEALT[paper]: writers,
        "IID": [dealt("iid", federation, s, **split_options) for s, federation in enumerate(writers)],
        "Dirichlet 0.5": [
            dealt("dirichlet", federation, s, beta=0.5, **split_options) for s, federation in enumerate(writers)
        ],
    }
    widened = iter(same_shapes([federation for drawn in ways.values() for federation in drawn]))
    return {way: [next(widened) for _ in range(n_seeds)] for way in ways}


def dealt(partition: str, federation: Federation, seed: int, **numbers: Any) -> Federation:
    """The images of a federation dealt anew to as many clients, a fifth of each client's for tests."""
    images = [owned(data) for data in (federation.train, federation.val, federation.test) if data is not None]
    all_images = jax.tree.map(lambda *parts: np.concatenate(parts), *images)
    return PARTITIONS[partition](all_images, all_images, len(federation.train.size), seed=seed, public=False, **numbers)


def owned(data: ClientData) -> Examples:
    """The examples of all clients."""
    is_real = np.arange(data.index.shape[1]) < np.asarray(data.size)[:, None]
    rows = np.asarray(data.index)[is_real]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], data.pool)


def by_writer(scale: Scale, validated: bool = False) -> dict[str, list[Federation]]:
    """The setting of the tables; ``validated``: with a validation split."""
    name, federations = next(iter(everything(scale.paper, scale.n_seeds, validated).items()))
    return {name: federations}


def network(scale: Scale) -> Model:
    """The network of the official code, 845,510 parameters; at smoke an MLP."""
    return scale.pick(mlp((28, 28, 1), (64,)), femnist_cnn(hidden=248))


def work(scale: Scale) -> Work:
    """Five epochs of batches of 10 (smoke: 16)."""
    return Work(5, scale.pick(16, 10))


def systems(scale: Scale, model: Model, local_work: Work, lr: float) -> Methods:
    """FeSEM with each K, with matched averaging, and the paper's ten baselines, by its names."""
    one_epoch = local_work._replace(epochs=1)  # of mini-batches, as in the official code
    methods: Methods = {
        "NonFed": (standalone(model, local_work), fljax.standalone.Hyper(lr=lr)),
        "FedSGD": (fedavg(model, one_epoch), fljax.fedavg.Hyper(lr=lr)),
        "FedAvg": (fedavg(model, local_work), fljax.fedavg.Hyper(lr=lr)),
        "FedDist": (feddist(model, local_work), fljax.feddist.Hyper(lr=lr)),
        "FedDWS": (feddws(model, local_work), fljax.feddws.Hyper(lr=lr)),
        "Robust (TKM)": (robust_cfl(model, local_work, 4), fljax.robust_cfl.Hyper(lr=lr)),
        "FedCluster": (cfl(model, local_work), fljax.cfl.Hyper(lr=lr, **scale.pick(SHORT_RUN["cfl"], {}))),
        "HypoCluster(3)": (hypcluster(model, local_work, 3), fljax.hypcluster.Hyper(lr=lr)),
        "FedDane": (feddane(model, local_work), fljax.feddane.Hyper(lr=lr, mu=0.0)),
        "FedProx": (fedprox(model, local_work), fljax.fedprox.Hyper(lr=lr)),
    }
    centers = {f"FeSEM({k})": centered(model, local_work, lr, k) for k in SIZES}
    return {**methods, **centers, "FeSEM-MA(4)": (fesem_ma(model, local_work, 4), fljax.fesem.Hyper(lr=lr))}


def centered(model: Model, local_work: Work, lr: float, k: int) -> tuple[Algorithm, Any]:
    """FeSEM with so many centers, its objective (5) among the metrics."""
    return fesem(model, local_work, k, objective=True), fljax.fesem.Hyper(lr=lr)


def of_writers(scale: Scale) -> tuple[Model, Work, float]:
    """Network, effort and learning rate of FEMNIST (smoke: of the proxy)."""
    return network(scale), work(scale), scale.pick(0.1, 0.003)


def n_rounds(scale: Scale) -> int:
    """Rounds of a run."""
    return scale.rounds or planned(scale)


def planned(scale: Scale) -> int:
    """Rounds of a whole run."""
    return scale.pick(15, 100)
