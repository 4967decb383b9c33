"""DC-PFL's figures: loss and trials over the rounds, discrepancy beside divergence, and NoDC by its threshold.

    python experiments/dcpfl_figures.py [period discrepancy thresholds] [--scale smoke|paper] [--seeds N]

Accuracy over the rounds of every method is drawn by dcpfl.py. The paper's figures cannot be read to numbers; its 6
clients, of which two have the same labels, are not described beyond that. Lines and figures are in results/dc-pfl/.
"""

import jax
import jax.numpy as jnp
import numpy as np
from dcpfl_methods import BANDS, LR, MOMENTUM, divergence, effort, network, paper_bands
from lines import keep_curves, keep_numbers, keep_runs, over_participants
from matplotlib.figure import Figure
from reporting import Result, Scale, compare, main
from table_figures import against, maps, over_rounds
from tables import Row, Spread, last, show, table

import fljax
from fljax.algorithms.dcpfl import dcpfl
from fljax.algorithms.dcpfl.splitting import mean_discrepancy
from fljax.data.federation import class_histogram
from fljax.report.plots import COLORS
from fljax.run.train import train
from fljax.server import label_kld, pairwise_correlation
from fljax.types import Work

DATASET, PUBLISHED_DATA = "fashion_mnist", "FMNIST"
N_ROUNDS = 40
CUTS = {f"NoDC {cut:g}": cut for cut in (1.0, 0.9, 0.8, 0.7, 0.6, 0.4)}
"""Thresholds, normalised; 1 is one group for all."""


def period(scale: Scale) -> None:
    """Training loss over the rounds, and when trials were made and adopted."""
    algorithm = dcpfl(network(DATASET, scale), effort(scale), trial_loss="train")
    method, planned = {"DC-PFL": (algorithm, fljax.dcpfl.Hyper(lr=LR, momentum=MOMENTUM))}, scale.pick(N_ROUNDS, 100)
    n_rounds = scale.rounds or planned
    results = compare(method, paper_bands(DATASET, scale), n_rounds, evaluate_every=1)
    rows, numbers, n_clients = [], {}, scale.pick(12, 50)
    for result in results:
        trials, adopted = (np.flatnonzero(np.asarray(result.metrics[name])) + 1 for name in ("trial", "adopted"))
        row: Row = {"setting": result.setting, "seed": result.seed}
        row |= {"trials in rounds": " ".join(map(str, trials)), "adopted in rounds": " ".join(map(str, adopted))}
        rows.append(row)
        cell = ("DC-PFL", result.setting, result.seed)
        numbers |= {(*cell, "trials"): len(trials), (*cell, "adopted"): len(adopted)}
        numbers[*cell, "first_adopted"] = float(adopted[0]) if len(adopted) else np.nan
    place = ("DC-PFL", "period", PUBLISHED_DATA)
    keep_numbers(scale, place, numbers, (n_rounds, planned), clients=n_clients)
    keep_curves(scale, place, results, ["loss"], planned, clients=n_clients)
    figure = with_trials([result for result in results if result.seed == 0])
    about = f"{PUBLISHED_DATA}, {n_clients} clients, {n_rounds} rounds, seed 0; ring: trial, disc: adopted split"
    show(scale, "period", "DC-PFL: training loss, trials and adopted splits", rows, figure, place, about)


def with_trials(results: list[Result]) -> Figure:
    """The loss of each setting's run, with a ring where a split was tried and a disc where it was adopted."""
    figure = over_rounds(results, "loss", "training loss, mean over clients", by_setting=True)
    for i, result in enumerate(results):
        loss = over_participants(result, "loss")
        for metric, face in (("trial", "white"), ("adopted", COLORS[i])):
            at_rounds = np.flatnonzero(np.asarray(result.metrics[metric]))
            figure.axes[0].scatter(
                at_rounds + 1, loss[at_rounds], s=40, color=face, edgecolors=COLORS[i], linewidths=1.5, zorder=3
            )
    return figure


