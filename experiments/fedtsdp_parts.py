"""FedTSDP: its stages, when it clusters, how deep it shares, how it samples, and what tells clients apart.

    python experiments/fedtsdp_parts.py [figure3 figure9 figure11 hopkins sampling groups] [--scale smoke|paper]

Smoke and paper's scale are those of fedtsdp.py. Figure 6 is not made: the text does not say what it shows. Lines and
figures are in results/fedtsdp/.
"""

from collections.abc import Callable
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from fedtsdp_methods import MOST_SEEDS, SETTINGS, compared, n_rounds, network, optimizer, runs, systems, work
from lines import keep_curves, keep_numbers, keep_runs
from reporting import Methods, Result, Scale, compare, main
from table_figures import maps, over_rounds
from tables import first_round, last, published, show, spread, table

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedtsdp import fedtsdp
from fljax.algorithms.fedtsdp.partition import Stages
from fljax.algorithms.fedtsdp.public_batch import Growth
from fljax.client import local_optimizer, train_clients, training_loss
from fljax.data.datasets import load
from fljax.data.federation import build
from fljax.data.partition import PARTITIONS
from fljax.data.partition.deal import merge
from fljax.rounds.cohort import sample_cohort
from fljax.server.distance import pairwise_l2
from fljax.server.divergence import js_divergence
from fljax.types import Examples, Federation, Work

STAGES = get_args(Stages)
WAYS = get_args(Growth)
DRAWS = {"mean of 20 draws": 20, "one draw": 1}


def figure9(scale: Scale) -> None:
    """Figure 9: two stages against each alone, Dirichlet 0.5, and the round from which both are best to the end."""
    model, local_work, hyper = network(scale.paper), work(scale), fljax.fedtsdp.Hyper(**optimizer(scale))
    methods: Methods = {stages: (fedtsdp(model, local_work, stages=stages), hyper) for stages in STAGES}
    setting = "Dirichlet 0.5"
    results = compared(scale, "figure9", methods, (setting,), evaluate_every=1)
    rows = table(results, {"accuracy_micro": last("accuracy_micro"), "clusters": last("n_clusters")})
    columns, data = {"accuracy_micro": last("accuracy_micro")}, scale.pick("digits", "cifar10")
    place = ("FedTSDP", "Fig9", "runs")
    keep_runs(scale, place, results, columns, n_rounds(scale), data=data)
    keep_curves(scale, place, results, ["accuracy_micro"], n_rounds(scale), data=data)
    if len({r.method for r in results}) == len(methods):
        keep_best_round(scale, results)
    figure = over_rounds(results, "accuracy_micro", "test accuracy, by test size")
    about = f"{data}, {setting}, {about_run(scale)}; bands: least to most"
    show(scale, "figure9", "FedTSDP, Figure 9: the two stages and each alone", rows, figure, place, about)


def about_run(scale: Scale) -> str:
    """Clients, rounds and seeds of the tables' runs."""
    return f"20 clients, {scale.rounds or n_rounds(scale)} rounds, {scale.seeds_in_words}"


def keep_best_round(scale: Scale, results: list[Result]) -> None:
    """The figure's one published number, a line a seed."""
    by_seed = {(r.method, r.seed): np.asarray(r.metrics["accuracy_micro"]) for r in results}
    setting, method, metric = "Dirichlet 0.5", "two-stage best after round", "round_approx"
    numbers = {
        (method, setting, seed, metric): best_from(curve, [by_seed[stage, seed] for stage in ("outputs", "weights")])
        for (name, seed), curve in by_seed.items()
        if name == "both"
    }
    stated = {(setting, method, metric): published("FedTSDP", "CIFAR10", setting, method, metric)}
    done_rounds = min(len(r.metrics["ids"]) for r in results)
    place, data = ("FedTSDP", "Fig9", "CIFAR10"), scale.pick("digits", "cifar10")
    keep_numbers(scale, place, numbers, (done_rounds, n_rounds(scale)), stated, data=data)


def best_from(ours: np.ndarray, others: list[np.ndarray]) -> float:
    """The round (from 1) from which a curve, smoothed over five rounds, stays above the others; NaN if never.

    As good as another is not above: at smoke scale two stages may cluster as one does.
    """
    smooth = lambda curve: np.convolve(curve, np.ones(5) / 5, "valid")  # noqa: E731
    rounds_behind = np.flatnonzero(smooth(ours) <= np.max([smooth(curve) for curve in others], axis=0))
    first = rounds_behind[-1] + 1 if len(rounds_behind) else 0
    return float(first + 5) if first + 5 <= len(ours) else float("nan")


