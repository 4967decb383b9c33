"""DC-PFL (Liu et al.): Tables I and II, and the ablation. Groups, discrepancy and layers: dcpfl_parts.py.

    python experiments/dcpfl.py [table2 ablation table1 settings ablation_cifar10] [--scale smoke|paper] [--seeds N]
    python experiments/dcpfl.py table2 --scale paper --seeds 1 --only Mid FedAvg DC-PFL --rounds 20   # a beginning

FLJAX_DATA names the folder with fashion_mnist and cifar10; CIFAR-10 there may be recompressed with loss. What came out
is in results/dc-pfl/, and beside the published numbers in the table that reproduction.py prints. Hidden groups and IID
clients: hidden_groups.py. Smoke: 12 clients, a dense network, 40 rounds; CIFAR-10 by name only.

"DC-PFL" judges a trial by training losses, as the paper does. "DC-PFL, validation loss" holds a tenth of each client's
data back for it, so that it trains on less. The paper does not say when a run has converged; `converged` is ours, and
seconds depend on it. Its machine is a processor fitted to one published number (`processor`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dcpfl_methods import (
    BANDS,
    LR,
    MOMENTUM,
    N_ROUNDS,
    PUBLISHED_NAME,
    communication,
    converged,
    effort,
    network,
    paper_bands,
    settings_of_run,
    steps,
    total_time,
    uplink_share,
)
from derived import RATIO
from lines import keep_curves
from outcomes import Outcome, keep, outcomes
from reporting import Methods, Result, Scale, compare, main
from table_figures import over_rounds
from tables import beside, last, published, show, table

import fljax
from fljax.algorithms.clusterfl import clusterfl
from fljax.algorithms.dcpfl import dcpfl
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.perfedavg import perfedavg
from fljax.algorithms.standalone import standalone
from fljax.client.steps import whole_epochs
from fljax.types import Federation, Model

VALIDATED = "DC-PFL, validation loss"
HELD_BACK = 0.1
"""Of a client's data, for the trials of `VALIDATED`."""

SMOKE_ROUNDS = 40


def contenders(model: Model, scale: Scale, sgd: Mapping[str, Any] | None = None) -> tuple[Methods, Methods]:
    """The table's methods, and those that need a validation split; None: they step as in the tables."""
    work, sgd = effort(scale), steps(scale) if sgd is None else sgd
    methods = {
        "Standalone": (standalone(model, work), fljax.standalone.Hyper(**sgd)),
        "FedAvg": (fedavg(model, work), fljax.fedavg.Hyper(**sgd)),
        "Per-FedAvg": (perfedavg(model, work), fljax.perfedavg.Hyper(**sgd, inner_lr=sgd["lr"])),
        "ClusterFL": (clusterfl(model, work, scale.pick(4, 5)), fljax.clusterfl.Hyper(**sgd)),
        "DC-PFL": (dcpfl(model, work, trial_loss="train"), fljax.dcpfl.Hyper(**sgd)),
    }
    return methods, {VALIDATED: (dcpfl(model, work, trial_loss="val"), fljax.dcpfl.Hyper(**sgd))}


def names(dataset: str, scale: Scale) -> list[str]:
    """Names of all `contenders`."""
    return [method for part in contenders(network(dataset, scale), scale) for method in part]


def columns(dataset: str, epochs: int) -> dict[str, Callable[[Result], float]]:
    """The table's quantities, as published.csv calls them."""
    return {
        "final_acc": last("accuracy_macro"),
        "comm_rounds": converged,
        "comm_time_s": communication,
        "total_time_s": lambda result: total_time(result, dataset, epochs),
    }


def with_ratio(
    results: list[Result], quantities: dict[str, Callable[[Result], float]]
) -> dict[str, Callable[[Result], float]]:
    """The quantities, and total time as a share of DC-PFL's where that has been run on the same clients.

    No line is kept of the share: `derived.py` has it from the seconds.
    """
    total_seconds = {(r.setting, r.seed): quantities["total_time_s"](r) for r in results if r.method == "DC-PFL"}
    ratio = lambda r: quantities["total_time_s"](r) / total_seconds.get((r.setting, r.seed), np.nan)  # noqa: E731
    return quantities | {RATIO: ratio}


def numbers(
    dataset: str, cells: set[tuple[str, str]], metrics: Mapping[str, object]
) -> dict[tuple[str, str, str], float]:
    """(setting, method, metric) -> what the paper states; Standalone has no rounds of communication."""
    return {
        (setting, method, metric): published("DC-PFL", PUBLISHED_NAME[dataset], setting, method, metric)
        for setting, method in cells
        for metric in metrics
        if method != VALIDATED and not (method == "Standalone" and metric in ("comm_rounds", "comm_time_s"))
    }


