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
from reporting import Scale, main, random_examples
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
    train = random_examples(train, scale.pick(2000, 20000))
    pixels = np.asarray(train.x, np.float64) / 255
    options: dict[str, Any] = {"beta": 0.5, "val_fraction": 0.2, "test_fraction": 0.2, "public": False}
    drawn = PARTITIONS["dirichlet"](train, test, 20, seed=0, min_size=10, **options)
    return drawn, (float(pixels.mean()), float(pixels.std()))


def scales(scale: Scale) -> None:
    """Validation and test accuracy of each scale at its own best learning rate, over seeds."""
    rows: list[Row] = []
    for name, published_name in DATASETS.items():
        clients, numbers = federation(name, scale)
        shape, cell_values = clients.train.pool.x.shape[1:], {}
        for label, input_scale in {"unit": "unit", "centred": "centred", "standardised": numbers}.items():
            model = normalized(mlp(shape, (64,)), input_scale)
            best, tested = judged(scale, model, clients)
            rows.append({"data": name, "inputs": label, "best lr": best, "test accuracy": spread(tested)})
            cell_values |= {
                (label, "Dirichlet 0.5", seed, "accuracy_macro"): value for seed, value in enumerate(tested)
            }
            cell_values[label, "Dirichlet 0.5", 0, "lr"] = best
        place, rounds = ("normalisation", "scales", published_name), (scale.rounds or planned(scale), planned(scale))
        keep_numbers(scale, place, cell_values, rounds, clients=20, method="FedAvg", lr="best of four by validation")
    show(scale, "scales", "Input scales, FedAvg", rows)


def planned(scale: Scale) -> int:
    """Rounds of a whole run."""
    return scale.pick(15, 100)


def judged(scale: Scale, model, clients: Federation) -> tuple[float, list[float]]:
    """The learning rate of the best validation accuracy, and the test accuracy there of every seed."""
    algorithm, n_rounds = fedavg(model, Work(2, 32)), scale.rounds or planned(scale)
    hypers = grid(fljax.fedavg.Hyper(), lr=RATES)
    rows_of_split: dict[str, list[dict]] = {}
    for split, split_clients in (("val", on_validation(clients)), ("test", clients)):
        metrics = search(
            algorithm, hypers, split_clients, jax.random.key(0), scale.n_seeds, n_rounds, evaluate_every=n_rounds
        )
        rows_of_split[split] = tidy(hypers, metrics.metrics, metrics.rounds)
    mean = {
        lr: np.mean([row["accuracy_macro"] for row in rows_of_split["val"] if np.isclose(row["lr"], lr)])
        for lr in RATES
    }
    best = max(RATES, key=lambda lr: mean[lr])
    return best, [float(row["accuracy_macro"]) for row in rows_of_split["test"] if np.isclose(row["lr"], best)]


if __name__ == "__main__":
    main(__doc__ or "", {"scales": scales}, n_seeds=(3, 3))
