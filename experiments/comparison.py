"""Every method on the same clients: Fashion-MNIST IID, label skew of three kinds, and rotated groups.

    python experiments/comparison.py                       # all methods, all settings, 3 seeds
    python experiments/comparison.py --seeds 5 --only fedavg standalone fedtsdp
    python experiments/comparison.py --scale paper         # 50 clients, 100 rounds: work for a GPU

Smoke: 20 clients of 250 images, 10 rounds of 2 epochs, one learning rate (0.1) for all.

What came out is in results/comparison/: a file a setting with a line for each run and number, and ``claims.csv``, where
a method does not do what it should. Calls for some methods add to those files; with ``--rounds`` there are lines only,
for tables are of whole runs. With so few rounds this compares how fast methods learn, and an untuned learning rate is
kinder to some than to others.

What is likely to keep methods behind training alone in so few rounds: Ditto's pull is to a model that does not fit
anybody yet; Per-FedAvg's steps take two batches each, so half as many; FedMA starts every client from a model of its
own, whose units match badly; FedPer, FedRep and FedBABU train whole networks on 200 images; DC-PFL looks for a first
split when the loss has settled; FedTSDP shares all layers at first; FedCPS divides the clients among four models
whatever their data; FedCP's gates and GPFL's conditions are learned first, and pFedHN's hypernetwork has made ten
steps. SCAFFOLD diverges at this learning rate, whose correction is for all of a round's steps, and does not at 0.01;
q-FFL's server takes short steps where clients take many. FedTGP's margin grows with the features that follow its
prototypes: at this learning rate some clients' networks are lost on the way, and none at 0.01. On one of the three
federations with Dirichlet shares `centralized` is lost: 4,001 examples in batches of 25 leave one for the last step of
an epoch.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from lines import keep_runs
from matplotlib.figure import Figure
from outcomes import file_of, is_whole, read
from reporting import Methods, Result, Scale, compare, main, random_examples, same_shapes, with_public
from tables import Row, last, show, spread

from fljax.algorithms import ALGORITHMS
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.metrics.cost import traffic_of_clients
from fljax.models import cnn, variational
from fljax.report.plots import COLORS
from fljax.types import Examples, Federation, Model, Work

SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "IID": ("iid", {}),
    "Dirichlet 0.2": ("dirichlet", {"beta": 0.2}),
    "two classes": ("classes_per_client", {"classes": 2}),
    "rotated groups": ("rotated_groups", {"n_groups": 4}),
    "few-shot clients": ("few_shot", {"gamma": 0.3, "val_fraction": 0.0}),
}
"""Name in the tables -> partition and its options."""

N_CLUSTERS = 4
"""Of the methods in `CHOICES` that are told it, in all settings: that of the rotated groups.

Others that are told a number have their own: FedRC, FlexCFL and FedEM 3, FLC and `group_pfl_dynamic` 2. FL+HC, PACFL
and `group_pfl`, whose number may be left out, are told none; FedClust is, whose threshold has no scale in common.
"""

CHOICES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"n_clusters": N_CLUSTERS} for name in ("ifca", "hypcluster", "fedsoft", "fesem", "fesem_ma")},
    **{name: {"n_clusters": N_CLUSTERS} for name in ("robust_cfl", "clusterfl", "fedclust", "cgpfl")},
    "fedcps": {"n_clusters": N_CLUSTERS, "deployed": "fresh"},
    "dcpfl": {"trial_loss": "train"},  # the clients have no validation split
    **{name: {"n_public": 1000} for name in ("fedtsdp", "flis")},
}
"""Static choices other than a method's own."""

SHORT_RUN: Mapping[str, Mapping[str, Any]] = {
    **{name: {"eps_share": 0.5, "eps_ratio": 2.0, "r_min": 3.0} for name in ("cfl", "layercfl", "adacfl")},
    "group_pfl_dynamic": {"one_group_rounds": 5.0},
    "dcpfl": {"warmup": 2.0, "momentum": None},
    "pfedhn": {"server_lr": 0.2},  # 20 clients make one step of the hypernetwork, each of which is 0.01 in its paper
}
"""Numbers that act within a run of a few rounds; all others are a method's own."""

PROBABILISTIC = ("fedsr", "fedsr_ft", "fedcr")

