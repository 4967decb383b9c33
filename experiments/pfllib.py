"""PFLlib's table on Fashion-MNIST, by its protocol: 20 clients, two labels each or Dirichlet(0.1), 2,000 iterations.

    python experiments/pfllib.py --smoke                            # 1 seed, 2 iterations, one image in 128
    nice -n 19 python experiments/pfllib.py --seeds 3               # all; goes on where it was stopped
    python experiments/pfllib.py --only FedAvg FedPer --rounds 300  # a part of it

FLJAX_DATA names the folder with fashion_mnist. Lines are in results/pfllib/table-FMNIST.csv; runs, which are gone on
with, in ``--folder``.

As in PFLlib (github.com/TsingZ0/PFLlib, its generate_FashionMNIST.py, main.py and docs/benchmark.html): all 70,000
images, three quarters of each client's for training; all clients take part; one local epoch of batches of 10, SGD with
learning rate 0.005, no decay; conv5x5(32) - pool - conv5x5(64) - pool - fc512 - fc on inputs in [-1, 1], PyTorch's
initial weights; accuracy over all test examples. Best is a maximum over iterations of test accuracy, as published.

The federations are PFLlib's own draw (its seed 1, NumPy's former generator): every client has as many examples of
every class as there (and in dataset/fmnist-0.1/config.json of github.com/TsingZ0/DBE), and seeds differ in initial
weights and batches alone, as its trials do. This matters more than a method does: with Dirichlet shares the largest
classes of the clients hold 0.77 of all examples there, and 0.60 to 0.81 in forty draws.

Differences: the last batch of an epoch is kept, PFLlib drops it; which images of a class a client has is another choice
(the images are in another order here). Numbers of FedProx, FedFomo and FedAMP are those of PFLlib's commands for
Fashion-MNIST and a convolutional network (its system/examples.sh, removed in April 2024); of FedALA, FedCP, GPFL and
FedDBE those of their authors' (system/run_me.sh of github.com/TsingZ0/FedALA and so on), who are PFLlib's, but GPFL's
mu, which is PFLlib's default of 0: with the authors' 0.1 the best of 100 iterations is lower (settings-FMNIST.csv); of
APPLE its paper's, without the pull, which PFLlib's default leaves out, and with PFLlib's learning rate, the usual one
times the number of clients; of the others, its defaults; pFedMe's command, for batches of 16, has a personal learning
rate of 0.1, with which all clients' models become NaN in the first iteration here; Per-FedAvg's, for batches of 16 too,
has `-bt 0.001`, the learning rate of its second step, where both steps have 0.005 here. pFedMe's published row cannot
come from PFLlib's present code, which tests the server's model as every client's own (its optimizer's step returns the
model's parameters, not the personal ones, and its default beta of 0 never moves that model). Its table may have been
made with others. Where a method's own file says how it differs, so does its line here.
"""

import argparse
import itertools
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from counts import count
from long_runs import resumed, rounds_done, seconds_a_round
from outcomes import RESULTS, Outcome, described, keep
from reporting import data_here, same_shapes

import fljax
from fljax.cli.run import cache_compilations
from fljax.data.datasets import load
from fljax.data.federation import build, on_host
from fljax.devices.mesh import use_all_cores
from fljax.models import cnn
from fljax.models.scaled import normalized
from fljax.run.progress import BarProgress
from fljax.types import Algorithm, Examples, Federation, Model, Work

N_CLIENTS, N_CLASSES, TRAIN_SHARE, BATCH_SIZE, LR, ROUNDS = 20, 10, 0.75, 10, 0.005, 2000
AFTER = (10, 20, 40, 100, 200, 400, 1000)
"""Iterations after which an accuracy is kept of its own."""
DRAW = 1
"""Seed of the federations in PFLlib's generate_FashionMNIST.py."""
SETTINGS = ("2 labels", "Dirichlet 0.1")
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "FedAvg": (80.41, 85.85),
    "FedProx": (78.08, 85.63),
    "Per-FedAvg": (99.18, 95.10),
    "pFedMe": (99.35, 97.25),
    "Ditto": (99.44, 97.47),
    "APFL": (99.41, 97.25),
    "FedFomo": (99.46, 97.21),
    "FedAMP": (99.42, 97.20),
    "FedALA": (99.57, 97.66),
    "FedPer": (99.47, 97.44),
    "FedRep": (99.56, 97.56),
    "FedRoD": (99.52, 97.52),
    "FedBABU": (99.41, 97.46),
    "FedCP": (99.66, 97.89),
    "GPFL": (99.85, 97.81),
    "FedDBE": (99.74, 97.69),
    "FedDistill": (99.51, 97.43),
    "FedProto": (99.49, 97.40),
    "APPLE": (99.30, 97.06),
    "FedGen": (79.76, 84.90),
}
"""Method -> best accuracy in per cent, by `SETTINGS`."""