def run(scale: Scale, name: str, dataset: str) -> tuple[list[Result], dict[tuple[str, str], Federation]]:
    """All runs of a table, and the first federation of each (setting, method)."""
    n_rounds, model = scale.rounds or scale.pick(SMOKE_ROUNDS, N_ROUNDS[dataset]), network(dataset, scale)
    folder, results, federations = scale.pick(None, scale.folder / "runs" / name), [], {}
    chosen_names = scale.chosen(dict.fromkeys(names(dataset, scale)))
    for candidates, held_back in zip(contenders(model, scale), (0.0, HELD_BACK), strict=True):
        methods = {method: candidates[method] for method in candidates if method in chosen_names}
        if methods:
            settings = paper_bands(dataset, scale, held_back)
            federations |= {(setting, method): settings[setting][0] for setting in settings for method in methods}
            results += compare(methods, settings, n_rounds, evaluate_every=1, folder=folder)
    return results, federations


def comparison(name: str, number: str, dataset: str, scale: Scale) -> None:
    """Final accuracy, rounds and seconds of a table, beside the published ones."""
    results, federations = run(scale, name, dataset)
    quantities = columns(dataset, whole_epochs(effort(scale), "total time"))
    shown_quantities = with_ratio(results, quantities)
    stated, planned = numbers(dataset, set(federations), shown_quantities), scale.pick(SMOKE_ROUNDS, N_ROUNDS[dataset])
    text_of = lambda r: settings_of_run(scale, federations[r.setting, r.method], planned, r, **steps(scale))  # noqa: E731
    lines = outcomes(results, quantities | {"groups": groups}, stated, text_of)
    is_extra = lambda line: line.metric == "groups" or line.method == VALIDATED  # noqa: E731 - beside what is published
    lines = [line for line in lines if (line.setting, line.method, line.metric) in stated or is_extra(line)]
    lines = [line for line in lines if np.isfinite(line.value)]
    keep(scale.results, "DC-PFL", number, PUBLISHED_NAME[dataset], lines)
    rows = table(
        results, shown_quantities | {"uplink share": uplink_share, "groups": groups, "run s": lambda r: r.seconds}
    )
    for metric in shown_quantities:
        cells = {(s, m): value for (s, m, named), value in stated.items() if named == metric}
        rows = beside(rows, metric, cells, name=metric)
    draw_curves(scale, number, dataset, results, planned)
    show(scale, name, f"{dataset}: accuracy, rounds and seconds", rows)


def draw_curves(scale: Scale, number: str, dataset: str, results: list[Result], planned: int) -> None:
    """Accuracy over the rounds, a figure for each band."""
    for setting in dict.fromkeys(result.setting for result in results):
        band_results = [result for result in results if result.setting == setting]
        place = ("DC-PFL", f"{number}-{setting}-curves", PUBLISHED_NAME[dataset])
        keep_curves(scale, place, band_results, ["accuracy_macro"], planned, clients=scale.pick(12, 50))
        figure = over_rounds(band_results, "accuracy_macro", "test accuracy")
        about = f"{place[2]}, {scale.pick(12, 50)} clients, {scale.seeds_in_words}; bands: least to most"
        rows = table(band_results, {"accuracy": last("accuracy_macro")})
        show(scale, place[1], f"DC-PFL and rivals: accuracy over the rounds, {setting}", rows, figure, place, about)


def groups(result: Result) -> float:
    """Groups at the end; NaN for a method that has none."""
    return float(result.metrics["n_clusters"][-1]) if "n_clusters" in result.metrics else float("nan")


def table1(scale: Scale) -> None:
    """Table I: CIFAR-10."""
    comparison("table1", "T1", "cifar10", scale)


def table2(scale: Scale) -> None:
    """Table II: Fashion-MNIST."""
    comparison("table2", "T2", "fashion_mnist", scale)


STEPS: Mapping[str, dict[str, float | None]] = {
    "momentum 0.9": {"lr": LR, "momentum": MOMENTUM},
    "no momentum": {"lr": LR, "momentum": None},
    "no momentum, half the step": {"lr": LR / 2, "momentum": None},
}
"""How clients may step, which the paper does not say."""

BY_TENSORS = "DC-PFL, by tensors"
"""DC-PFL that averages kernels and biases each at an interval of its own, not whole layers."""


def settings(scale: Scale) -> None:
    """Table II's Mid band for each of `STEPS`, and DC-PFL by tensors beside: accuracy, and when it has converged."""
    dataset = "fashion_mnist"
    model, work = network(dataset, scale), effort(scale)
    mid = paper_bands(dataset, scale._replace(only=("Mid",)))["Mid"]
    folder, planned, results = (
        scale.pick(None, scale.folder / "runs" / "settings"),
        scale.pick(SMOKE_ROUNDS, N_ROUNDS[dataset]),
        [],
    )
    for name, sgd in scale.chosen(STEPS).items():
        by_tensors = dcpfl(model, work, trial_loss="train", layer_unit="tensor"), fljax.dcpfl.Hyper(**sgd)
        methods = scale.chosen({**contenders(model, scale, sgd)[0], BY_TENSORS: by_tensors})
        results += compare(methods, {name: mid}, scale.rounds or planned, evaluate_every=1, folder=folder)
    table_columns = columns(dataset, whole_epochs(work, "total time"))
    quantities = table_columns | {"uplink_share": uplink_share, "groups": groups}
    table_name = {r.method: r.method.partition(",")[0] for r in results}
    published_mid = numbers(dataset, {("Mid", method) for method in table_name.values()}, table_columns)
    stated = {
        (r.setting, r.method, metric): value
        for r in results
        for (_, method, metric), value in published_mid.items()
        if method == table_name[r.method]
    }
    text_of = lambda r: settings_of_run(scale, mid[r.seed], planned, r, **STEPS[r.setting])  # noqa: E731
    lines = [line for line in outcomes(results, quantities, stated, text_of) if np.isfinite(line.value)]
    keep(scale.results, "DC-PFL", "settings", "FMNIST", lines)
    show(scale, "settings", "fashion_mnist, Mid, by the clients' steps", table(results, quantities))


