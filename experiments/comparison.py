"""Every method on the same clients: Fashion-MNIST IID, label skew of three kinds, and rotated groups.

    python experiments/comparison.py                       # all methods, all settings, 3 seeds
    python experiments/comparison.py --seeds 5 --only fedavg standalone fedtsdp
    python experiments/comparison.py --scale paper         # 50 clients, 100 rounds: work for a GPU

Smoke: 20 clients of 250 images, 10 rounds of 2 epochs, one learning rate (0.1) for all.

What came out (2 cores shared with other work, jax 0.10.2, 2,543 s): accuracy_macro, mean of 3 seeds, and the MB that a
client sends and receives in all under Dirichlet 0.2; standard deviations, tenth percentiles and seconds are in the
files of the results folder.

                             IID  Dir. 0.2  2 classes  rotated  few-shot     MB
    fedavg_ft              0.738     0.885      0.948    0.648     0.858   1.15
    fedcr                  0.729     0.875      0.942    0.641     0.837   1.48
    fedsr_ft               0.735     0.885      0.941    0.605     0.855   1.50
    lg_fedavg              0.694     0.836      0.932    0.682     0.817   0.05
    fedsoft                0.689     0.840      0.937    0.656     0.837   2.86
    fedper                 0.718     0.864      0.931    0.622     0.822   1.09
    standalone             0.687     0.826      0.942    0.659     0.830   0.00
    fedtsdp                0.738     0.797      0.945    0.654     0.809   1.15
    clusterfl              0.684     0.820      0.943    0.660     0.833   1.15
    fedrep                 0.696     0.862      0.939    0.607     0.819   1.09
    fedcps                 0.684     0.848      0.930    0.635     0.772   2.71
    ifca                   0.736     0.780      0.819    0.723     0.760   2.86
    hypcluster             0.741     0.769      0.814    0.719     0.765   2.86
    group_pfl              0.738     0.792      0.952    0.518     0.780   1.15
    fedbabu                0.675     0.817      0.893    0.597     0.772   1.09
    robust_cfl             0.752     0.744      0.710    0.773     0.743   1.20
    ditto                  0.685     0.807      0.852    0.571     0.774   1.15
    fesem                  0.738     0.702      0.720    0.738     0.709   1.15
    fesem_ma               0.738     0.702      0.720    0.738     0.709   1.15
    cfl                    0.737     0.744      0.728    0.636     0.725   1.15
    layercfl               0.737     0.725      0.743    0.636     0.721   1.15
    fedopt                 0.756     0.731      0.700    0.589     0.713   1.15
    group_pfl_dynamic      0.734     0.724      0.744    0.574     0.711   1.15
    flc                    0.728     0.729      0.673    0.649     0.697   1.15
    adacfl                 0.733     0.692      0.717    0.631     0.691   1.15
    dcpfl                  0.738     0.711      0.665    0.522     0.695   1.15
    fedem                  0.704     0.687      0.743    0.510     0.683   3.44
    fedavg                 0.737     0.688      0.656    0.521     0.694   1.15
    fedprox                0.737     0.688      0.659    0.509     0.688   1.15
    fedsr                  0.731     0.697      0.630    0.510     0.698   1.50
    feddist                0.721     0.648      0.616    0.451     0.642   1.15
    feddws                 0.719     0.634      0.614    0.442     0.643   1.15
    perfedavg              0.469     0.668      0.856    0.371     0.652   1.15
    feddane                0.743     0.493      0.532    0.527     0.634   2.29
    fedma                  0.469     0.669      0.482    0.145     0.494   1.15
    fedsgd                 0.372     0.385      0.370    0.192     0.335   1.15

With so few rounds this compares how fast methods learn, and an untuned learning rate is kinder to some than to others.

Where a claim does not hold (36 methods, 10 rounds), and why, as far as runs of two seeds show (Dirichlet 0.2, rotated):
- Ditto stays behind training alone: its pull (lambda 1) is to a model that does not fit anybody yet. With lambda
  0.01 it is where standalone training is (0.832, 0.658); two personal epochs in place of one change nothing (0.806).
- Per-FedAvg's steps take two batches each, so half as many: after 40 rounds it has 0.832 and 0.557.
- FedMA starts every client from a model of its own, and units of a CNN with 4 and 12 channels match badly across four
  rotations; from a common start it has 0.725 and 0.538, above FedAvg (0.688, 0.521).
- FedDANE falls behind FedAvg as its own authors report; a smaller step (0.451, 0.378) or a pull of 1 (0.558, 0.490)
  does not help.
- FedProx, with little local work, is FedAvg within a hundredth.
- FedPer, FedRep and FedBABU train whole networks on 200 images; heads that start together need more rounds. After 40
  FedRep has 0.891 and 0.702, FedPer 0.885 and 0.714, FedBABU 0.852 and 0.671, standalone training 0.875 and 0.712:
  ahead under Dirichlet skew but for FedBABU, level on rotations, which a shared body has to learn all four of.
- DC-PFL looks for a first split when the loss has settled, which takes more than ten rounds: it is FedAvg here, 0.12 to
  0.28 behind training alone wherever labels are skewed. hidden_groups.py has its 80 rounds.
- Group-based PFL joins clients of like, not of equal labels: 0.03 and 0.05 behind training alone under Dirichlet skew
  and with few-shot clients, ahead with two classes. Its naive dynamic variant has two groups, of which each is nearly
  as mixed as all clients: 0.10 to 0.20 behind.
- FedTSDP shares 4 layers of its 4 at first and each trigger takes 2 % off, so little is personal after ten rounds: 0.02
  to 0.03 behind training alone under Dirichlet skew and with few-shot clients.
- FedEM's three learners need more rounds than one model: FedAvg's accuracy within 0.011, far behind training alone.
- FedSR, one model for all, is FedAvg within 0.03; LG-FedAvg shares the last layers only and is training alone within
  0.014.
- FedTSDP, LayerCFL, CFL, AdaCFL and FLC find half of the groups in ten rounds
  (ARI 0.45 to 0.53), and all of them with more epochs (hidden_groups.py).
- FedAvg-FT, FedSR-FT, FedCR, FedSoft and FedEM stay 0.00 to 0.15 behind training alone on rotations: after ten rounds
  what they share does not fit turned clothes yet. With two classes a client training alone has 0.942, and those within
  0.013 of it (FedPer, LG-FedAvg, FedRep, FedSR-FT) are level with it by their deviations.
- FedCPS divides the clients among four models whatever their data: 0.01 to 0.06 behind training alone with two classes,
  on rotations and with few-shot clients, 0.02 ahead under Dirichlet skew.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from reporting import (
    Methods,
    Result,
    Row,
    Scale,
    compare,
    last,
    main,
    same_shapes,
    show,
    some,
    table,
    with_public,
)

from fljax.algorithms import ALGORITHMS
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import cnn, variational
from fljax.run.cost import traffic_of_clients
from fljax.run.plots import COLORS
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
"""Of all methods that are told a number, in all settings: that of the rotated groups."""

CHOICES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"n_clusters": N_CLUSTERS} for name in ("ifca", "hypcluster", "fedsoft", "fesem", "fesem_ma")},
    **{name: {"n_clusters": N_CLUSTERS} for name in ("robust_cfl", "clusterfl", "fedcps")},
    "fedcps": {"n_clusters": N_CLUSTERS, "deployed": "fresh"},
    "dcpfl": {"trial_loss": "train"},  # the clients have no validation split
    "fedtsdp": {"n_public": 1000},
}
"""Static choices other than a method's own."""

