"""Which input scale is the better default: pixels in [0, 1], in [-1, 1], or standardised.

    python experiments/normalisation.py [scales] [--scale smoke|paper] [--seeds N]

FedAvg under label skew (Dirichlet 0.5) at four learning rates, Fashion-MNIST and the digits, each data set with the
same network and batches. Each scale is judged at its own best rate by validation accuracy, and tested once. Lines are
in results/normalisation/. FLJAX_DATA names the folder with fashion_mnist.
"""

from typing import Any

import jax
import numpy as np
from lines import keep_numbers
from reporting import Scale, main, some
from tables import Row, show, spread

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import mlp, normalized
from fljax.run.sweep import grid, on_validation, search, tidy
from fljax.types import Examples, Federation, Work

RATES = (0.01, 0.03, 0.1, 0.3)
DATASETS = {"fashion_mnist": "FMNIST", "digits": "digits"}


def federation(name: str, scale: Scale) -> tuple[Federation, tuple[float, float]]:
    """20 clients with a fifth of their images for validation and a fifth for the test; mean and deviation of pixels."""
    train, test = (Examples(split.x, split.y) for split in load(name))
    train = some(train, scale.pick(2000, 20000))
    pixels = np.asarray(train.x, np.float64) / 255
    options: dict[str, Any] = {"beta": 0.5, "val_fraction": 0.2, "test_fraction": 0.2, "public": False}
    made = PARTITIONS["dirichlet"](train, test, 20, seed=0, min_size=10, **options)
    return made, (float(pixels.mean()), float(pixels.std()))


def scales(scale: Scale) -> None:
    """Validation and test accuracy of each scale at its own best learning rate, over seeds."""
    rows: list[Row] = []
    for name, published_name in DATASETS.items():
        made, numbers = federation(name, scale)
        shape, found = made.train.pool.x.shape[1:], {}
        for label, way in {"unit": "unit", "centred": "centred", "standardised": numbers}.items():
            model = normalized(mlp(shape, (64,)), way)
            best, tested = judged(scale, model, made)
            rows.append({"data": name, "inputs": label, "best lr": best, "test accuracy": spread(tested)})
            found |= {(label, "Dirichlet 0.5", seed, "accuracy_macro"): value for seed, value in enumerate(tested)}
            found[label, "Dirichlet 0.5", 0, "lr"] = best
        place, done = ("normalisation", "scales", published_name), (scale.rounds or planned(scale), planned(scale))
        keep_numbers(scale, place, found, done, clients=20, method="FedAvg", lr="best of four by validation")
    show(scale, "scales", "Input scales, FedAvg", rows)


def planned(scale: Scale) -> int:
    """Rounds of a whole run."""
    return scale.pick(15, 100)


def judged(scale: Scale, model, made: Federation) -> tuple[float, list[float]]:
    """The learning rate of the best validation accuracy, and the test accuracy there of every seed."""
    algorithm, n_rounds = fedavg(model, Work(2, 32)), scale.rounds or planned(scale)
    hypers = grid(fljax.fedavg.Hyper(), lr=RATES)
    of: dict[str, list[dict]] = {}
    for split, given in (("val", on_validation(made)), ("test", made)):
        metrics = search(algorithm, hypers, given, jax.random.key(0), scale.n_seeds, n_rounds, evaluate_every=n_rounds)
        of[split] = tidy(hypers, metrics.metrics, metrics.rounds)
    mean = {lr: np.mean([row["accuracy_macro"] for row in of["val"] if np.isclose(row["lr"], lr)]) for lr in RATES}
    best = max(RATES, key=lambda lr: mean[lr])
    return best, [float(row["accuracy_macro"]) for row in of["test"] if np.isclose(row["lr"], best)]


if __name__ == "__main__":
    main(__doc__ or "", {"scales": scales}, n_seeds=(3, 3))
