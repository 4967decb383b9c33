"""Published numbers that follow from others: "X beats Y by so much", drops, ratios, from the tables' own cells.

A `Rule` says which cells a row needs and how they make its number, so that a claim is checked with the runs of the
tables and needs none of its own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Cell = tuple[str, str, str, str, str, str]
"""(paper, table, dataset, setting, method, metric), as in published.csv."""


class Rule(NamedTuple):
    """How a number follows from others."""

    cells: tuple[Cell, ...]
    number: Callable[[Sequence[float]], float]


REGULAR = "gamma=none(non-iid)"
GAMMAS = tuple(f"gamma={percent}%" for percent in (10, 20, 30, 40, 50))
OTHERS = ("FedPer", "FedBABU", "Ditto", "FedCR")
BASELINES = ("FedAVG", "FedPer", "FedBABU", "Ditto", "FedSR-FT", "LG-FedAVG", "FedCR")
TABLE = {"CIFAR10": "T1", "FMNIST": "T2"}
"""Data set -> table of DC-PFL."""

RATIO = "total_time_ratio_to_DC-PFL"
"""A metric of DC-PFL's tables."""


def rule(row: Cell) -> Rule | None:
    """The rule of a published row; None where its number does not follow from others."""
    return {"FedCPS": _fedcps, "DC-PFL": _dcpfl, "FedTSDP": _fedtsdp}.get(row[0], lambda _: None)(row)


def _fedcps(row: Cell) -> Rule | None:
    paper, table, dataset, setting, method, metric = row
    if (table, metric) == ("T4", "acc_pct"):
        return Rule(((paper, "T2", dataset, "non-iid_1", method, metric),), lambda v: v[0])
    if table not in ("text", "abstract"):
        return None
    if metric == "impact_ratio":
        return _impact(paper, dataset)
    if setting == "cost":
        return _increase(paper, dataset, method)
    if setting == "k: 2->more":
        cells = [(paper, "T6", dataset, k, method, "acc_pct") for k in ("k=2", "k=3", "k>3")]
        return Rule(tuple(cells), lambda v: v[0] - (v[1] + v[2]) / 2)
    if metric == "acc_gain_pp":
        return _difference([(paper, "T2", dataset, setting, name, "acc_pct") for name in method.split("-")])
    if metric == "acc_drop_pp":
        return _difference([(paper, "T3", dataset, gamma, method, "acc_pct") for gamma in (REGULAR, setting)])
    if setting == "gamma 10-50%":
        return _range_of_drops(paper, dataset, ("FedCPS",) if method == "FedCPS" else OTHERS, metric)
    if method == "FedCPS-best_baseline":
        return _range_of_gains(paper, metric)
    return None


def _range_of_drops(paper: str, dataset: str, methods: Sequence[str], metric: str) -> Rule:
    """The least or greatest loss of a method from the regular setting to one with few-shot clients."""
    shares = (REGULAR, *GAMMAS)
    cells = tuple((paper, "T3", dataset, share, method, "acc_pct") for method in methods for share in shares)
    pick, n = (min if metric.endswith("_min") else max), len(shares)

    def number(values: Sequence[float]) -> float:
        accuracies = [values[i : i + n] for i in range(0, len(values), n)]
        return pick(regular - value for regular, *others in accuracies for value in others)

    return Rule(cells, number)


def _impact(paper: str, dataset: str) -> Rule:
    """What few-shot clients cost the others, in losses of FedCPS: the mean over the shares of such clients."""
    methods, shares = (*OTHERS, "FedCPS"), (REGULAR, *GAMMAS)
    cells = tuple((paper, "T3", dataset, share, method, "acc_pct") for share in shares for method in methods)
    n = len(methods)

    def number(values: Sequence[float]) -> float:
        regular, ratios = values[:n], []
        for i in range(n, len(values), n):
            losses = [before - after for before, after in zip(regular, values[i : i + n], strict=True)]
            ratios.append(sum(losses[:-1]) / (n - 1) / losses[-1])
        return sum(ratios) / len(ratios)

    return Rule(cells, number)