class Chosen(NamedTuple):
    """A method by its name in fljax, its static choices and its numbers; lr is `LR` where it has none."""

    name: str
    choices: Mapping[str, Any] = {}
    numbers: Mapping[str, Any] = {}
    epochs: int = 1
    tested_every: int = 1


METHODS: Mapping[str, Chosen] = {
    "FedAvg": Chosen("fedavg"),
    "FedProx": Chosen("fedprox", numbers={"mu": 0.001}),
    "Per-FedAvg": Chosen("perfedavg", numbers={"inner_lr": LR}, epochs=2),  # PFLlib's clients train twice a round
    "pFedMe": Chosen("pfedme", numbers={"lam": 15.0, "personal_lr": 0.01}),
    "Ditto": Chosen("ditto", {"personal_epochs": 1}, {"lam": 0.0}),
    "APFL": Chosen("apfl", numbers={"alpha": 1.0}),
    "FedFomo": Chosen("fedfomo", {"n_received": 4}, {"explore": 0.0}),
    "FedAMP": Chosen("fedamp", numbers={"lam": 1.0, "alpha": 1000.0, "sigma": 0.1}),
    "FedALA": Chosen("fedala"),
    "FedPer": Chosen("fedper"),
    "FedRep": Chosen("fedrep", {"body_epochs": 1, "ft_epochs": 0}, epochs=2),  # one on the head, one on the body
    "FedRoD": Chosen("fedrod"),
    # Each client is tuned for ten epochs before a test, so there is one, after the last iteration, as in PFLlib.
    "FedBABU": Chosen("fedbabu", {"ft_epochs": 10, "weighting": "size"}, tested_every=ROUNDS),
    "FedCP": Chosen("fedcp", numbers={"lam": 5.0}),
    # Its code has the norm of a whole batch where the mean of examples is here, and mixes what a client itself trained.
    "GPFL": Chosen("gpfl", {"condition": "trained"}, {"lam": 0.01 * BATCH_SIZE**0.5}),
    "FedDBE": Chosen("feddbe", numbers={"kappa": 50.0, "rate": 1.0}),
    "FedDistill": Chosen("feddistill", numbers={"gamma": 1.0}),
    "FedProto": Chosen("fedproto", {"weighting": "uniform"}, {"lam": 1.0}),
    "APPLE": Chosen("apple", {"weighting": "uniform"}, {"lr": N_CLIENTS * LR, "p_lr": 0.001, "mu": 0.0}),
    "FedGen": Chosen(
        "fedgen",
        {"noise_width": 512, "generator_width": 512, "server_steps": 1000},
        {"alpha": 1.0, "generator_lr": 0.005},
    ),
}


def two_labels(rng: np.random.RandomState, labels: np.ndarray) -> list[np.ndarray]:
    """PFLlib's "pathological" clients: the classes in turn go to the first clients that have fewer than two.

    A class is cut into pieces of random size, at least a tenth of an equal share; the last client gets the rest.
    """
    owned: list[list[np.ndarray]] = [[] for _ in range(N_CLIENTS)]
    n_takers, least_size = 2 * N_CLIENTS // N_CLASSES, 4 * BATCH_SIZE / N_CLASSES
    for c in range(N_CLASSES):
        rows = np.flatnonzero(labels == c)
        takers = [i for i in range(N_CLIENTS) if len(owned[i]) < 2][:n_takers]
        share = len(rows) / len(takers)
        sizes = rng.randint(int(max(share / 10, least_size)), int(share), len(takers) - 1)
        for i, piece in zip(takers, np.split(rows, np.cumsum(sizes)), strict=True):
            owned[i].append(piece)
    return [np.concatenate(pieces) for pieces in owned]


def dirichlet(rng: np.random.RandomState, labels: np.ndarray, beta: float = 0.1) -> list[np.ndarray]:
    """PFLlib's Dirichlet clients: a class goes to clients by random shares, none to those that have their part already.

    Drawn again until everyone has 40 examples.
    """
    least_size = int(min(4 * BATCH_SIZE, len(labels) / N_CLIENTS / 2))
    while True:
        owned: list[list[int]] = [[] for _ in range(N_CLIENTS)]
        for c in range(N_CLASSES):
            rows = np.flatnonzero(labels == c)
            rng.shuffle(rows)
            is_full = np.array([len(client_rows) >= len(labels) / N_CLIENTS for client_rows in owned])
            share = np.where(is_full, 0.0, rng.dirichlet(np.full(N_CLIENTS, beta)))
            cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
            for client_rows, piece in zip(owned, np.split(rows, cuts), strict=True):
                client_rows.extend(piece.tolist())
        if min(map(len, owned)) >= least_size:
            return [np.array(client_rows) for client_rows in owned]