SKEW = ("Dirichlet 0.2", "two classes", "few-shot clients")
CLAIMS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("ifca", "hypcluster", "fedsoft", "fesem", "fesem_ma", "robust_cfl"), ("rotated groups",)),
    **dict.fromkeys(("clusterfl", "layercfl", "cfl", "adacfl", "flc"), ("rotated groups",)),
    **dict.fromkeys(("dcpfl", "fedcps", "fedem", "fedtsdp", "group_pfl", "group_pfl_dynamic"), SKEW),
    **dict.fromkeys(("flis", "fedclust", "cgpfl", "fedrs", "fedgc", "fedtgp", "ccvr"), SKEW),
}
"""Method -> the settings, most like those of its paper, in which it claims to help; others claim all but IID."""

NO_CLAIM = ("fedavg", "standalone", "centralized", "fedsgd", "feddist", "feddws", "hierfavg", "heterofl", "afl")
"""Methods that nobody says are more accurate on average than FedAvg or training alone."""


def federations(scale: Scale, setting: str) -> list[Federation]:
    """One a seed, all of the same shapes: 20 clients (paper: 50) of 250 images, a fifth of them for the test."""
    name, options = SETTINGS[setting]
    n_clients = scale.pick(20, 50)
    train, test = (Examples(split.x, split.y) for split in load("fashion_mnist"))
    n_train, n_test = n_clients * scale.pick(200, 800), n_clients * scale.pick(50, 200)
    drawn = []
    for seed in range(scale.n_seeds):
        train_images, test_images = random_examples(train, n_train, seed), random_examples(test, n_test, seed)
        if name not in ("rotated_groups", "few_shot"):  # those that deal out training images only
            train_images = random_examples(train, n_train + n_test, seed)
        federation = PARTITIONS[name](train_images, test_images, n_clients, seed=seed, **options)
        group = jnp.zeros(n_clients, jnp.int32) if federation.group is None else federation.group
        public = random_examples(train, 1000, seed, skip=n_train + n_test)  # images that no client has
        drawn.append(with_public(federation, public)._replace(group=group))
    return drawn


def networks() -> tuple[Model, Model]:
    """A CNN of 14,318 parameters, and one with the same body and a Gaussian representation of 32 dimensions."""
    plain = cnn((28, 28, 1), 10, (4, 12), 5, "VALID", "each", (64,), (0.0, 0.0))
    return plain, variational((28, 28, 1), 10, latent=32, hidden=(64,), channels=(4, 12))


def methods(scale: Scale) -> Methods:
    """All of them, at one learning rate and the same epochs a round; FedBN aside, for the CNN has no normalisation."""
    plain, gaussian = networks()
    contenders: dict[str, Any] = {}
    for name, method in ALGORITHMS.items():
        if name == "fedbn":
            continue
        work = Work(1 if name == "fedsgd" else scale.pick(2, 5), scale.pick(25, 32))
        model = gaussian if name in PROBABILISTIC else plain
        contenders[name] = (
            method(model, work, **CHOICES.get(name, {})),
            method.Hyper(lr=0.1, **SHORT_RUN.get(name, {})),
        )
    return contenders


def everything(scale: Scale) -> None:
    """The table of all methods in all settings, a ranking of each setting, and the claims that do not hold."""
    by_setting = {setting: federations(scale, setting) for setting in SETTINGS}
    widened = iter(same_shapes([federation for seeds in by_setting.values() for federation in seeds]))
    by_setting = {setting: [next(widened) for _ in seeds] for setting, seeds in by_setting.items()}
    planned = scale.pick(10, 100)
    for name, method in scale.chosen(methods(scale)).items():  # so that one compiled program serves all settings
        results, choices = compare({name: method}, by_setting, scale.rounds or planned), dict(method[0].about.choices)
        for setting in SETTINGS:
            setting_results = [result for result in results if result.setting == setting]
            keep_runs(scale, place(setting), setting_results, COLUMNS, planned, lr=0.1, **choices)
    rankings(scale)


def place(setting: str) -> tuple[str, str, str]:
    """Where the lines of a setting are."""
    return "comparison", setting.replace(" ", "-"), "FMNIST"


