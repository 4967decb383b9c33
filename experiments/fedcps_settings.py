"""FedCPS, Table 2: what accuracies hang on that the paper does not say: local epochs, a decay, the last round.

    python experiments/fedcps_settings.py [settings] [mnist] [fedsr] [--scale smoke|paper] [--only FedCPS "10 epochs"]

FLJAX_DATA names the folder with fashion_mnist and mnist. Clients, network, batches and learning rate are those of
fedcps.py; 10 epochs and no decay are those of the commands of FedCR's code, 2 epochs and 0.997 a round the defaults of
its options; the others stand beside these, to see which way accuracy goes. MNIST, of which the code has no command, is
run by name only, with smaller learning rates too.

``acc_pct`` is the mean of the last ten rounds' tests of what the rounds leave, the model of the server or of a client's
cluster (Ditto: the client's). The other lines are of the last round's models after a last round that every client
takes part in, of which there are several that the paper could mean (FedCR's code has the layers that a client does not
share trained for ten epochs while the shared ones stand still): ``acc_pct_head`` trains the last layer,
``acc_pct_top`` the layers that FedCPS keeps apart, ``acc_pct_all`` all, for ten epochs; ``acc_pct_once_more`` is the
method's own round once more. ``rounds_to_published`` is the first tested round whose accuracy is the published one.

``fedsr``, run by name only: FedSR as FedCR's code runs it, which never puts the server's network into its clients (what
authors_steps.py shows): they train alone on FedSR's loss, and in a last round the two last layers, ``acc_pct_top``.
"""

from functools import partial
from typing import Any, NamedTuple

import fedcps_methods as fedcps
import jax
import numpy as np
from final_round import with_everyone_once_more, with_own_layers_trained
from jax import Array
from lines import keep_numbers
from long_runs import resumed
from reporting import CONSOLE, Scale, folder_name, main
from tables import published, show, spread

import fljax
from fljax import tree
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedsr import REFERENCES, first_references, simple
from fljax.devices.mesh import over_devices, replicated
from fljax.metrics.evaluate import evaluate
from fljax.rounds import NOTHING, averaging, train
from fljax.run.progress import BarProgress
from fljax.types import Algorithm, Cohort, Federation, Model, ModelTable, State, Trained, Work

SETTING = "non-iid_1"


class Effort(NamedTuple):
    """How clients train."""

    epochs: int
    lr_decay: float | None = None  # factor of the learning rate from round to round
    lr: float = fedcps.LR

    def last_lr(self, n_rounds: int) -> float:
        """The learning rate after so many rounds."""
        return self.lr * (self.lr_decay or 1.0) ** n_rounds


EFFORTS: dict[str, dict[str, Effort]] = {
    "fashion_mnist": {
        "10 epochs": Effort(10),
        "10 epochs, decay 0.997": Effort(10, 0.997),
        "2 epochs, decay 0.997": Effort(2, 0.997),
        "2 epochs": Effort(2),
        "2 epochs, decay 0.99": Effort(2, 0.99),
        "1 epoch, decay 0.997": Effort(1, 0.997),
    },
    "mnist": {
        "2 epochs": Effort(2),
        "1 epoch, learning rate 0.01": Effort(1, lr=0.01),
        "1 epoch, learning rate 0.005": Effort(1, lr=0.005),
        "1 epoch, learning rate 0.003": Effort(1, lr=0.003),
    },
}


class Contender(NamedTuple):
    """A method, and what its clients are tested with after the last round."""

    algorithm: Algorithm
    hyper: Any
    after: dict[str, Algorithm]  # metric -> the method with that last round


