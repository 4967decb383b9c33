"""What the five papers claim of who beats whom, as pairs of cells that runs fill.

Those of tables are made from published.csv: the paper's own method against each rival in each setting, with the
published margin. Those of prose are listed. "Better" is more, but for times and rounds, where it is less.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reach import NOT_HERE

PUBLISHED = Path(__file__).with_name("published.csv")


class Claim(NamedTuple):
    """``ours`` is better than ``rival`` in a setting, where it was published ``by`` so much."""

    paper: str
    said: str  # where, or in which words
    table: str  # of the results' file
    dataset: str
    setting: str
    ours: str
    rival: str
    metric: str
    less: bool = False  # less is better
    by: float | None = None  # published, in the metric's unit; positive is better
    at_least: float = 0.0  # the smallest difference that the claim allows; below zero for "no worse than"


class Family(NamedTuple):
    """A table whose every setting is a claim against every rival."""

    paper: str
    table: str
    dataset: str
    ours: str
    metric: str
    less: bool = False


FAMILIES = (
    *(Family("FedCPS", "T2", dataset, "FedCPS", "acc_pct") for dataset in ("FMNIST", "MNIST", "CIFAR10")),
    Family("FedCPS", "T3", "CIFAR10", "FedCPS", "acc_pct"),
    *(
        Family("DC-PFL", table, dataset, "DC-PFL", metric, less)
        for table, dataset in (("T2", "FMNIST"), ("T1", "CIFAR10"))
        for metric, less in (("final_acc", False), ("comm_time_s", True), ("total_time_s", True), ("comm_rounds", True))
    ),
    *(
        Family("FedCPS", "T4", "CIFAR10", "FedCPS", metric, True)
        for metric in ("T_comp_s", "T_comm_s", "E_comp_J", "E_comm_J")
    ),
)

TWO_CLASSES, RIVALS = "2 classes", ("FedAvg", "FedProx", "Ditto", "CFL", "FedPer")
SKEWS = ("Dirichlet 0.5", "Dirichlet 0.2")
FESEM_RIVALS = (
    "NonFed",
    "FedSGD",
    "FedAvg",
    "FedDist",
    "FedDWS",
    "Robust (TKM)",
    "FedCluster",
    "HypoCluster(3)",
    "FedDane",
    "FedProx",
)
KINDS = ("rotation", "dominant label")

AT_PAPER_SIZE = {("LayerCFL", "FMNIST"): "CIFAR10"}
"""(paper, data set of small runs) -> that of runs of the paper's size, where it is another."""


def _fedtsdp() -> Iterator[Claim]:
    micro = ("accuracy_micro",)
    for rival in RIVALS:
        yield Claim("FedTSDP", "best under IID", "T3", "CIFAR10", "IID", "FedTSDP", rival, *micro, at_least=-0.01)
        yield Claim("FedTSDP", "best with 2 classes", "T5", "CIFAR10", TWO_CLASSES, "FedTSDP", rival, *micro)
        for skew in SKEWS:
            yield Claim("FedTSDP", "best under Dirichlet", "T4", "CIFAR10", skew, "FedTSDP", rival, *micro)
    for rival in ("FedAvg", "FedProx", "Ditto"):
        said = "personal layers lead by about 27 points"
        yield Claim("FedTSDP", said, "T5", "CIFAR10", TWO_CLASSES, "FedPer", rival, *micro, by=0.27)
        said = "CFL leads the non-clustered by about 5 points"
        yield Claim("FedTSDP", said, "T4", "CIFAR10", "Dirichlet 0.2", "CFL", rival, *micro, by=0.05)
    for skew in SKEWS:
        yield Claim("FedTSDP", "about 9 points", "T4", "CIFAR10", skew, "FedPer", "FedAvg", *micro, by=0.09)
    for stage in ("outputs", "weights"):
        said = "two stages beat one"
        yield Claim("FedTSDP", said, "Fig9", "runs", "Dirichlet 0.5", "both", stage, *micro)


def _dcpfl() -> Iterator[Claim]:
    yield Claim("DC-PFL", "the ablation", "ablation", "FMNIST", "Mid", "Comp", "NoDC", "final_acc", by=0.062)
    yield Claim("DC-PFL", "the ablation", "ablation", "FMNIST", "Mid", "Comp", "NoLA", "total_time_s", True)


def _layercfl() -> Iterator[Claim]:
    for kind in KINDS:
        place = ("LayerCFL", "separates sooner than CFL", "amount", "FMNIST", kind)
        yield Claim(*place, "cos_update_part", "cos_update_full", "first_round", True)
        for rival in ("l2_weight_part", "l2_update_part", "cos_weight_part", "cos_update_full"):
            place = ("LayerCFL", "separates most steadily", "amount", "FMNIST", kind)
            yield Claim(*place, "cos_update_part", rival, "share_of_rounds")
        place = ("LayerCFL", "no worse than CFL", "groups", "FMNIST", kind)
        yield Claim(*place, "LayerCFL", "CFL", "accuracy_macro", at_least=-0.01)
        yield Claim(*place[:1], "clusters gain on one model", *place[2:], "LayerCFL", "FedAvg", "accuracy_macro")
    place = ("LayerCFL", "convolutions separate under feature skew", "layers", "FMNIST", "rotation")
    yield Claim(*place, "conv2", "fc1", "gap_first")
    place = ("LayerCFL", "dense layers separate under label skew", "layers", "FMNIST", "dominant label")
    yield Claim(*place, "fc1", "conv2", "gap_first")


def _fesem() -> Iterator[Claim]:
    writers = ("MNIST-writers", "writers (proxy)")
    for rival in FESEM_RIVALS:
        for metric in ("accuracy_macro", "accuracy_micro"):
            yield Claim("FeSEM", "best in most cases", "T2", *writers, "FeSEM(4)", rival, metric)
    for k in (2, 3):
        yield Claim("FeSEM", "four centers do best", "T2", *writers, "FeSEM(4)", f"FeSEM({k})", "accuracy_micro")
    said = "matched averaging is comparable or worse"
    yield Claim("FeSEM", said, "T2", *writers, "FeSEM(4)", "FeSEM-MA(4)", "accuracy_micro", at_least=-0.01)


def _table_claims() -> Iterator[Claim]:
    with PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for family in FAMILIES:
        published_values = {
            (row["setting"], row["method"]): float(row["value"])
            for row in rows
            if (row["paper"], row["table"], row["dataset"], row["metric"])
            == (family.paper, family.table, family.dataset, family.metric)
        }
        for (setting, rival), theirs in published_values.items():
            ours = published_values.get((setting, family.ours))
            if rival == family.ours or ours is None:
                continue
            margin = theirs - ours if family.less else ours - theirs
            if margin <= 0:
                continue  # the paper's table does not say so
            place = (family.paper, family.table, family.table, family.dataset, setting)
            yield Claim(*place, family.ours, rival, family.metric, family.less, round(margin, 4))


def claims() -> list[Claim]:
    """All claims except those on data that cannot be had."""
    all_claims = [*_table_claims(), *_dcpfl(), *_fedtsdp(), *_layercfl(), *_fesem()]
    return [claim for claim in all_claims if claim.dataset not in NOT_HERE]