SHORT_RUN: Mapping[str, Mapping[str, Any]] = {
    **{name: {"eps_share": 0.5, "eps_ratio": 2.0, "r_min": 3.0} for name in ("cfl", "layercfl", "adacfl")},
    "group_pfl_dynamic": {"one_group_rounds": 5.0},
    "dcpfl": {"warmup": 2.0, "momentum": None},
}
"""Numbers that act within a run of a few rounds; all others are a method's own."""

PROBABILISTIC = ("fedsr", "fedsr_ft", "fedcr")
GLOBAL = ("fedprox", "fedopt", "feddane", "fedma", "fedsr")
"""Methods of one model for all, which claim more than FedAvg only."""

SKEW = ("Dirichlet 0.2", "two classes", "few-shot clients")
CLAIMS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("ifca", "hypcluster", "fedsoft", "fesem", "fesem_ma", "robust_cfl"), ("rotated groups",)),
    **dict.fromkeys(("clusterfl", "layercfl", "cfl", "adacfl", "flc"), ("rotated groups",)),
    **dict.fromkeys(("dcpfl", "fedcps", "fedem", "fedtsdp", "group_pfl", "group_pfl_dynamic"), SKEW),
}
"""Method -> the settings, most like those of its paper, in which it claims to help; others claim all but IID."""


def federations(scale: Scale, setting: str) -> list[Federation]:
    """One a seed, all of the same shapes: 20 clients (paper: 50) of 250 images, a fifth of them for the test."""
    name, options = SETTINGS[setting]
    n_clients = scale.pick(20, 50)
    train, test = (Examples(split.x, split.y) for split in load("fashion_mnist"))
    n_train, n_test = n_clients * scale.pick(200, 800), n_clients * scale.pick(50, 200)
    made = []
    for seed in range(scale.n_seeds):
        owned, own_test = some(train, n_train, seed), some(test, n_test, seed)
        if name not in ("rotated_groups", "few_shot"):  # those that deal out training images only
            owned = some(train, n_train + n_test, seed)
        federation = PARTITIONS[name](owned, own_test, n_clients, seed=seed, **options)
        group = jnp.zeros(n_clients, jnp.int32) if federation.group is None else federation.group
        public = some(train, 1000, seed, skip=n_train + n_test)  # images that no client has
        made.append(with_public(federation, public)._replace(group=group))
    return made