def methods(dataset: str, scale: Scale, effort: Effort, n_rounds: int) -> dict[str, Contender]:
    """FedAvg, Ditto and FedCPS with their last rounds, at the learning rate that the rounds end with."""
    (model, _), work = fedcps.networks(dataset, scale), fedcps.effort(scale, effort.epochs)
    lr = effort.last_lr(n_rounds)
    trained_layers = {
        "acc_pct_head": model.layers[-1:],
        "acc_pct_top": model.layers[-2:],
        "acc_pct_all": model.layers,
    }

    def last_rounds(algorithm: Algorithm) -> dict[str, Algorithm]:
        return {
            name: with_own_layers_trained(algorithm, model, work, lr, layers) for name, layers in trained_layers.items()
        }

    clusters, hyper = fedcps.cps(model, scale, epochs=effort.epochs, deployed="cluster")
    fresh, _ = fedcps.cps(model, scale, epochs=effort.epochs, deployed="fresh")
    average, personal = fedavg(model, work), ditto(model, work)
    lam, sgd = fedcps.DITTO_LAMBDA, {"lr": effort.lr, "lr_decay": effort.lr_decay}
    return {
        "FedAVG": Contender(average, fedavg.Hyper(**sgd), last_rounds(average)),
        "Ditto": Contender(
            personal,
            ditto.Hyper(**sgd, lam=lam),
            {"acc_pct_once_more": with_everyone_once_more(personal, model, work, lr, lam)},
        ),
        "FedCPS": Contender(clusters, hyper.replace(**sgd), {"acc_pct_once_more": fresh} | last_rounds(clusters)),
    }


def names(scale: Scale) -> tuple[str, ...]:
    """All efforts and methods that can be asked for."""
    efforts = (name for named_efforts in EFFORTS.values() for name in named_efforts)
    return *efforts, *methods("fashion_mnist", scale, Effort(1), 1)


def settings(scale: Scale) -> None:
    """Accuracy after the rounds and after each last round, for every way to train on Fashion-MNIST."""
    accuracies(scale, "settings", "fashion_mnist", 50)


def mnist(scale: Scale) -> None:
    """The same on MNIST."""
    accuracies(scale, "settings_mnist", "mnist", 10)


def fedsr(scale: Scale) -> None:
    """FedSR without an exchange, on both splits of Table 2."""
    effort, planned = Effort(fedcps.EPOCHS_OF_TABLE2["fashion_mnist"]), scale.pick(16, 250)
    _, model = fedcps.networks("fashion_mnist", scale, latent=256)
    work, rounds = fedcps.effort(scale, effort.epochs), unexchanged(model, fedcps.effort(scale, effort.epochs))
    last_round = with_own_layers_trained(rounds, model, work, effort.lr, model.layers[-2:])
    contender = Contender(rounds, fljax.fedsr.Hyper(lr=effort.lr, l2r=1e-3, cmi=1e-3), {"acc_pct_top": last_round})
    n_rounds, rows, place = scale.rounds or planned, [], ("FedCPS", "settings", "FMNIST")
    for setting, partition in fedcps.TABLE2.items():
        stated, setting_name = (
            published("FedCPS", "FMNIST", setting, "FedSR-FT", "acc_pct"),
            f"nothing exchanged, {setting}",
        )
        run = partial(measured, scale, "fedsr", f"FedSR, {setting}", contender, n_rounds, 50, stated)
        seed_numbers = [run(*pair) for pair in enumerate(fedcps.federations("fashion_mnist", scale, partition))]
        numbers = {
            ("FedSR-FT", setting_name, seed, metric): v
            for seed, values in enumerate(seed_numbers)
            for metric, v in values.items()
        }
        keep_numbers(scale, place, numbers, (n_rounds, planned), **effort._asdict())
        rows.append(
            {"setting": setting, "published": stated}
            | {m: spread(values[m] for values in seed_numbers) for m in seed_numbers[0]}
        )
        show(scale, "fedsr", "accuracy, %, of FedSR's loss without an exchange", rows)