PARTS: Mapping[str, Mapping[str, Any]] = {"Comp": {}, "NoDC": {"dynamic": False}, "NoLA": {"layerwise": False}}
"""The method and what is left out of it: choices of `dcpfl`."""


def ablation(scale: Scale) -> None:
    """Without dynamic clusters (NoDC: threshold 0.8) and without layer-wise aggregation (NoLA), Fashion-MNIST.

    With momentum at either scale.
    """
    without_parts(scale, "ablation", "fashion_mnist")


def ablation_cifar10(scale: Scale) -> None:
    """As `ablation`, of CIFAR-10."""
    without_parts(scale, "ablation_cifar10", "cifar10")


def without_parts(scale: Scale, name: str, dataset: str) -> None:
    """The method with and without its parts on the Mid band."""
    model, work = network(dataset, scale), effort(scale)
    hyper = fljax.dcpfl.Hyper(lr=LR, momentum=MOMENTUM)
    methods = {part: (dcpfl(model, work, trial_loss="train", **options), hyper) for part, options in PARTS.items()}
    settings = paper_bands(dataset, scale._replace(only=("Mid",)))
    folder, planned = scale.pick(None, scale.folder / "runs" / name), scale.pick(SMOKE_ROUNDS, N_ROUNDS[dataset])
    n_rounds = scale.rounds or planned
    results = compare(scale.chosen(methods), settings, n_rounds, evaluate_every=1, folder=folder)
    epochs = whole_epochs(work, "total time")
    quantities = {"final_acc": last("accuracy_macro"), "total_time_s": lambda r: total_time(r, dataset, epochs)}
    text_of = lambda r: settings_of_run(scale, settings["Mid"][r.seed], planned, r)  # noqa: E731
    keep(scale.results, "DC-PFL", "ablation", PUBLISHED_NAME[dataset], outcomes(results, quantities, {}, text_of))
    if len({result.method for result in results}) == len(methods):
        keep_ablation(scale, dataset, results, settings["Mid"], planned)
    table_columns = {
        "accuracy": last("accuracy_macro"),
        "groups": groups,
        "uplink s": communication,
        "uplink share": uplink_share,
    }
    show(scale, name, f"{dataset}, Mid: what each part of the method does", table(results, table_columns))


def keep_ablation(
    scale: Scale, dataset: str, results: list[Result], federations: list[Federation], planned: int
) -> None:
    """The two numbers of the ablation's text: points lost without clusters, and longer total time without layers."""
    by_cell = {(r.method, r.seed): r for r in results}
    accuracy = lambda r: 100 * float(r.metrics["accuracy_macro"][-1])  # noqa: E731
    time = lambda r: total_time(r, dataset, whole_epochs(effort(scale), "total time"))  # noqa: E731
    values = {
        ("NoDC-Comp", "acc_drop_pp"): lambda seed: accuracy(by_cell["Comp", seed]) - accuracy(by_cell["NoDC", seed]),
        ("NoLA/Comp", "total_time_increase_pct"): lambda seed: (
            100 * (time(by_cell["NoLA", seed]) / time(by_cell["Comp", seed]) - 1)
        ),
    }
    lines = []
    for (method, metric), value in values.items():
        theirs = published("DC-PFL", PUBLISHED_NAME[dataset], "ablation", method, metric)
        for result in (r for r in results if r.method == "Comp"):
            n_rounds, text = (
                len(result.metrics["ids"]),
                settings_of_run(scale, federations[result.seed], planned, result, band="Mid"),
            )
            seconds = sum(r.seconds for r in results if r.seed == result.seed)
            ours = value(result.seed)
            lines.append(Outcome(method, "ablation", result.seed, metric, ours, theirs, n_rounds, seconds, text))
    keep(scale.results, "DC-PFL", "text", PUBLISHED_NAME[dataset], lines)


if __name__ == "__main__":
    functions = (table1, table2, settings, ablation, ablation_cifar10)
    main(
        __doc__ or "",
        {f.__name__: f for f in functions},
        n_seeds=(3, 3),
        if_named=("table1", "settings", "ablation_cifar10"),
        only=lambda scale: (*names("fashion_mnist", scale), *STEPS, BY_TENSORS, *PARTS, *BANDS),
    )