def sampling(scale: Scale) -> None:
    """How the public images are drawn: by weights as resolved, as printed, or evenly (Dirichlet 0.2)."""
    model, local_work, hyper = network(scale.paper), work(scale), fljax.fedtsdp.Hyper(**optimizer(scale))
    methods: Methods = {way: (fedtsdp(model, local_work, sampling=way), hyper) for way in WAYS}
    setting = "Dirichlet 0.2"
    results = compared(scale, "sampling", methods, (setting,))
    columns = {"accuracy_micro": last("accuracy_micro"), "fired_share": lambda r: float(r.metrics["fired"].mean())}
    place = ("FedTSDP", "sampling", scale.pick("digits", "cifar10"))
    keep_runs(scale, place, results, columns, n_rounds(scale), clients=20)
    show(scale, "sampling", "Sampling of public images, Dirichlet 0.2", table(results, columns))


def figure3(scale: Scale) -> None:
    """Figure 3's question: does the distance of gradients or that of outputs tell which clients have other classes?

    Three clients of classes 1, 2, 3 and three of 8, 9, 0, after one round's training from one model. The paper's toy is
    not described beyond this, so that its distances are not to be compared with ours.
    """
    model, local_work, sgd = network(scale.paper), work(scale), optimizer(scale)
    rows, ratios, panels = [], {}, []
    for seed in range(scale.n_seeds):
        start = model.init(jax.random.key(seed))
        federation = two_kinds(scale, seed)
        cohort = sample_cohort(jax.random.key(seed), jnp.int32(0), federation, 6, None)
        starts = tree.everyone(start, 6)
        client_optimizer = local_optimizer(fljax.fedtsdp.Hyper(**sgd), local_work, jnp.int32(0))
        trained = train_clients(
            cohort.key, starts, cohort.data, training_loss(model), client_optimizer, local_work
        ).params
        updates = tree.flatten(tree.subtract(trained, tree.broadcast(start, 6)))
        images = federation.test.pool.x[-300:]
        outputs = jnp.stack(
            [jax.nn.softmax(model.apply(tree.take(trained, jnp.int32(i)), images, None)[0]) for i in range(6)]
        )
        distances = {"gradients, L2": pairwise_l2(updates), "outputs, Jensen-Shannon": js_divergence(outputs)}
        is_same_kind = np.equal.outer(np.arange(6) < 3, np.arange(6) < 3)
        for name, distance in distances.items():
            distance = np.asarray(distance)
            within, across = distance[is_same_kind & ~np.eye(6, dtype=bool)].mean(), distance[~is_same_kind].mean()
            rows.append({"seed": seed, "distance": name, "within": within, "across": across, "ratio": across / within})
            ratios[name, "two kinds", seed, "across / within"] = across / within
            if seed == 0:
                panels.append((f"{name}: across / within {across / within:.1f}", distance))
    data = scale.pick("digits", "cifar10")
    place = ("FedTSDP", "Fig3", data)
    keep_numbers(scale, place, ratios, (1, 1), clients=6)
    about = f"{data}, clients 0-2: classes 1, 2, 3; 3-5: classes 8, 9, 0; round 1, seed 0"
    title = "FedTSDP, Figure 3: distances of two kinds of clients"
    show(scale, "figure3", title, rows, maps(panels, ["distance"] * len(panels)), place, about)


def two_kinds(scale: Scale, seed: int) -> Federation:
    """Three clients of classes 1, 2, 3 and three of 8, 9, 0, each with a third of its classes' images."""
    train, test = (Examples(split.x, split.y) for split in load(scale.pick("digits", "cifar10")))
    rng, owned = np.random.default_rng(seed), []
    for classes in ((1, 2, 3), (8, 9, 0)):
        rows = rng.permutation(np.flatnonzero(np.isin(np.asarray(train.y), classes)))
        owned += np.array_split(rows, 3)
    return build(merge(train, test), owned, seed=seed)


