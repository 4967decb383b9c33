"""LayerCFL: which layers and measures separate the clients, how soon, of how many images, and what comparing costs.

    python experiments/layercfl_layers.py                      # all, smoke scale
    python experiments/layercfl_layers.py computation --scale paper    # VGG16, no training

The paper's two stated numbers, 6.47 times less computation of similarities and 12.89 % fewer rounds to separate the
clients than CFL (FMTL) needs, stand beside ours. Settings: layercfl_methods.py.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from layercfl_methods import (
    DATA,
    KINDS,
    letters,
    n_unsplit,
    network,
    pilot_layers,
    planned_unsplit,
    rule_layers,
    seen_in_round,
    unsplit,
    unsplit_with,
)
from lines import keep_numbers
from reporting import Scale, main
from tables import Row, beside, mean_curve, published, show, spread

from fljax import tree
from fljax.algorithms.layercfl.similarity import MEASURES
from fljax.report.plots import learning_curves
from fljax.server import first_separation, pairwise_cosine

VERSUS = "LayerCFL vs FMTL"
"""What the paper's two stated numbers compare; FMTL is CFL."""


def layers(scale: Scale) -> None:
    """The separation gap of each layer, by kind of skew: convolutions under rotation, dense layers under label skew."""
    round_seen, rows, model = seen_in_round(scale), [], network(scale)
    for kind in scale.chosen(KINDS):
        results = unsplit(scale, kind)
        pilot_choices = [pilot_layers(scale, kind, seed) for seed in range(len(results))]
        for name in model.layers:
            gap = [result.metrics[f"gap_{name}"] for result in results]
            row: Row = {"setting": kind, "layer": name, "rule": "*" if name in rule_layers(model, kind) else ""}
            row["pilots for it"] = sum(chosen == (name,) for chosen in pilot_choices)
            row["gap in round 1"] = spread(g[0] for g in gap)
            rows.append(row | {f"gap in round {round_seen}": spread(g[round_seen - 1] for g in gap)})
        curves = {name: mean_curve(results, f"gap_{name}", results[0].setting, "unsplit") for name in model.layers}
        figure = learning_curves(curves, "separation gap")
        kind_rows = rows[-len(model.layers) :]
        numbers = {
            (name, kind, seed, metric): float(result.metrics[f"gap_{name}"][index])
            for name in model.layers
            for seed, result in enumerate(results)
            for metric, index in (("gap_first", 0), (f"gap_{round_seen}", round_seen - 1))
        }
        keep_numbers(scale, ("LayerCFL", "layers", DATA[scale.paper]), numbers, (round_seen, scale.pick(10, 30)))
        show(scale, f"layers-{kind.replace(' ', '-')}", f"Gap of cosine by layer, {kind}", kind_rows, figure)


def measures(scale: Scale) -> None:
    """The five compared measures on LayerCFL's layers: rounds until they separate, and how steadily they do."""
    for kind in scale.chosen(KINDS):
        rows = []
        for name in MEASURES:
            gaps = [result.metrics[f"gap_{name}"] for result in unsplit(scale, kind)]
            row: Row = {"setting": kind, "measure": name}
            row["first round of gap > 0"] = spread(int(first_separation(jnp.asarray(gap))) or np.nan for gap in gaps)
            row["share of rounds"] = spread((gap > 0).mean() for gap in gaps)
            rows.append(row | {"largest gap": spread(gap.max() for gap in gaps)})
        show(scale, f"measures-{kind.replace(' ', '-')}", f"Five measures, {kind}", rows)