def rankings(scale: Scale) -> None:
    """Tables, charts and broken claims of all whole runs that there are, of this call and of earlier ones."""
    all_rows: list[Row] = []
    for setting in SETTINGS:
        lines = read(file_of(scale.results, *place(setting), not scale.paper))
        rows = ranking(setting, [line for line in lines if is_whole(line["settings"])])
        if rows:
            show(scale, setting.replace(" ", "-"), f"Fashion-MNIST, {setting}", rows, chart(setting, rows))
        all_rows += rows
    broken = [row | {"by": f"{row['by']:.4f}"} for row in misses(all_rows)]
    keep_misses(scale, broken)
    show(scale, "claims", "Where a paper's claim does not hold", broken)


def keep_misses(scale: Scale, rows: Sequence[Row]) -> None:
    """``claims.csv`` beside the lines."""
    with (scale.results / "comparison" / "claims.csv").open("w", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, ["method", "setting", "behind", "by"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def megabytes(result: Result) -> float:
    """Sent and received by a client, on average."""
    sent = traffic_of_clients(result.metrics, result.metrics["client_accuracy"].shape[1])
    return float((sent.uplink + sent.downlink).mean() / 1e6)


COLUMNS = {
    "accuracy_macro": last("accuracy_macro"),
    "accuracy_p10": last("accuracy_p10"),
    "MB": megabytes,
    "ari": lambda r: float(r.metrics["ari"][-1]) if "ari" in r.metrics else float("nan"),
}


def ranking(setting: str, lines: Sequence[Mapping[str, str]]) -> list[Row]:
    """A row for each method, the most accurate first; seconds are the median over seeds, for the first one compiles."""
    values: dict[tuple[str, str], list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for line in lines:
        values.setdefault((line["method"], line["metric"]), []).append(float(line["value"]))
        seconds.setdefault(line["method"], []).append(float(line["seconds"]))
    rows: list[Row] = []
    for method in dict.fromkeys(line["method"] for line in lines):
        row: Row = {"setting": setting, "method": method}
        row |= {name: spread(values.get((method, name), [np.nan])) for name in ("accuracy_macro", "accuracy_p10")}
        row |= {
            "MB": round(float(np.mean(values[method, "MB"])), 2),
            "seconds": round(float(np.median(seconds[method])), 1),
        }
        if setting == "rotated groups":
            ari_values = values.get((method, "ari"))
            row["ARI"] = round(float(np.mean(ari_values)), 2) if ari_values else None
        rows.append(row)
    return sorted(rows, key=lambda row: -np.nan_to_num(row["accuracy_macro"].mean))


def misses(rows: Sequence[Row]) -> list[Row]:
    """The claims that fail by mean accuracy: methods of one model against FedAvg, all others against standalone too.

    D-PSGD, whose clients have models of their own, is of the first: its paper claims that they come together in one as
    good as that of a server, not that they are better than training alone. Nor is HierFAVG compared, which makes rounds
    cheaper, nor HeteroFL, most of whose clients train a part of the network, nor AFL, whose aim is the worst client.
    """
    accuracy = {(row["setting"], row["method"]): row["accuracy_macro"] for row in rows}
    missed_claims = []
    for setting, name in accuracy:
        rivals = {"fedavg"} if ALGORITHMS[name].kind == "one model" else {"fedavg", "standalone"}
        is_unclaimed = setting == "IID" or setting not in CLAIMS.get(name, SETTINGS)
        if is_unclaimed or name in NO_CLAIM:
            continue
        for rival in sorted(rival for rival in rivals if (setting, rival) in accuracy):
            margin = accuracy[setting, name].mean - accuracy[setting, rival].mean
            if not margin > 0:
                missed_claims.append({"method": name, "setting": setting, "behind": rival, "by": -margin})
    return missed_claims


def chart(setting: str, rows: Sequence[Row]) -> Figure:
    """Mean accuracy and tenth percentile of each method, the best on top; bars are standard deviations over seeds."""
    figure = Figure(figsize=(6.4, 0.9 + 0.22 * len(rows)), layout="constrained")
    axes, positions = figure.add_subplot(), np.arange(len(rows))
    for column, color in (("accuracy_macro", COLORS[0]), ("accuracy_p10", COLORS[1])):
        cells = [row[column] for row in rows]
        mean, std = [cell.mean for cell in cells], [cell.std for cell in cells]
        axes.errorbar(mean, positions, xerr=std, fmt="o", markersize=4, color=color, label=column)
    axes.set(yticks=positions, yticklabels=[row["method"] for row in rows], xlabel="test accuracy", title=setting)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#E6E6E6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main(__doc__ or "", {"everything": everything}, only=methods)
