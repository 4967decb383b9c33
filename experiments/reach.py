"""Which published numbers an experiment would print, which any run equals, and which cannot be had."""

from collections.abc import Iterable, Mapping, Sequence

from derived import Cell, rule

Pattern = Mapping[str, Sequence[str]]
"""Column of published.csv -> what it may hold; all columns named must fit."""

NOT_HERE = ("CIFAR100", "SVHN", "EMNIST", "FEMNIST", "FedCelebA")
"""Data sets that cannot be had here. LayerCFL's and FeSEM's own numbers are averages over two sets, one of which is
replaced by a proxy that is labelled so wherever it is shown."""

PRINTED: tuple[tuple[Pattern, str], ...] = (
    ({"paper": ["FedCPS"], "table": ["T2"], "dataset": ["FMNIST"]}, "fedcps.py table2"),
    ({"paper": ["FedCPS"], "table": ["T2"], "dataset": ["MNIST"]}, "fedcps.py table2_mnist"),
    ({"paper": ["FedCPS"], "table": ["T2"], "dataset": ["CIFAR10"]}, "fedcps.py table2_cifar10"),
    ({"paper": ["FedCPS"], "table": ["T3"]}, "fedcps.py table3"),
    ({"metric": ["T_comp_s", "T_comm_s", "E_comp_J", "E_comm_J"]}, "fedcps_costs.py table4"),
    ({"paper": ["FedCPS"], "table": ["T5"], "dataset": ["CIFAR10"]}, "fedcps.py table5"),
    ({"paper": ["FedCPS"], "table": ["T6"]}, "fedcps.py table6"),
    ({"paper": ["FedCPS"], "metric": ["nonempty_clusters"]}, "fedcps.py table6"),
    ({"paper": ["FedCPS"], "dataset": ["CIFAR10"], "metric": ["convergence_round"]}, "fedcps_lambda.py personal"),
    ({"paper": ["DC-PFL"], "table": ["T1"]}, "dcpfl.py table1"),
    ({"paper": ["DC-PFL"], "table": ["T2"]}, "dcpfl.py table2"),
    ({"paper": ["DC-PFL"], "dataset": ["FMNIST"], "setting": ["ablation"]}, "dcpfl.py ablation"),
    ({"paper": ["DC-PFL"], "dataset": ["CIFAR10"], "setting": ["ablation"]}, "dcpfl.py ablation_cifar10"),
    ({"paper": ["DC-PFL"], "metric": ["correlation"]}, "dcpfl_parts.py correlation"),
    (
        {"paper": ["FedTSDP"], "setting": ["2 classes CNN", "2 classes"], "metric": ["acc_pct", "acc_pct_approx"]},
        "fedtsdp.py table5",
    ),
    ({"paper": ["FedTSDP"], "setting": ["2 classes ResNet18"], "metric": ["acc_pct"]}, "fedtsdp.py table5_resnet18"),
    ({"paper": ["FedTSDP"], "table": ["T4/text"]}, "fedtsdp.py table4"),
    ({"paper": ["FedTSDP"], "table": ["Fig9"]}, "fedtsdp_parts.py figure9"),
    ({"paper": ["FedTSDP"], "table": ["T3/text"], "dataset": ["CIFAR10"]}, "fedtsdp.py table3"),
    ({"metric": ["compute_reduction_x"]}, "layercfl_layers.py computation"),
    ({"metric": ["comm_rounds_reduction_pct"]}, "layercfl_layers.py amount"),
    ({"paper": ["FeSEM"], "metric": ["clustering_iterations_to_converge_max", "best_K"]}, "fesem.py"),
)
"""What a row must have (all of it), and what prints it."""

HOURS: Mapping[str, float] = {
    "dcpfl_parts.py correlation": 0.3,
    "fedcps_costs.py table4": 0.3,
    "layercfl_layers.py computation": 0.1,
    "dcpfl.py ablation": 1.5,
    "dcpfl.py ablation_cifar10": 8,
    "fedcps.py table2": 3.5,
    "dcpfl.py table2": 29,
    "fedcps.py table2_mnist": 7,
    "fedtsdp.py table3": 18,
    "fedtsdp.py table5": 18,
    "fedtsdp.py table4": 36,
    "fedtsdp_parts.py figure9": 20,
    "dcpfl.py table1": 58,
    "fedtsdp.py table5_resnet18": 150,
    "layercfl_layers.py amount": 60,
    "fedcps.py table2_cifar10": 60,
    "fedcps.py table3": 100,
    "fedcps.py table5": 40,
    "fedcps.py table6": 30,
    "fedcps_lambda.py personal": 15,
    "fesem.py": 100,
}
"""Estimates, two cores and one seed, from a few rounds of each kind of run; of another day's machine half or twice as
much. Those above 40 are a GPU's."""

SEEDS: Mapping[str, int] = {"fedcps.py table6": 3}
"""Seeds of a command whose rows one seed does not give: deviations over seeds."""

NOT_SAID: tuple[Pattern, ...] = (
    {"paper": ["DC-PFL"], "setting": ["6 clients"]},  # their labels are not given
    {"paper": ["DC-PFL"], "metric": ["best_gamma"]},  # a height in a tree of smoothed label divergences not given
    # Divergences of 4.84 and 8.63 whose trees are cut at 8 to 12: no table of the stated recipe has such heights
    # (dcpfl_parts.py divergences).
    {"paper": ["DC-PFL"], "table": ["text"], "metric": ["acc_pct"]},
    {"paper": ["FedTSDP"], "table": ["Fig3"]},  # gradients of a toy that is not described
)
"""Rows of which the paper does not say what was run."""

FIXED: tuple[Pattern, ...] = (
    {"paper": ["FedTSDP"], "table": ["Fig11"]},  # the rule's depth for the round, whatever is trained
    {"paper": ["DC-PFL"], "method": ["DC-PFL"], "metric": ["total_time_ratio_to_DC-PFL"]},  # DC-PFL's to its own
    {"paper": ["FeSEM"], "metric": ["iterations_plotted"]},  # the rounds that are asked for
)
"""Rows that any run equals."""


def reach(cell: Cell) -> str:
    """D, E or F of a cell that no line has: the farthest of those that it follows from, where it does."""
    if _any(cell, NOT_SAID) or cell[2] in NOT_HERE:
        return "F"
    derivation = rule(cell)
    if derivation is not None:
        return max(reach(needed) for needed in derivation.cells)
    return "D" if _any(cell, [pattern for pattern, _ in PRINTED]) else "E"


def printer(cell: Cell) -> str:
    """What prints the cell, or those that it follows from, with ``--scale paper``."""
    derivation = rule(cell)
    cells = [cell] if derivation is None else derivation.cells
    return ", ".join(
        dict.fromkeys(command for needed in cells for pattern, command in PRINTED if _has(needed, pattern))
    )


def is_fixed(cell: Cell) -> bool:
    """Whether any run equals the number."""
    return _any(cell, FIXED)


def _any(cell: Cell, patterns: Iterable[Pattern]) -> bool:
    return any(_has(cell, pattern) for pattern in patterns)


def _has(cell: Cell, pattern: Pattern) -> bool:
    fields: dict[str, str] = dict(zip(("paper", "table", "dataset", "setting", "method", "metric"), cell, strict=True))
    return all(fields[name] in allowed for name, allowed in pattern.items())
