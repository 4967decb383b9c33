"""What DC-PFL's experiments run: clients in bands of heterogeneity, networks, and how rounds and seconds are counted.

The paper (Liu et al.) has neither learning rate, momentum nor input scale; 0.01 and 0.9 are those of the code of the
network that it cites. With both FedAvg has converged by round 42 of Table II's Mid band, after 271 s, where 82 and 512
are published; without momentum by round 72, after 464 s (`dcpfl.py settings`), for which the tables have none here.
Inputs are in [0, 1].
"""

from typing import Any

import numpy as np
from outcomes import described
from reporting import Result, Scale, random_examples
from tables import published

from fljax.data.datasets import load
from fljax.data.divergence import mean_kld
from fljax.data.federation import class_histogram
from fljax.data.partition import PARTITIONS
from fljax.metrics.cost import Link, Processor, seconds_of_rounds, working
from fljax.models import lenet, mlp
from fljax.types import Examples, Federation, Model, Work

LR, MOMENTUM = 0.01, 0.9
BANDS = ("Low", "Mid", "High")
"""Of heterogeneity."""
PUBLISHED_NAME = {"cifar10": "CIFAR10", "fashion_mnist": "FMNIST"}
N_ROUNDS = {"cifar10": 400, "fashion_mnist": 100}
EXAMPLES = {"cifar10": 1000, "fashion_mnist": 1200}


def data(name: str, scale: Scale, n_train: int, n_test: int) -> tuple[Examples, Examples]:
    """All of a data set at the paper's scale, some of it at smoke."""
    train, test = (Examples(split.x, split.y) for split in load(name))
    return (train, test) if scale.paper else (random_examples(train, n_train), random_examples(test, n_test))


def bands(
    name: str, scale: Scale, n_clients: int, examples: int, val_fraction: float = 0.0
) -> dict[str, list[Federation]]:
    """The paper's settings: primary and secondary classes, in three bands of heterogeneity.

    The bands hold tables whose two shares are drawn once for all clients (`fljax.data.partition.primary_secondary`).
    """
    sets, options = data(name, scale, 4000, 1000), {"examples": examples, "val_fraction": val_fraction}
    return {
        band.title(): [
            PARTITIONS["primary_secondary"](*sets, n_clients, seed=s, band=band, **options)
            for s in range(scale.n_seeds)
        ]
        for band in map(str.lower, scale.chosen(dict.fromkeys(BANDS)))
    }


def paper_bands(dataset: str, scale: Scale, val_fraction: float = 0.0) -> dict[str, list[Federation]]:
    """`bands` of the tables: 50 clients (smoke: 12)."""
    n_clients, examples = scale.pick(12, 50), scale.pick(200, EXAMPLES[dataset])
    return bands(dataset, scale, n_clients, examples, val_fraction)


def steps(scale: Scale) -> dict[str, Any]:
    """Numbers of the clients' steps in the tables; at smoke, whose runs are short, with momentum."""
    return {"lr": LR, "momentum": scale.pick(MOMENTUM, None)}


def effort(scale: Scale) -> Work:
    """tau = 5 epochs of batches of 32."""
    return Work(epochs=scale.pick(2, 5), batch_size=32)


def divergence(federation: Federation) -> float:
    """The federation's mean pairwise KLD, by which the paper tells its bands apart."""
    return mean_kld(np.asarray(class_histogram(federation.train, 10)))


def network(dataset: str, scale: Scale) -> Model:
    """The paper's LeNet; on Fashion-MNIST at smoke a small dense network."""
    if dataset == "cifar10":
        return lenet(input_shape=(32, 32, 3))
    return scale.pick(mlp(hidden=(64, 32)), lenet(input_shape=(28, 28, 1)))


def converged(result: Result) -> int:
    """The first round (from 1) in which the mean accuracy of five rounds is within half a point of its best."""
    accuracy = result.metrics["accuracy_macro"]
    width = min(5, len(accuracy))
    smooth = np.convolve(accuracy, np.ones(width) / width, "valid")
    return int(np.argmax(smooth >= smooth.max() - 0.005)) + width


def communication(result: Result) -> float:
    """Seconds of uplink at 2 Mbit/s until `converged`."""
    return float(seconds_of_rounds(result.metrics, Link())[: converged(result)].sum())


def uplink_share(result: Result) -> float:
    """Mean uplink of a client and round from round 12 on, as a share of a whole model (that of the first round)."""
    uplink = np.asarray(result.metrics["uplink"], float)
    whole_model = uplink[0].mean() - 1  # without the loss
    return float((uplink[11:].mean() - 1) / whole_model) if whole_model > 0 and len(uplink) > 11 else float("nan")


def processor(dataset: str) -> Processor:
    """One on which FedAvg's round of the Mid band takes what the paper's does, in epochs over a client's data.

    The paper does not describe its machine. FedAvg's total time less its time on the network, a round: 3.0 s on
    Fashion-MNIST, 1.0 s on CIFAR-10, of five epochs.
    """
    published_number = lambda metric: published("DC-PFL", PUBLISHED_NAME[dataset], "Mid", "FedAvg", metric)  # noqa: E731
    return Processor(
        5 * published_number("comm_rounds") / (published_number("total_time_s") - published_number("comm_time_s"))
    )


def epochs_of_rounds(result: Result, epochs: int) -> np.ndarray:
    """(rounds,) epochs, forward and backward, that a client computes; a pass without a gradient is a third of one.

    DC-PFL's clients first compute the loss of the model they hold; in a trial they train two models instead and compute
    the losses of both.
    """
    training_epochs = np.full(len(result.metrics["ids"]), float(epochs))
    if "trial" not in result.metrics:
        return training_epochs
    return np.where(np.asarray(result.metrics["trial"]), 2 * training_epochs + 2 / 3, training_epochs + 1 / 3)


def total_time(result: Result, dataset: str, epochs: int) -> float:
    """Seconds of computing and of uplink until `converged`; Standalone sends nothing."""
    computing = working(epochs_of_rounds(result, epochs), processor(dataset))[0][: converged(result)].sum()
    return float(computing) + communication(result)


def settings_of_run(scale: Scale, federation: Federation, planned: int, result: Result, **overrides: Any) -> str:
    """The settings of a run, as they stand in its line of the results."""
    work, n_rounds = effort(scale), len(result.metrics["ids"])
    fields = {"clients": len(federation.train.size), "kld": round(divergence(federation), 2), "epochs": work.epochs}
    return described(
        scale.paper, n_rounds, planned, **fields, batch=work.batch_size, **{"lr": LR, "momentum": MOMENTUM} | overrides
    )
