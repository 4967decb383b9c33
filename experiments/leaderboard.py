"""The clustered leaderboard: every clustered method on four kinds of hidden groups of real images, and four rulers.

    python experiments/leaderboard.py --smoke                  # 8 clients of 60 images, 4 rounds; mostly rotation
    nice -n 19 python experiments/leaderboard.py --seeds 5     # all; goes on where it was stopped
    python experiments/leaderboard.py --only IFCA FL+HC --settings rotation

FLJAX_DATA names the folder with mnist. Lines are in results/leaderboard/table-MNIST.csv: for each method, setting and
seed accuracy (mean over clients), its tenth percentile over clients, ARI at the end and at best, the first round that
reaches 95 % of the last accuracy, megabytes sent in all, and seconds.

20 clients in four groups, an MLP 784-64-10, batches of 16, 2 local epochs, 40 rounds, all take part. Groups, and a
client's images for training, validation and test: turned by quarters of a circle, 160, 40 and 50; a dominant label for
each group, 70, 18 and 20; writers' styles, 150, 50 and 50; labels permuted by the group, 160, 40 and 50. The server of
FedTSDP and FLIS has 1,000 images that no client has. One number of each method (a threshold where it has one, of FLC
and Group-PFL's later groups the rounds before it clusters, else its learning rate) is chosen by validation accuracy on
seed 100, from as many candidates for each; there is a line for every candidate. FedDrift is left out: these clients do
not change, and it would be FedAvg.
"""

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from counts import count
from long_runs import resumed
from outcomes import RESULTS, Outcome, described, keep
from reporting import data_here, random_examples, same_shapes, with_public

import fljax
from fljax.cli.run import cache_compilations
from fljax.data.datasets import load
from fljax.data.federation import as_arrays, on_host
from fljax.data.partition import PARTITIONS
from fljax.devices.mesh import use_all_cores
from fljax.models import mlp
from fljax.types import ClientData, Examples, Federation, Work

N_GROUPS, TUNING_SEED, BYTES, N_PUBLIC = 4, 100, 4, 1000
LR = 0.05
SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rotation": ("rotated_groups", {"n_groups": N_GROUPS}),
    "dominant label": ("dominant_label_groups", {"n_groups": N_GROUPS, "beta": 0.8}),
    "writers (proxy)": ("writers", {"n_groups": N_GROUPS, "sigma": 0.0, "jitter": 0.05}),
    "permuted labels": ("rotated_groups", {"n_groups": 1}),
}
RATES = (0.02, 0.05, 0.1)
ONE_WRITER = Lock()
"""Of the lines' file, while methods run side by side."""


class Entry(NamedTuple):
    """A method by its name in fljax, its static choices, its numbers, and the number that is chosen from candidates."""

    name: str
    choices: Mapping[str, Any] = {}
    numbers: Mapping[str, Any] = {}
    tuned: str = "lr"
    candidates: tuple[float, ...] = RATES


K = {"n_clusters": N_GROUPS}
ENTRIES: Mapping[str, Entry] = {
    "IFCA": Entry("ifca", K, {"min_share": 0.1}),
    "HypCluster": Entry("hypcluster", K, {"min_share": 0.1}),
    "FeSEM": Entry("fesem", K),
    "CFL": Entry("cfl", {}, {"eps_share": 0.5, "eps_ratio": 1.6, "r_min": 5}, "gamma_max", (0.4, 0.6, 0.8)),
    "LayerCFL": Entry(
        "layercfl", {"layers": "fc1"}, {"eps_share": 0.5, "eps_ratio": 1.6, "r_min": 5}, "gamma_max", (0.4, 0.6, 0.8)
    ),
    "ClusterFL": Entry("clusterfl", K),
    "FLC": Entry("flc", K, {}, "warmup", (3.0, 5.0, 10.0)),
    "FL+HC": Entry("flhc", {}, {}, "threshold", (0.7, 0.9, 1.0)),
    "PACFL": Entry("pacfl", {}, {}, "threshold", (5.0, 10.0, 20.0)),
    "FlexCFL": Entry("flexcfl", K),
    "StoCFL": Entry("stocfl", {}, {}, "tau", (0.2, 0.4, 0.6)),
    "FedRC": Entry("fedrc", K),
    "FedSoft": Entry("fedsoft", K),
    "FedEM": Entry("fedem", {"n_learners": N_GROUPS}),
    "FedGWC": Entry("fedgwc", {}, {"beta": 1.0}, "eps", (0.03, 0.01, 0.003)),
    "Robust CFL": Entry("robust_cfl", {**K, "solve_epochs": 5, "n_init": 3}),
    "Group-PFL": Entry("group_pfl", {}, {}, "gamma", (0.5, 1.0, 3.0)),
    "Group-PFL (later)": Entry("group_pfl_dynamic", {"n_groups": N_GROUPS}, {}, "one_group_rounds", (3.0, 5.0, 10.0)),
    "FedTSDP": Entry("fedtsdp", {}, {}, "eps_outputs", (0.02, 0.05, 0.1)),
    "DC-PFL": Entry("dcpfl", {}, {"momentum": None}, "step", (0.1, 0.2, 0.4)),
    "FedCPS": Entry("fedcps", K),
    "FeSEM-MA": Entry("fesem_ma", K),
    "AdaCFL": Entry("adacfl", {}, {"eps_share": 0.5, "eps_ratio": 1.6, "r_min": 5}, "spacing", (1.2, 1.5, 2.0)),
    "FLIS": Entry("flis", {}, {}, "threshold", (0.4, 0.5, 0.6)),
    "FLIS HC": Entry("flhc", {"distance": "predictions"}, {}, "threshold", (0.3, 0.4, 0.55)),
    "FedClust": Entry("fedclust", {}, {}, "threshold", (0.07, 0.1, 0.14)),
    "CGPFL": Entry("cgpfl", K),
    "FedAvg": Entry("fedavg"),
    "Ditto": Entry("ditto"),
    "FedAvg-FT": Entry("fedavg_ft", {"ft_epochs": 2}),
    "standalone": Entry("standalone"),
}