def federation(setting: str, part: int = 1) -> Federation:
    """PFLlib's federation of a setting, of one image in ``part``."""
    pool = everything(part)
    rng = np.random.RandomState(DRAW)
    owned = (two_labels if setting == SETTINGS[0] else dirichlet)(rng, np.asarray(pool.y))
    return build(pool, owned, (TRAIN_SHARE, 0.0, 1 - TRAIN_SHARE), DRAW, stratify=False)


@cache
def everything(part: int) -> Examples:
    """Training and test images together, one in ``part``."""
    train, test = load("fashion_mnist")
    return on_host(np.concatenate([train.x, test.x])[::part], np.concatenate([train.y, test.y])[::part])


def network() -> Model:
    """PFLlib's FedAvgCNN: 582,026 parameters."""
    plain = cnn((28, 28, 1), N_CLASSES, (32, 64), 5, "VALID", "each", (512,), (0.0, 0.0), init="pytorch")
    return normalized(plain, "centred")


def chosen(method: str) -> tuple[Algorithm, Any]:
    """A method of the table and its numbers."""
    row, factory = METHODS[method], fljax.ALGORITHMS[METHODS[method].name]
    return factory(network(), Work(row.epochs, BATCH_SIZE), **row.choices), factory.Hyper(**{"lr": LR, **row.numbers})


def run(method: str, setting: str, seed: int, clients: Federation, options: argparse.Namespace) -> list[Outcome]:
    """One cell of the table, gone on with: best and last accuracy in per cent, and seconds a round."""
    entry, (algorithm, numbers), part = METHODS[method], chosen(method), options.part
    run_folder = options.folder / f"{method}-{setting}-{seed}-{part}".replace(" ", "_")
    n_rounds = max(options.rounds, rounds_done(run_folder))
    run, seconds = resumed(
        algorithm,
        numbers,
        clients,
        jax.random.key(seed),
        n_rounds,
        folder=run_folder,
        progress=BarProgress(run_folder.name),
        evaluate_every=entry.tested_every,
    )
    accuracy = 100 * np.asarray(run.metrics["accuracy_micro"])
    choices = {"method": entry.name, "epochs": entry.epochs, **entry.choices, **entry.numbers}
    settings = described(part == 1, n_rounds, ROUNDS, **{"lr": LR} | choices)
    stated = PUBLISHED[method][SETTINGS.index(setting)] if part == 1 else None
    values = {
        "best accuracy": (float(np.nanmax(accuracy)), stated),
        "last accuracy": (float(accuracy[-1]), stated),
        "best round": (float(np.nanargmax(accuracy) + 1), None),
        "seconds per round": (seconds_a_round(run_folder), None),
    } | {
        f"accuracy after {n}": (float(accuracy[n - 1]), None)
        for n in AFTER
        if n <= n_rounds and np.isfinite(accuracy[n - 1])
    }
    setting_name = setting if part == 1 else f"{setting}, 1 in {part}"
    return [
        Outcome(method, setting_name, seed, name, value, published, n_rounds, seconds, settings)
        for name, (value, published) in values.items()
    ]


def main() -> None:
    """Runs what is asked for, cell by cell, and keeps the lines after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="2 iterations of one seed on one image in 128")
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="where seeds begin: another machine may have those before"
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="iterations; those done before are in them")
    parser.add_argument("--part", type=count, default=1, help="one image in so many; lines in table-FMNIST-smoke.csv")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--folder", type=Path, default=Path("results/pfllib"), help="of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of the lines")
    options = parser.parse_args()
    if not 0 <= options.first_seed < options.seeds:
        parser.error(f"--first-seed {options.first_seed} of --seeds {options.seeds}: choose 0 to {options.seeds - 1}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    use_all_cores()
    cache_compilations()
    if options.smoke:
        options.first_seed, options.seeds, options.rounds, options.part = 0, 1, 2, 128
    # Of one shape, whatever is asked for: a method is compiled once and its folders can be gone on with.
    federations = same_shapes([federation(setting, options.part) for setting in SETTINGS])
    clients = dict(zip(SETTINGS, federations, strict=True))
    for seed, (setting, method) in itertools.product(
        range(options.first_seed, options.seeds), itertools.product(options.settings, options.only)
    ):
        lines = run(method, setting, seed, clients[setting], options)
        keep(options.results, "PFLlib", "table", "FMNIST", lines)
        best, last = (line.value for line in lines[:2])
        print(f"{method}, {setting}, seed {seed}: best {best:.2f}, last {last:.2f}", flush=True)


if __name__ == "__main__":
    with data_here():
        main()