def figure11(scale: Scale) -> None:
    """Figure 11: the number of shared layers over the rounds."""
    alone, data, place = (
        scale._replace(only=("FedTSDP",)),
        scale.pick("digits", "cifar10"),
        ("FedTSDP", "Fig11", "runs"),
    )
    results = [result for setting in SETTINGS for result in runs(alone, setting)]
    keep_curves(scale, place, results, ["shared_layers"], n_rounds(scale), data=data)
    share: Callable[[Result], float] = lambda r: last("downlink")(r) / last("uplink")(r)  # noqa: E731
    rows = table(results, {"layers shared": last("shared_layers"), "share of parameters": share})
    figure = over_rounds(results, "shared_layers", f"layers shared, of {scale.pick(2, 4)}", by_setting=True)
    about = f"{data}, {about_run(scale)}; bands: least to most"
    show(scale, "figure11", "FedTSDP, Figure 11: shared layers", rows, figure, place, about)


def hopkins(scale: Scale) -> None:
    """The statistic over five seeds: its level, the noise of one draw, how often it fires (on IID data: falsely)."""
    five_seeds = scale._replace(n_seeds=max(MOST_SEEDS, scale.n_seeds))
    model, local_work = network(scale.paper), work(scale)
    sgd = optimizer(scale)
    methods: Methods = {
        name: (fedtsdp(model, local_work, n_draws=n), fljax.fedtsdp.Hyper(**sgd)) for name, n in DRAWS.items()
    }
    results = compared(five_seeds, "hopkins", methods, SETTINGS)
    columns: dict[str, Callable[[Result], float]] = {
        "H": lambda r: r.metrics["hopkins"].mean(),
        "H first round": lambda r: r.metrics["hopkins"][0],
        "std over rounds": lambda r: r.metrics["hopkins"].std(),
        "fires, % of rounds": lambda r: 100 * r.metrics["fired"].mean(),
    }
    place = ("FedTSDP", "hopkins", scale.pick("digits", "cifar10"))
    keep_runs(scale, place, results, columns, n_rounds(scale), clients=20)
    rows = table(results, columns)
    first_way = [result for result in results if result.method == results[0].method]
    figure = over_rounds(first_way, "hopkins", "Hopkins statistic", by_setting=True)
    show(scale, "hopkins", "Hopkins statistic (threshold 0.65)", rows, figure)


def groups(scale: Scale) -> None:
    """True groups on rotated and dominant-label digits, 12 clients in 4 groups: found, when, and at what gain?"""
    data, planned = scale.pick(("digits", 30), ("cifar10", 100))
    train, test = load(data)
    model, local_work, rounds = network(scale.paper), Work(5, 16), scale.rounds or planned
    by_setting = {
        "rotation": [
            PARTITIONS["rotated_groups"](train, test, 12, seed=s, n_groups=4, n_public=100)
            for s in range(scale.n_seeds)
        ],
        "dominant label": [
            PARTITIONS["dominant_label_groups"](train, test, 12, seed=s, n_groups=4, beta=0.8, n_public=100)
            for s in range(scale.n_seeds)
        ],
    }
    sgd = {"lr": 0.1, "momentum": 0.5}
    methods: Methods = {
        "FedTSDP": (fedtsdp(model, local_work), fljax.fedtsdp.Hyper(**sgd, eps_outputs=0.1, eps_weights=3.0)),
        "FedAvg": (fedavg(model, local_work), fljax.fedavg.Hyper(**sgd)),
    }
    results = compare(methods, by_setting, rounds)
    group_columns: dict[str, Callable[[Result], float]] = {
        "ARI": last("ari"),
        "first round of ARI 1": first_round("ari", lambda ari: ari > 0.999),
        "share of rounds": lambda result: (result.metrics["ari"] > 0.999).mean(),
        "clusters": last("n_clusters"),
    }
    accuracy, rows = {"accuracy_macro": last("accuracy_macro")}, []
    for setting in by_setting:
        ours, baseline = ([r for r in results if (r.setting, r.method) == (setting, name)] for name in methods)
        for runs_of, columns in ((ours, accuracy | group_columns), (baseline, accuracy)):
            keep_runs(scale, ("FedTSDP", "groups", data), runs_of, columns, planned, clients=12)
        row, baseline_row = table(ours, accuracy | group_columns)[0], table(baseline, accuracy)[0]
        margin = np.subtract(row["accuracy_macro"].values, baseline_row["accuracy_macro"].values)
        rows += [row | {"over FedAvg": spread(margin)}, baseline_row]
    show(scale, "groups", f"True groups within {rounds} rounds", rows)


if __name__ == "__main__":
    functions = (figure3, figure9, figure11, hopkins, sampling, groups)
    names = lambda scale: (*systems(scale), *STAGES, *WAYS, *DRAWS)  # noqa: E731
    main(__doc__ or "", {f.__name__: f for f in functions}, only=names)