class Scale(NamedTuple):
    """How large the runs are."""

    smoke: bool
    n_clients: int
    each: int
    rounds: int


@cache
def images() -> tuple[Examples, Examples]:
    """Training and test images of MNIST."""
    train, test = load("mnist")
    return Examples(train.x, train.y), Examples(test.x, test.y)


def federation(setting: str, seed: int, scale: Scale) -> Federation:
    """Clients in four hidden groups, with about a fifth of each one's images for validation and as many for the test.

    A client has up to ``scale.each`` for training and validation, and those for the test are beside them.
    """
    name, options = SETTINGS[setting]
    n = scale.n_clients * scale.each
    all_train, all_test = images()
    train, test = random_examples(all_train, n, seed), random_examples(all_test, max(n // 4, 1), seed)
    drawn = PARTITIONS[name](train, test, scale.n_clients, seed=seed, val_fraction=0.2, **options)
    drawn = permuted(drawn, seed) if setting == "permuted labels" else drawn
    return with_public(drawn, random_examples(all_train, N_PUBLIC, seed, skip=n))


def permuted(drawn: Federation, seed: int) -> Federation:
    """The clients in four groups, each of which calls the ten classes by another order of their names.

    The pools are kept once for each group, so that a row has its group's label.
    """
    rng, n_clients = np.random.default_rng(seed), drawn.train.n_clients
    group = np.arange(n_clients) % N_GROUPS
    names = np.stack([rng.permutation(10) for _ in range(N_GROUPS)])

    def renamed(data: ClientData) -> ClientData:
        x, y, n = np.asarray(data.pool.x), np.asarray(data.pool.y), len(data.pool.y)
        y = np.concatenate([names[g][y] for g in range(N_GROUPS)])
        shifted = np.asarray(data.index) + (n * group)[:, None]
        pool = as_arrays(on_host(np.concatenate([x] * N_GROUPS), y))
        return data._replace(pool=pool, index=jnp.asarray(shifted))

    splits: dict[str, Any] = {name: renamed(getattr(drawn, name)) for name in ("train", "val", "test")}
    return drawn._replace(**splits, group=jnp.asarray(group, jnp.int32))


def method_and_hyper(entry: Entry, value: float) -> tuple[Any, Any]:
    """The method and its numbers with ``value`` for the one that is chosen."""
    factory = fljax.ALGORITHMS[entry.name]
    numbers = {"lr": LR, **entry.numbers, entry.tuned: value}
    return factory(mlp((28, 28, 1), (64,)), Work(2, 16), **entry.choices), factory.Hyper(**numbers)


def federations(setting: str, n_seeds: int, scale: Scale) -> tuple[Federation, list[Federation]]:
    """The one that numbers are chosen on, tested on its validation data, and those of the table, all of one shape."""
    drawn = [federation(setting, seed, scale) for seed in (TUNING_SEED, *range(n_seeds))]
    for_tuning: dict[str, Any] = {"test": drawn[0].val}
    on_val, *of_table = same_shapes([drawn[0]._replace(**for_tuning), *drawn[1:]])
    return on_val, of_table


def candidate_accuracies(
    entry: Entry, setting: str, on_val: Federation, scale: Scale, folder: Path
) -> dict[float, float]:
    """The candidates for an entry's number, and the validation accuracy in per cent that each reaches."""
    accuracies = {}
    for value in entry.candidates:
        algorithm, numbers = method_and_hyper(entry, value)
        run_folder = folder / run_folder_name(entry.name, setting, f"{entry.tuned}={value:g}", scale)
        run, _ = resumed(algorithm, numbers, on_val, jax.random.key(TUNING_SEED), scale.rounds, folder=run_folder)
        accuracies[value] = 100 * float(run.metrics["accuracy_macro"][-1])
    return accuracies


def run_folder_name(method: str, setting: str, variant: str, scale: Scale) -> str:
    """The folder of a run."""
    return f"{method}-{setting}-{variant}{'-smoke' * scale.smoke}".replace(" ", "_")


def measured(metrics: Mapping[str, np.ndarray], seconds: float) -> dict[str, float]:
    """The columns of the table, of one run."""
    accuracy = np.asarray(metrics["accuracy_macro"])
    floats: Any = sum(
        np.asarray(metrics[direction], np.float64).reshape(len(accuracy), -1) for direction in ("uplink", "downlink")
    )
    per_participant = floats if floats.shape[1] > 1 else floats * np.asarray(metrics["ids"]).shape[1]
    ari = np.asarray(metrics["ari"]) if "ari" in metrics else None
    return {
        "accuracy": 100 * float(accuracy[-1]),
        "p10": 100 * float(metrics["accuracy_p10"][-1]),
        "rounds to 95 %": float(np.argmax(accuracy >= 0.95 * accuracy[-1]) + 1),
        "megabytes": BYTES * float(per_participant.sum()) / 1e6,
        "seconds": seconds,
    } | ({} if ari is None else {"ARI": float(ari[-1]), "best ARI": float(ari.max())})


def run(method: str, setting: str, options: argparse.Namespace, scale: Scale, clients: Any) -> None:
    """Chooses a method's number, runs it on every seed and keeps the lines after each run."""
    entry, (on_val, test_federations) = ENTRIES[method], clients
    accuracies = candidate_accuracies(entry, setting, on_val, scale, options.folder)

    def keep_lines(seed: int, value: float, columns: Mapping[str, float], seconds: float) -> None:
        run_fields = (None, scale.rounds, seconds, settings_of_run(scale, entry, value))
        lines = [Outcome(method, setting, seed, name, x, *run_fields) for name, x in columns.items()]
        with ONE_WRITER:
            keep(options.results, "leaderboard", "table", "MNIST", lines)

    for value, accuracy in accuracies.items():
        keep_lines(TUNING_SEED, value, {f"validation at {entry.tuned}={value:g}": accuracy}, 0.0)
    value = max(accuracies, key=lambda value: accuracies[value])
    for seed, federation in enumerate(test_federations):
        algorithm, numbers = method_and_hyper(entry, value)
        run_folder = options.folder / run_folder_name(entry.name, setting, str(seed), scale)
        run, seconds = resumed(algorithm, numbers, federation, jax.random.key(seed), scale.rounds, folder=run_folder)
        columns = measured(run.metrics, seconds)
        keep_lines(seed, value, columns, seconds)
        print(f"{method}, {setting}, seed {seed}: {columns['accuracy']:.2f}", flush=True)


def main() -> None:
    """Runs what is asked for: a setting after another, in it a method after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one seed of 8 clients of 60 images, 4 rounds")
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, default=list(ENTRIES), metavar="METHOD")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--folder", type=Path, default=Path("results/leaderboard"), help="of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of the lines")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not options.smoke:
        use_all_cores()
    cache_compilations()
    scale = Scale(True, 8, 60, 4) if options.smoke else Scale(False, 20, 200, 40)
    for setting in options.settings:
        clients = federations(setting, 1 if options.smoke else options.seeds, scale)
        run_one = partial(run, setting=setting, options=options, scale=scale, clients=clients)
        if options.smoke:  # nearly all of it is compilation: each method once, side by side, on one device
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                list(threads.map(run_one, options.only if setting == options.settings[0] else options.only[:1]))
        else:
            for method in options.only:
                run_one(method)


def settings_of_run(scale: Scale, entry: Entry, value: float) -> str:
    """How a line was run."""
    numbers = {"lr": LR, **entry.numbers, entry.tuned: value}
    return described(not scale.smoke, scale.rounds, scale.rounds, method=entry.name, **entry.choices, **numbers)


if __name__ == "__main__":
    with data_here():
        main()
