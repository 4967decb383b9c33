"""DC-PFL's figures: loss and trials over the rounds, discrepancy beside divergence, and NoDC by its threshold.

    python experiments/dcpfl_figures.py [period discrepancy thresholds] [--scale smoke|paper] [--seeds N]

Accuracy over the rounds of every method is drawn by dcpfl.py. The paper's figures cannot be read to numbers; its 6
clients, of which two have the same labels, are not described beyond that.
"""

import jax
import numpy as np
from dcpfl_methods import LR, MOMENTUM, band_names, divergence, effort, network, paper_bands
from lines import keep_numbers, keep_runs
from matplotlib.figure import Figure
from reporting import Scale, compare, main
from tables import Row, last, show, table

import fljax
from fljax.algorithms.dcpfl import dcpfl
from fljax.algorithms.dcpfl.splitting import mean_discrepancy
from fljax.data.federation import class_histogram
from fljax.report.plots import learning_curves
from fljax.run.train import train
from fljax.server import label_kld
from fljax.types import Work

DATASET = "fashion_mnist"
N_ROUNDS = 40
CUTS = {f"NoDC {cut:g}": cut for cut in (1.0, 0.9, 0.8, 0.7, 0.6, 0.4)}
"""Thresholds, normalised; 1 is one group for all."""


def period(scale: Scale) -> None:
    """Training loss over the rounds, and when trials were made and adopted."""
    algorithm = dcpfl(network(DATASET, scale), effort(scale), trial_loss="train")
    method, planned = {"DC-PFL": (algorithm, fljax.dcpfl.Hyper(lr=LR, momentum=MOMENTUM))}, scale.pick(N_ROUNDS, 100)
    n_rounds = scale.rounds or planned
    results = compare(method, paper_bands(DATASET, scale), n_rounds, evaluate_every=1)
    rows, curves, numbers = [], {}, {}
    for result in results:
        trials, adopted = (np.flatnonzero(np.asarray(result.metrics[name])) + 1 for name in ("trial", "adopted"))
        row: Row = {"setting": result.setting, "seed": result.seed}
        row |= {"trials in rounds": " ".join(map(str, trials)), "adopted in rounds": " ".join(map(str, adopted))}
        rows.append(row)
        cell = ("DC-PFL", result.setting, result.seed)
        numbers |= {(*cell, "trials"): len(trials), (*cell, "adopted"): len(adopted)}
        numbers[*cell, "first_adopted"] = float(adopted[0]) if len(adopted) else np.nan
        if result.seed == 0:
            loss = np.asarray(result.metrics["loss"])
            curves[result.setting] = (np.arange(len(loss)) + 1, loss)
    keep_numbers(scale, ("DC-PFL", "period", "FMNIST"), numbers, (n_rounds, planned), clients=scale.pick(12, 50))
    show(scale, "period", "Trials and adopted splits", rows, learning_curves(curves, "training loss"))


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
    title = f"High band, mean KLD {divergence(federation):.2f}"
    show(scale, "discrepancy", title, rows, maps(matrices))


def maps(matrices: dict[str, np.ndarray]) -> Figure:
    """Square matrices beside each other, each on its own scale."""
    figure = Figure(figsize=(3.4 * len(matrices), 3.0), layout="constrained")
    for i, (name, values) in enumerate(matrices.items()):
        axes = figure.add_subplot(1, len(matrices), i + 1)
        figure.colorbar(axes.imshow(values, cmap="Blues"), ax=axes, shrink=0.7)
        axes.set(title=name, xlabel="client", ylabel="client")
    return figure


def thresholds(scale: Scale) -> None:
    """NoDC, whose groups are cut once, by where they are cut; and the method itself."""
    model, work, planned = network(DATASET, scale), effort(scale), scale.pick(N_ROUNDS, 100)
    fixed_groups, sgd = dcpfl(model, work, dynamic=False), {"lr": LR, "momentum": MOMENTUM}
    methods = {name: (fixed_groups, fljax.dcpfl.Hyper(**sgd, fixed=cut)) for name, cut in CUTS.items()}
    methods["DC-PFL"] = (dcpfl(model, work, trial_loss="train"), fljax.dcpfl.Hyper(**sgd))
    results = compare(scale.chosen(methods), paper_bands(DATASET, scale), scale.rounds or planned)
    columns = {"final_acc": last("accuracy_macro"), "groups": last("n_clusters")}
    keep_runs(scale, ("DC-PFL", "thresholds", "FMNIST"), results, columns, planned, clients=scale.pick(12, 50))
    show(scale, "thresholds", "Fixed groups by their threshold", table(results, columns))


if __name__ == "__main__":
    functions = (period, discrepancy, thresholds)
    names = lambda scale: (*CUTS, "DC-PFL", *band_names(scale))  # noqa: E731
    main(__doc__ or "", {f.__name__: f for f in functions}, n_seeds=(3, 1), only=names)
