"""LayerCFL: which layers and measures separate the clients, how soon, of how many images, and what comparing costs.

    python experiments/layercfl_layers.py                      # all, smoke scale
    python experiments/layercfl_layers.py computation --scale paper    # VGG16, no training

The paper's two stated numbers, 6.47 times less computation of similarities and 12.89 % fewer rounds to separate the
clients than CFL (FMTL) needs, stand beside ours. Settings: layercfl_methods.py.
"""

import time
from collections.abc import Mapping, Sequence
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
    place_of,
    planned_unsplit,
    rule_layers,
    seen_in_round,
    unsplit,
    unsplit_with,
)
from lines import keep_numbers
from reporting import Result, Scale, main
from table_figures import against, bars
from tables import Row, beside, published, show, spread

from fljax import tree
from fljax.algorithms.layercfl.similarity import MEASURES
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
        figure = against(gap_points(results, model.layers), "round", by="layer", value="separation gap")
        kind_rows = rows[-len(model.layers) :]
        numbers = {
            (name, kind, seed, metric): float(result.metrics[f"gap_{name}"][index])
            for name in model.layers
            for seed, result in enumerate(results)
            for metric, index in (("gap_first", 0), (f"gap_{round_seen}", round_seen - 1))
        }
        keep_numbers(scale, ("LayerCFL", "layers", DATA[scale.paper]), numbers, (round_seen, scale.pick(10, 30)))
        name, n_clients = f"layers-{kind.replace(' ', '-')}", results[0].metrics["ids"].shape[1]
        title, place = f"LayerCFL: separation gap of the cosine by layer, {kind}", ("LayerCFL", name, DATA[scale.paper])
        about = f"{place[2]}, {n_clients} clients in 4 groups, {scale.seeds_in_words}; bands: least to most"
        show(scale, name, title, kind_rows, figure, place, about)


def gap_points(results: list[Result], layer_names: tuple[str, ...]) -> list[Row]:
    """The gap of each layer in each round, over the seeds."""
    rows: list[Row] = []
    for name in layer_names:
        for i, values in enumerate(zip(*(result.metrics[f"gap_{name}"] for result in results), strict=True)):
            rows.append({"layer": name, "round": i + 1, "separation gap": spread(values)})
    return rows


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
    sizes, n_clients = scale.pick((30, 100, 300), tuple(range(100, 1501, 100))), scale.pick(12, 20)
    percent_saved: dict[str, np.ndarray] = {}
    round_seen = min(scale.pick(10, 10 if name == "emnist/letters" else 5), n_rounds)
    for kind in scale.chosen(KINDS):
        first_rounds: dict[str, list[np.ndarray]] = {measure: [] for measure in MEASURES}
        steadiness: dict[str, list[np.ndarray]] = {measure: [] for measure in MEASURES}
        gaps_seen: dict[str, list[np.ndarray]] = {measure: [] for measure in MEASURES}
        for size in sizes:
            results = unsplit_with(scale, kind, name, sizes[-1], size)
            for measure in MEASURES:
                gaps = np.stack([result.metrics[f"gap_{measure}"] for result in results], axis=1)
                rounds_found = np.asarray(first_separation(jnp.asarray(gaps)))
                row: Row = {"setting": kind, "images": size, "measure": measure}
                row[f"gap in round {round_seen}"] = spread(gaps[round_seen - 1])
                row["first round of gap > 0"] = spread(np.where(rounds_found, rounds_found, np.nan))
                rows.append(row | {"share of rounds": spread((gaps > 0).mean(axis=0))})
                gaps_seen[measure].append(gaps[round_seen - 1])
                first_rounds[measure].append(np.where(rounds_found, rounds_found, n_rounds + 1))
                steadiness[measure].append((gaps > 0).mean(axis=0))
        quantities = {"first_round": first_rounds, "share_of_rounds": steadiness, f"gap_{round_seen}": gaps_seen}
        for metric, by_measure in quantities.items():
            for measure, by_size in by_measure.items():
                by_metric = dict(zip((f"{metric}_of_{size}" for size in sizes), by_size, strict=True))
                for metric_name, values in (by_metric | {metric: np.mean(by_size, axis=0)}).items():
                    numbers |= {(measure, kind, seed, metric_name): float(value) for seed, value in enumerate(values)}
        ours, theirs = (np.stack(first_rounds[measure]) for measure in ("cos_update_part", "cos_update_full"))
        percent_saved[kind] = 100 * (1 - ours / theirs).mean(0)
        saved_rows.append({"setting": kind, "method": VERSUS, "fewer rounds, %": spread(percent_saved[kind])})
        drawn = (
            ("amount-first-round", f"first round of gap > 0, {n_rounds + 1}: none", first_rounds, bars),
            ("amount-share-of-rounds", "share of rounds of gap > 0", steadiness, bars),
            ("amount-gap", f"separation gap in round {round_seen}", cosines_of(gaps_seen), against),
        )
        kind_rows = [row for row in rows if row["setting"] == kind]
        about = (
            f"{n_clients} clients in 4 groups, {n_rounds} rounds, {scale.seeds_in_words}; bands, lines: least to most"
        )
        for stem, label, by_measure, draw in drawn:
            figure = draw(size_points(by_measure, sizes, label), "training images a client", by="measure", value=label)
            stem = f"{stem}-{kind.replace(' ', '-')}"
            place, title = place_of(stem, name), f"LayerCFL: five measures by images a client, {kind}"
            show(scale, stem, title, kind_rows, figure, place, f"{place[2]}, {about}")
    keep_numbers(scale, ("LayerCFL", "amount", DATA[scale.paper]), numbers, rounds, images=" ".join(map(str, sizes)))
    keep_average(
        scale, "comm_rounds_reduction_pct", dict(enumerate(np.mean(list(percent_saved.values()), axis=0))), rounds
    )
    stated = stated_for("comm_rounds_reduction_pct")
    show(scale, "rounds", "Rounds to separate that LayerCFL saves", beside(saved_rows, "fewer rounds, %", stated))


def cosines_of(by_measure: Mapping[str, Any]) -> dict[str, Any]:
    """The measures that are cosines, whose gaps are on one scale."""
    return {measure: value for measure, value in by_measure.items() if measure.startswith("cos")}


def size_points(by_measure: Mapping[str, Sequence[np.ndarray]], sizes: Sequence[int], label: str) -> list[Row]:
    """A row for each measure and number of images a client; the quantity is called ``label``."""
    return [
        {"measure": measure, "training images a client": size, label: spread(values)}
        for measure, by_size in by_measure.items()
        for size, values in zip(sizes, by_size, strict=True)
    ]


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