def _increase(paper: str, dataset: str, method: str) -> Rule:
    """Seconds and joules of a round beyond those of FedAvg, per cent: the mean of both."""
    quantities = ("T_comp_s", "T_comm_s", "E_comp_J", "E_comm_J")
    cells = tuple((paper, "T4", dataset, "non-iid_1", name, q) for name in (method, "FedAVG") for q in quantities)

    def number(v: Sequence[float]) -> float:
        return 50 * ((v[0] + v[1]) / (v[4] + v[5]) - 1 + (v[2] + v[3]) / (v[6] + v[7]) - 1)

    return Rule(cells, number)


def _range_of_gains(paper: str, metric: str) -> Rule:
    """The least or greatest lead over the best of the others, over all data sets and both settings."""
    places = [(d, s) for d in ("MNIST", "FMNIST", "CIFAR10", "CIFAR100") for s in ("non-iid_1", "non-iid_2")]
    methods = ("FedCPS", *BASELINES)
    cells = tuple((paper, "T2", d, s, method, "acc_pct") for d, s in places for method in methods)
    pick, n = (min if metric.endswith("_min") else max), len(methods)

    def number(values: Sequence[float]) -> float:
        return pick(values[i] - max(values[i + 1 : i + n]) for i in range(0, len(values), n))

    return Rule(cells, number)


def _dcpfl(row: Cell) -> Rule | None:
    paper, table, dataset, setting, method, metric = row
    if metric == RATIO:
        total = [(paper, table, dataset, setting, name, "total_time_s") for name in (method, "DC-PFL")]
        return Rule(tuple(total), lambda v: v[0] / v[1])
    if table != "text":
        return None
    if setting == "bands":
        return _greatest_gain(paper)
    if setting != "default":
        return None

    def mid(name: str, quantity: str) -> Cell:
        return paper, TABLE[dataset], dataset, "Mid", name, quantity

    if metric == "final_acc_pct":
        return Rule((mid(method, "final_acc"),), lambda v: 100 * v[0])
    if metric == "acc_gain_pp":
        first, second = method.rsplit("-", 1)
        return Rule((mid(first, "final_acc"), mid(second, "final_acc")), lambda v: 100 * (v[0] - v[1]))
    quantity, _, other = metric.removesuffix("_pct").partition("_reduction_vs_")
    return Rule((mid(method, f"{quantity}_s"), mid(other, f"{quantity}_s")), lambda v: 100 * (1 - v[0] / v[1]))


def _greatest_gain(paper: str) -> Rule:
    """The greatest lead over FedAvg, over both data sets and all bands."""
    cells = tuple(
        (paper, table, dataset, band, method, "final_acc")
        for dataset, table in TABLE.items()
        for band in ("Low", "Mid", "High")
        for method in ("DC-PFL", "FedAvg")
    )
    return Rule(cells, lambda v: 100 * max(v[i] - v[i + 1] for i in range(0, len(v), 2)))


_AHEAD = (("text", "FedTSDP"), ("derived", "FedPer"))


def _fedtsdp(row: Cell) -> Rule | None:
    paper, _, dataset, setting, method, metric = row
    if metric == "acc_gain_pp" and method == "FedTSDP-FedPer":
        names = (("T5/text", "FedTSDP"), ("T5/derived", "FedPer"))
        return _difference([(paper, source, dataset, setting, name, "acc_pct") for source, name in names])
    if method == "FedTSDP/FedPer - FedAvg/FedProx/Ditto":
        ahead = [(paper, f"T5/{source}", dataset, "2 classes CNN", name, "acc_pct") for source, name in _AHEAD]
        behind = [
            (paper, "T5/text", dataset, setting, name, "acc_pct_approx") for name in ("FedAvg", "FedProx", "Ditto")
        ]
        return Rule((*ahead, *behind), lambda v: sum(v[:2]) / 2 - sum(v[2:]) / 3)
    return None


def _difference(cells: Sequence[Cell]) -> Rule:
    return Rule(tuple(cells), lambda v: v[0] - v[1])