def discrepancy(scale: Scale) -> None:
    """Model discrepancy of clients after five rounds, beside the divergence of their labels, client by client."""
    algorithm, hyper = dcpfl(network(DATASET, scale), Work(5, 32)), fljax.dcpfl.Hyper(lr=0.003, momentum=None)
    federation = paper_bands(DATASET, scale._replace(only=("High",)))["High"][0]
    state = train(algorithm, hyper, federation, jax.random.key(0), 5, evaluate_every=5).state
    matrices = {
        "model discrepancy": np.asarray(mean_discrepancy(state.server.groups)),
        "label divergence": np.asarray(label_kld(class_histogram(federation.train, 10).astype("float32"))),
    }
    pairs = np.triu_indices(len(federation.train.size), 1)
    rows = [
        {
            "what": name,
            "least": float(matrix[pairs].min()),
            "mean": float(matrix[pairs].mean()),
            "most": float(matrix[pairs].max()),
        }
        for name, matrix in matrices.items()
    ]
    numbers = {(row["what"], "High", 0, name): float(row[name]) for row in rows for name in ("least", "mean", "most")}
    correlation = float(pairwise_correlation(*(jnp.asarray(matrix, jnp.float32) for matrix in matrices.values())))
    numbers["model discrepancy vs KLD", "High", 0, "correlation"] = correlation
    place, n_clients = ("DC-PFL", "discrepancy", PUBLISHED_DATA), len(federation.train.size)
    keep_numbers(scale, place, numbers, (5,), clients=n_clients, lr=0.003, momentum=0)
    about = (
        f"{PUBLISHED_DATA}, {n_clients} clients of the High band, mean KLD {divergence(federation):.2f}, 5 rounds, "
        f"seed 0; correlation {correlation:.2f}"
    )
    title = "DC-PFL: model discrepancy and label divergence of pairs of clients"
    show(
        scale,
        "discrepancy",
        title,
        rows,
        maps(list(matrices.items()), ("L1 of scaled models", "symmetric KLD")),
        place,
        about,
    )


def thresholds(scale: Scale) -> None:
    """NoDC, whose groups are cut once, by where they are cut; and the method itself."""
    model, work, planned = network(DATASET, scale), effort(scale), scale.pick(N_ROUNDS, 100)
    fixed_groups, sgd = dcpfl(model, work, dynamic=False), {"lr": LR, "momentum": MOMENTUM}
    methods = {name: (fixed_groups, fljax.dcpfl.Hyper(**sgd, fixed=cut)) for name, cut in CUTS.items()}
    methods["DC-PFL"] = (dcpfl(model, work, trial_loss="train"), fljax.dcpfl.Hyper(**sgd))
    n_rounds, n_clients, place = scale.rounds or planned, scale.pick(12, 50), ("DC-PFL", "thresholds", PUBLISHED_DATA)
    results = compare(scale.chosen(methods), paper_bands(DATASET, scale), n_rounds)
    columns = {"final_acc": last("accuracy_macro"), "groups": last("n_clusters")}
    keep_runs(scale, place, results, columns, planned, clients=n_clients)
    rows = table(results, columns)
    about = f"{PUBLISHED_DATA}, {n_clients} clients, {n_rounds} rounds, {scale.seeds_in_words}; bands: least to most"
    show(scale, "thresholds", "DC-PFL: fixed groups by their threshold", rows, by_threshold(rows), place, about)


def by_threshold(rows: list[Row]) -> Figure:
    """Accuracy against the threshold of fixed groups, and the method, which has none, as a level."""
    name, points = "threshold of the cut, 1 is one group", []
    for row in rows:
        accuracy: Spread = row["final_acc"]
        if row["method"] in CUTS:
            points.append({"method": f"{row['setting']}, fixed", name: CUTS[row["method"]], "accuracy": accuracy})
        else:
            curve = f"{row['setting']}, {row['method']}"
            points += [{"method": curve, name: f(CUTS.values()), "accuracy": accuracy.mean} for f in (min, max)]
    return against(points, name)


if __name__ == "__main__":
    functions = (period, discrepancy, thresholds)
    names = lambda scale: (*CUTS, "DC-PFL", *BANDS)  # noqa: E731
    main(__doc__ or "", {f.__name__: f for f in functions}, n_seeds=(3, 1), only=names)