def networks() -> tuple[Model, Model]:
    """A CNN of 14,318 parameters, and one with the same body and a Gaussian representation of 32 dimensions."""
    plain = cnn((28, 28, 1), 10, (4, 12), 5, "VALID", "each", (64,), (0.0, 0.0))
    return plain, variational((28, 28, 1), 10, latent=32, hidden=(64,), channels=(4, 12))


def methods(scale: Scale) -> Methods:
    """All of them, at one learning rate and the same epochs a round; FedBN aside, for the CNN has no normalisation."""
    plain, gaussian = networks()
    made: dict[str, Any] = {}
    for name, method in ALGORITHMS.items():
        if name == "fedbn":
            continue
        work = Work(1 if name == "fedsgd" else scale.pick(2, 5), scale.pick(25, 32))
        model = gaussian if name in PROBABILISTIC else plain
        made[name] = (
            method.factory(model, work, **CHOICES.get(name, {})),
            method.hyper(lr=0.1, **SHORT_RUN.get(name, {})),
        )
    return made


def everything(scale: Scale) -> None:
    """The table of all methods in all settings, a ranking of each setting, and the claims that do not hold."""
    made = {setting: federations(scale, setting) for setting in SETTINGS}
    flat = iter(same_shapes([federation for seeds in made.values() for federation in seeds]))
    made = {setting: [next(flat) for _ in seeds] for setting, seeds in made.items()}
    results: list[Result] = []
    for name, method in scale.chosen(methods(scale)).items():  # so that one compiled program serves all settings
        results += compare({name: method}, made, scale.pick(10, 100))
    for setting in SETTINGS:
        rows = ranking([result for result in results if result.setting == setting], setting == "rotated groups")
        show(scale, setting.replace(" ", "-"), f"Fashion-MNIST, {setting}", rows, chart(setting, rows))
    show(
        scale,
        "claims",
        "Where a paper's claim does not hold",
        misses(table(results, {"accuracy_macro": last("accuracy_macro")})),
    )


def ranking(results: Sequence[Result], grouped: bool) -> list[Row]:
    """A row for each method, the most accurate first."""

    def megabytes(result: Result) -> float:
        sent = traffic_of_clients(result.metrics, result.metrics["client_accuracy"].shape[1])
        return float((sent.uplink + sent.downlink).mean() / 1e6)

    columns = {"accuracy_macro": last("accuracy_macro"), "accuracy_p10": last("accuracy_p10"), "MB": megabytes}
    rows = table(results, columns | {"seconds": lambda result: result.seconds})
    for row in rows:
        row["seconds"] = round(float(np.median(row["seconds"].values)), 1)  # the first one compiles
        row["MB"] = round(row["MB"].mean, 2)
        own = [r.metrics["ari"][-1] for r in results if r.method == row["method"] and "ari" in r.metrics]
        if grouped:
            row["ARI"] = round(float(np.mean(own)), 2) if own else None
    return sorted(rows, key=lambda row: -row["accuracy_macro"].mean if math.isfinite(row["accuracy_macro"].mean) else 1)


def misses(rows: Sequence[Row]) -> list[Row]:
    """The claims that fail by mean accuracy: global methods against FedAvg, all others against standalone too."""
    accuracy = {(row["setting"], row["method"]): row["accuracy_macro"] for row in rows}
    found = []
    for setting, name in accuracy:
        rivals = {"fedavg"} if name in GLOBAL else {"fedavg", "standalone"}
        settled = setting == "IID" or setting not in CLAIMS.get(name, SETTINGS)
        if settled or name in ("fedavg", "standalone", "fedsgd", "feddist", "feddws"):
            continue
        for rival in sorted(rival for rival in rivals if (setting, rival) in accuracy):
            margin = accuracy[setting, name].mean - accuracy[setting, rival].mean
            if not margin > 0:
                found.append({"method": name, "setting": setting, "behind": rival, "by": f"{-margin:.4f}"})
    return found


def chart(setting: str, rows: Sequence[Row]) -> Figure:
    """Mean accuracy and tenth percentile of each method, the best on top; bars are standard deviations over seeds."""
    figure = Figure(figsize=(6.4, 0.9 + 0.22 * len(rows)), layout="constrained")
    axes, place = figure.add_subplot(), np.arange(len(rows))
    for column, color in (("accuracy_macro", COLORS[0]), ("accuracy_p10", COLORS[1])):
        cells = [row[column] for row in rows]
        mean, std = [cell.mean for cell in cells], [cell.std for cell in cells]
        axes.errorbar(mean, place, xerr=std, fmt="o", markersize=4, color=color, label=column)
    axes.set(yticks=place, yticklabels=[row["method"] for row in rows], xlabel="test accuracy", title=setting)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#E6E6E6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main(__doc__ or "", {"everything": everything})