def amount(scale: Scale) -> None:
    """Gap, rounds to separate and steadiness against images a client, and the rounds that LayerCFL saves.

    A run that never separates counts as one round more than it has. Lines are kept of every size, and of their mean:
    with the most images all measures may separate in the first round.
    """
    name, n_rounds, rows, saved_rows, numbers = letters(scale), n_unsplit(scale), [], [], {}
    rounds = n_rounds, planned_unsplit(scale)
    sizes = scale.pick((30, 100, 300), tuple(range(100, 1501, 100)))
    percent_saved: dict[str, np.ndarray] = {}
    round_seen = min(scale.pick(10, 10 if name == "emnist/letters" else 5), n_rounds)
    for kind in scale.chosen(KINDS):
        curves: dict[str, list[float]] = {measure: [] for measure in MEASURES}
        first_rounds: dict[str, list[np.ndarray]] = {measure: [] for measure in MEASURES}
        steadiness: dict[str, list[np.ndarray]] = {measure: [] for measure in MEASURES}
        for size in sizes:
            results = unsplit_with(scale, kind, name, sizes[-1], size)
            for measure in MEASURES:
                gaps = np.stack([result.metrics[f"gap_{measure}"] for result in results], axis=1)
                rounds_found = np.asarray(first_separation(jnp.asarray(gaps)))
                row: Row = {"setting": kind, "images": size, "measure": measure}
                row[f"gap in round {round_seen}"] = spread(gaps[round_seen - 1])
                row["first round of gap > 0"] = spread(np.where(rounds_found, rounds_found, np.nan))
                rows.append(row | {"share of rounds": spread((gaps > 0).mean(axis=0))})
                curves[measure].append(float(gaps[round_seen - 1].mean()))
                first_rounds[measure].append(np.where(rounds_found, rounds_found, n_rounds + 1))
                steadiness[measure].append((gaps > 0).mean(axis=0))
        for metric, by_measure in (("first_round", first_rounds), ("share_of_rounds", steadiness)):
            for measure, by_size in by_measure.items():
                by_metric = dict(zip((f"{metric}_of_{size}" for size in sizes), by_size, strict=True))
                for metric_name, values in (by_metric | {metric: np.mean(by_size, axis=0)}).items():
                    numbers |= {(measure, kind, seed, metric_name): float(value) for seed, value in enumerate(values)}
        ours, theirs = (np.stack(first_rounds[measure]) for measure in ("cos_update_part", "cos_update_full"))
        percent_saved[kind] = 100 * (1 - ours / theirs).mean(0)
        saved_rows.append({"setting": kind, "method": VERSUS, "fewer rounds, %": spread(percent_saved[kind])})
        lines = {
            measure: (np.array(sizes), np.array(curve)) for measure, curve in curves.items() if measure[:3] == "cos"
        }
        figure = learning_curves(lines, f"separation gap in round {round_seen}")
        figure.axes[0].set_xlabel("training images a client")
        title = f"Gap against images a client, {kind}, {name}"
        show(scale, f"amount-{kind.replace(' ', '-')}", title, [row for row in rows if row["setting"] == kind], figure)
    keep_numbers(scale, ("LayerCFL", "amount", DATA[scale.paper]), numbers, rounds, images=" ".join(map(str, sizes)))
    keep_average(
        scale, "comm_rounds_reduction_pct", dict(enumerate(np.mean(list(percent_saved.values()), axis=0))), rounds
    )
    stated = stated_for("comm_rounds_reduction_pct")
    show(scale, "rounds", "Rounds to separate that LayerCFL saves", beside(saved_rows, "fewer rounds, %", stated))


def keep_average(scale: Scale, metric: str, seed_values: dict[int, float], rounds: tuple[int, ...]) -> None:
    """A number of the text, which is an average over settings and data sets; ours is over the settings of one."""
    if scale.only:
        return
    cell = (VERSUS, "average")
    stated = {("average", VERSUS, metric): published("LayerCFL", "EMNIST+CIFAR10", "average", VERSUS, metric)}
    numbers = {(*cell, seed, metric): float(value) for seed, value in seed_values.items()}
    place = ("LayerCFL", "text", "EMNIST+CIFAR10")
    keep_numbers(scale, place, numbers, rounds, stated, data=DATA[scale.paper], kinds=len(KINDS))


def stated_for(metric: str) -> dict[tuple[str, str], float]:
    """A number of the paper's, which is an average, for both settings."""
    value = published("LayerCFL", "EMNIST+CIFAR10", "average", VERSUS, metric)
    return {(kind, VERSUS): value for kind in KINDS}


def computation(scale: Scale) -> None:
    """What comparing some layers costs less than comparing all: multiply-adds, and time for many clients' updates."""
    model, rows, n_clients = network(scale), [], scale.pick(100, 20)
    shapes, column = jax.eval_shape(model.init, jax.random.key(0)), "multiply-adds, times fewer"
    n_parameters, layers_of_kind = tree.size(shapes), {kind: rule_layers(model, kind) for kind in scale.chosen(KINDS)}
    for kind, selected in layers_of_kind.items():
        n_selected = tree.size(tree.select(shapes, selected))
        row: Row = {
            "setting": kind,
            "method": VERSUS,
            "layers": " ".join(selected),
            "parameters": n_selected,
            "of": n_parameters,
        }
        rows.append(row | {column: spread([n_parameters / n_selected])})
    keep_average(scale, "compute_reduction_x", {0: float(np.mean([row[column].mean for row in rows]))}, (0,))
    rng = np.random.default_rng(0)
    updates = jax.tree.map(lambda leaf: jnp.asarray(rng.random((n_clients, *leaf.shape), np.float32)), shapes)
    for row, selected in zip(rows, layers_of_kind.values(), strict=True):
        seconds = {names: least_seconds(updates, names, scale.pick(30, 3)) for names in (None, selected)}
        row["time, times shorter"] = round(seconds[None] / seconds[selected], 2)
    time_ratios = {(VERSUS, row["setting"], 0, "time_ratio"): row["time, times shorter"] for row in rows}
    keep_numbers(scale, ("LayerCFL", "computation", DATA[scale.paper]), time_ratios, (0,), parameters=n_parameters)
    rows = beside(rows, column, stated_for("compute_reduction_x"))
    show(scale, "computation", f"Pairwise similarity of {n_clients} clients", rows)


def least_seconds(updates: Any, selected: tuple[str, ...] | None, n_times: int) -> float:
    """Least time of the cosine of all pairs: other work on the machine only adds to it."""
    jax.block_until_ready(pairwise_cosine(updates, None, selected))
    times = []
    for _ in range(n_times):
        begin = time.perf_counter()
        jax.block_until_ready(pairwise_cosine(updates, None, selected))
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    functions = (layers, measures, amount, computation)
    main(__doc__ or "", {f.__name__: f for f in functions}, only=lambda _: KINDS)