def unexchanged(model: Model, work: Work) -> Algorithm:
    """FedSR, whose clients keep all that they train."""

    def local(hyper: Any, start: ModelTable, cohort: Cohort) -> Trained:
        return train(hyper, start, cohort, simple(model, hyper), work)

    return averaging(
        model,
        local,
        sharing=NOTHING,
        begin=lambda key: model.init(key) | {REFERENCES: first_references(model)},
        deployed=lambda params: tree.select(params, model.layers),
    )


def accuracies(scale: Scale, table: str, dataset: str, evaluate_every: int) -> None:
    """A table of one data set, tested after so many rounds."""
    data_name, planned = fedcps.PUBLISHED_NAME[dataset], scale.pick(16, fedcps.PUBLISHED_ROUNDS[dataset])
    n_rounds, federations, rows = scale.rounds or planned, fedcps.federations(dataset, scale, "few_shot"), []
    for name, effort in scale.chosen(EFFORTS[dataset]).items():
        for method, contender in scale.chosen(methods(dataset, scale, effort, n_rounds)).items():
            stated = published("FedCPS", data_name, SETTING, method, "acc_pct")
            run = partial(measured, scale, table, f"{name}, {method}", contender, n_rounds, evaluate_every, stated)
            seed_numbers = [run(*pair) for pair in enumerate(federations)]
            numbers = {
                (method, name, seed, metric): v
                for seed, values in enumerate(seed_numbers)
                for metric, v in values.items()
            }
            keep_numbers(scale, ("FedCPS", "settings", data_name), numbers, (n_rounds, planned), **effort._asdict())
            rows.append(
                {"setting": name, "method": method}
                | {m: spread(values[m] for values in seed_numbers) for m in seed_numbers[0]}
            )
            show(scale, table, "accuracy, %, after the rounds and after several last rounds", rows)


def measured(
    scale: Scale,
    table: str,
    label: str,
    contender: Contender,
    n_rounds: int,
    evaluate_every: int,
    stated: float,
    seed: int,
    federation: Federation,
) -> dict[str, float]:
    """Metric -> accuracy in per cent of one run, which goes on where it was stopped; and rounds to ``stated``."""
    label = f"{label}, seed {seed}"
    folder, key = scale.folder / "runs" / table / folder_name(label), jax.random.key(seed)
    options = {
        "participation": scale.pick(0.5, 0.1),
        "evaluate_every": scale.pick(2, evaluate_every),
        "tested_last": 10,
    }
    arguments, progress = (contender.algorithm, contender.hyper, federation, key, n_rounds), BarProgress(label, CONSOLE)
    run, _ = resumed(*arguments, folder=folder, progress=progress, **options)
    curve = 100 * np.asarray(run.metrics["accuracy_macro"])
    numbers = {"acc_pct": float(np.mean(curve[-10:]))}
    rounds_reached = np.flatnonzero(curve >= stated)  # NaN, an untested round, is not
    numbers["rounds_to_published"] = float(rounds_reached[0] + 1) if len(rounds_reached) else float("nan")
    for metric, algorithm in contender.after.items():
        numbers[metric] = 100 * accuracy(algorithm, contender.hyper, run.state, federation, key)
        CONSOLE.print(f"[dim]{label}, {metric}: {numbers[metric]:.2f}[/]")
    return numbers


def accuracy(algorithm: Algorithm, hyper: Any, state: State, federation: Federation, key: Array) -> float:
    """Mean accuracy over the clients of the models that a method deploys, in [0, 1]."""

    @jax.jit
    def tested(hyper: Any, state: State, federation: Federation, key: Array) -> Array:
        models = algorithm.deploy(key, hyper, state, federation.train)
        return evaluate(algorithm.predict, models, federation.test)["accuracy_macro"]

    with over_devices() as mesh:
        return float(tested(hyper, *replicated((state, federation, key), mesh)))


if __name__ == "__main__":
    experiments = {"settings": settings, "mnist": mnist, "fedsr": fedsr}
    main(__doc__ or "", experiments, n_seeds=(2, 1), if_named=["mnist", "fedsr"], only=names)
