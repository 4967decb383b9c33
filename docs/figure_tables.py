"""The numbers beside the pictures of `figures.md`, from the lines that the scripts keep with their figures."""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

from outcomes import RESULTS, file_of, read  # noqa: E402


class Shown(NamedTuple):
    """What a table has of a file of lines: a row for each setting and method, a column for each metric."""

    place: tuple[str, str, str]  # paper, figure and data set
    columns: Mapping[str, str]  # heading -> metric
    decimals: int = 3


def curve(place: tuple[str, str, str], metric: str, *rounds: int) -> Shown:
    """A metric after some rounds."""
    return Shown(place, {f"after {n}": f"{metric} after {n}" for n in rounds})


SIMILARITY = {"mean within": "mean_within", "mean across": "mean_across", "gap": "gap"}

FIGURES: Mapping[str, Shown] = {
    "fedtsdp_fig3": Shown(("FedTSDP", "Fig3", "digits"), {"across / within": "across / within"}, 2),
    "fedtsdp_t4": curve(("FedTSDP", "T4-curves", "CIFAR10"), "accuracy_micro", 4, 14, 30),
    "fedtsdp_t5": curve(("FedTSDP", "T5-curves", "CIFAR10"), "accuracy_micro", 4, 14, 30),
    "fedtsdp_fig9": Shown(("FedTSDP", "Fig9", "runs"), {"accuracy after 30": "accuracy_micro after 30"}),
    "fedtsdp_fig11": Shown(
        ("FedTSDP", "Fig11", "runs"),
        {"layers after 14": "shared_layers after 14", "after 30": "shared_layers after 30"},
        2,
    ),
    "layercfl_heat_rotation": Shown(("LayerCFL", "heat-rotation", "FMNIST"), SIMILARITY),
    "layercfl_heat_label": Shown(("LayerCFL", "heat-dominant-label", "FMNIST"), SIMILARITY),
    "layercfl_layers": Shown(
        ("LayerCFL", "layers", "FMNIST"), {"gap in round 1": "gap_first", "in round 10": "gap_10"}, 2
    ),
    "layercfl_amount": Shown(
        ("LayerCFL", "amount", "FMNIST"),
        {
            "first round, 30 images": "first_round_of_30",
            "100": "first_round_of_100",
            "300": "first_round_of_300",
            "share of rounds, 30 images": "share_of_rounds_of_30",
            "300 images": "share_of_rounds_of_300",
        },
        2,
    ),
    "dcpfl_motivation": Shown(("DC-PFL", "motivation", "FMNIST"), {"accuracy": "accuracy"}),
    "dcpfl_discrepancy": Shown(("DC-PFL", "discrepancy", "FMNIST"), {"correlation": "correlation"}, 2),
    "dcpfl_correlation": Shown(("DC-PFL", "text", "CIFAR10"), {"correlation": "correlation"}, 2),
    "dcpfl_period": Shown(
        ("DC-PFL", "period", "FMNIST"),
        {"trials": "trials", "adopted": "adopted", "first in round": "first_adopted"},
        1,
    ),
    "dcpfl_thresholds": Shown(("DC-PFL", "thresholds", "FMNIST"), {"accuracy": "final_acc", "groups": "groups"}, 2),
    "dcpfl_layers": Shown(("DC-PFL", "layers", "CIFAR10"), {"share of a model sent": "uplink_share_last_six"}, 2),
    "dcpfl_mid": curve(("DC-PFL", "T2-Mid-curves", "FMNIST"), "accuracy_macro", 5, 18, 40),
    "dcpfl_high": curve(("DC-PFL", "T2-High-curves", "FMNIST"), "accuracy_macro", 5, 18, 40),
    "fedcps_lambda": Shown(
        ("FedCPS", "lambda", "FMNIST"),
        {
            "few-shot": "lambda_change_few-shot",
            "regular": "lambda_change_regular",
            "few-shot, over the mean": "relative_lambda_change_few-shot",
            "regular, over the mean": "relative_lambda_change_regular",
        },
        2,
    ),
    "fedcps_personal": Shown(
        ("FedCPS", "personal", "FMNIST"), {"accuracy after 16": "accuracy_macro", "round near its best": "arrived"}
    ),
    "fedcps_hostile": Shown(("FedCPS", "hostile", "FMNIST"), {"accuracy of the honest, %": "honest_acc_pct"}, 1),
    "fedcps_outputs": Shown(("FedCPS", "outputs", "FMNIST"), {"silhouette": "silhouette"}),
    "fedcps_labels": Shown(
        ("FedCPS", "labels", "FMNIST"),
        {
            "classes of a client": "classes_mean",
            "% of its images in its four largest": "share_of_four_classes_pct",
            "images, least": "images_least",
            "most": "images_most",
        },
        1,
    ),
    "fesem_fig3": Shown(
        ("FeSEM", "Fig3", "runs"),
        {"accuracy after 1": "accuracy_micro after 1", "after 15": "accuracy_micro after 15"},
    ),
    "fesem_hands": Shown(("FeSEM", "hands", "MNIST-writers"), {"accuracy": "accuracy_micro", "ARI": "ari"}),
    "fesem_components": Shown(
        ("FeSEM", "components", "MNIST-writers"),
        {"ARI": "ari", "variance on component 1": "share_of_component_1", "on component 2": "share_of_component_2"},
        2,
    ),
    "hidden_groups": Shown(
        ("hidden_groups", "groups", "MNIST"),
        {"ARI": "ari", "clusters": "n_clusters", "accuracy": "accuracy_macro"},
        2,
    ),
    "hidden_groups_iid": Shown(
        ("hidden_groups", "iid", "MNIST"), {"clusters": "n_clusters", "accuracy": "accuracy_macro"}, 2
    ),
}
"""Name of the table on the page -> what it shows."""


def numbers(shown: Shown, results: Path = RESULTS) -> dict[tuple[str, str], dict[str, list[float]]]:
    """(setting, method) -> metric -> values of the seeds; what has none of the metrics is left out."""
    values_of: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in read(file_of(results, *shown.place, small=True)):
        if line["metric"] in shown.columns.values():
            values_of[line["setting"], line["method"]][line["metric"]].append(float(line["value"]))
    return {cell: dict(values) for cell, values in values_of.items()}


def figure_table(name: str, results: Path = RESULTS) -> str:
    """The table of a figure in Markdown: means over seeds, from the least to the most in parentheses."""
    shown = FIGURES[name]
    values_of = numbers(shown, results)
    rows = [
        (
            setting,
            method,
            *(written(values.get(metric, []), shown.decimals) for metric in shown.columns.values()),
            count,
        )
        for (setting, method), values in values_of.items()
        for count in [str(max(map(len, values.values())))]
    ]
    head = ("setting", "method", *shown.columns, "seeds")
    aligned = ["---", "---", *["--:"] * (len(shown.columns) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, aligned, *rows))


def written(values: Sequence[float], decimals: int) -> str:
    """``0.91 (0.88 to 0.94)``; a number alone where there is one, or all are equal; nothing where there is none."""
    if not values:
        return ""
    mean, least, most = (f"{value:.{decimals}f}" for value in (fmean(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least} to {most})"
