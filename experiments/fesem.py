"""FeSEM (Long et al., World Wide Web Journal 2023): its tables, K = 2 to 4 over the rounds, partitions, choice of K.

    python experiments/fesem.py                          # all, smoke scale
    python experiments/fesem.py tables choice            # some
    python experiments/fesem.py --scale paper            # FEMNIST by writer: needs its files and a GPU

Smoke: a proxy for FEMNIST, 4,000 MNIST images rewritten by 20 writers in 4 hidden hands, an MLP 784-64-10, 15 rounds of
5 epochs. The paper's tables are figures in its text; what it states is that four centers do best and that clusters
settle within ten rounds. FLJAX_DATA names the folder with mnist or femnist.

The proxy has four hidden hands, so that FeSEM(4) has the right K there by design: that four centers do best on it
says nothing of FEMNIST. Of the paper's baselines six that the library has are left out here, and so are Tables 1 and 3,
Figure 5 and the objective (5). Units of centers that begin at one start are in order already, so that FeSEM-MA is FeSEM
on them.
"""

from collections.abc import Callable
from functools import cache, partial

import jax
import numpy as np
from reporting import Methods, Result, Scale, compare, last, main, mean_curve, published, same_shapes, show, some, table

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.feddist import feddist
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fesem import fesem
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.standalone import standalone
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import femnist_cnn, mlp
from fljax.run import plots, report
from fljax.run.pilot import choose_k
from fljax.run.simulate import simulate, split_key
from fljax.types import Examples, Federation, Model, Work

SIZES = (2, 3, 4)
"""The K of the paper."""


@cache
def everything(paper: bool, n_seeds: int) -> dict[str, list[Federation]]:
    """By writer, and the paper's two other ways to deal the same images; tables of one width, to compile once."""
    if paper:
        sets = load("femnist")
        ways = {"writers": ("natural", 400, {}), "IID": ("iid", 400, {}), "Dirichlet 0.5": ("dirichlet", 400, {})}
    else:
        train, test = (Examples(split.x, split.y) for split in load("mnist"))
        sets = some(train, 3200), some(test, 800)
        pooled = {"public": False}
        ways = {
            "writers (proxy)": ("writers", 20, {"sigma": 0.3}),
            "IID": ("iid", 20, pooled),
            "Dirichlet 0.5": ("dirichlet", 20, pooled | {"beta": 0.5}),
        }
    made = [
        PARTITIONS[name](*sets, n, seed=s, val_fraction=0.1, **o)
        for name, n, o in ways.values()
        for s in range(n_seeds)
    ]
    wide = iter(same_shapes(made))
    return {way: [next(wide) for _ in range(n_seeds)] for way in ways}


def by_writer(scale: Scale) -> dict[str, list[Federation]]:
    """The setting of the tables."""
    name, federations = next(iter(everything(scale.paper, scale.n_seeds).items()))
    return {name: federations}


def network(scale: Scale) -> Model:
    """The network of the official code, 845,510 parameters; at smoke an MLP."""
    return scale.pick(mlp((28, 28, 1), (64,)), femnist_cnn(hidden=248))


def work(scale: Scale) -> Work:
    """Five epochs of batches of 10 (smoke: 16)."""
    return Work(5, scale.pick(16, 10))


def systems(scale: Scale) -> Methods:
    """FeSEM with each K, with matched averaging, and what it is compared with."""
    model, local, lr = network(scale), work(scale), scale.pick(0.1, 0.003)
    methods: Methods = {
        "NonFed": (standalone(model, local), fljax.standalone.Hyper(lr=lr)),
        "FedAvg": (fedavg(model, local), fljax.fedavg.Hyper(lr=lr)),
        "FedProx": (fedprox(model, local), fljax.fedprox.Hyper(lr=lr)),
        "FedDist": (feddist(model, local), fljax.feddist.Hyper(lr=lr)),
    }
    centers = {f"FeSEM({k})": (fesem(model, local, k), fljax.fesem.Hyper(lr=lr)) for k in SIZES}
    return methods | centers | {"FeSEM-MA(4)": (fesem_ma(model, local, 4), fljax.fesem.Hyper(lr=lr))}


@cache
def runs(scale: Scale) -> list[Result]:
    """All methods by writer, tested in every round."""
    return compare(scale.chosen(systems(scale)), by_writer(scale), n_rounds(scale), evaluate_every=1)


def n_rounds(scale: Scale) -> int:
    """Rounds of a run."""
    return scale.rounds or scale.pick(15, 100)


def settled(result: Result) -> float:
    """The round (from 1) from which no client changes its cluster; NaN for a method without clusters."""
    if "label" not in result.metrics:
        return np.nan
    moved = np.flatnonzero((np.diff(result.metrics["label"], axis=0) != 0).any(axis=1))
    return float(moved[-1]) + 2 if len(moved) else 1.0


def tables(scale: Scale) -> None:
    """Accuracy and F1, weighted by test size (micro) and over clients (macro); when clusters settle."""
    names = ("accuracy_micro", "accuracy_macro", "f1_micro", "f1_macro")
    columns: dict[str, Callable[[Result], float]] = {name: last(name) for name in names}
    columns["ARI"] = lambda r: r.metrics["ari"][-1] if "ari" in r.metrics else np.nan
    rows = table(runs(scale), columns | {"settled in round": settled, "seconds": lambda r: r.seconds})
    stated = published("FeSEM", "FEMNIST+FedCelebA", "-", "FeSEM", "clustering_iterations_to_converge_max")
    for row in rows:
        row["published, at most"] = stated if row["method"].startswith("FeSEM") else None
    show(scale, "tables", "FEMNIST by writer" + scale.pick(" (proxy)", ""), rows)


def figure3(scale: Scale) -> None:
    """Figure 3: accuracy over the rounds for each K, and the K that ends best."""
    results = [r for r in runs(scale) if r.method.startswith("FeSEM(")]
    setting = results[0].setting
    curves = {r: mean_curve(results, "accuracy_micro", setting, r) for r in dict.fromkeys(r.method for r in results)}
    rows = table(
        results, {"accuracy_micro": last("accuracy_micro"), "best": lambda r: r.metrics["accuracy_micro"].max()}
    )
    best = max(rows, key=lambda row: row["accuracy_micro"].mean)
    best |= {"best K": best["method"], "published": published("FeSEM", "both", "K=2..4", "FeSEM", "best_K")}
    show(scale, "figure3", "K centers", [dict.fromkeys(best) | row for row in rows], plots.learning_curves(curves))


def partitions(scale: Scale) -> None:
    """The same images dealt IID, by Dirichlet 0.5 and by writer: does FeSEM(4) gain on FedAvg where nobody differs?"""
    chosen = {name: systems(scale)[name] for name in ("FedAvg", "FeSEM(4)")}
    ways, known = everything(scale.paper, scale.n_seeds), []
    if not scale.only:
        ((way, _),) = by_writer(scale).items()
        known = [result for result in runs(scale) if result.method in chosen]
        ways = {other: federations for other, federations in ways.items() if other != way}
    results = known + compare(chosen, ways, n_rounds(scale), evaluate_every=1)
    rows = table(results, {"accuracy_micro": last("accuracy_micro"), "accuracy_macro": last("accuracy_macro")})
    for row in rows:
        base = next(r for r in rows if (r["setting"], r["method"]) == (row["setting"], "FedAvg"))
        row["over FedAvg"] = round(row["accuracy_micro"].mean - base["accuracy_micro"].mean, 4)
    show(scale, "partitions", "Three ways to deal the images", rows)


def components(scale: Scale) -> None:
    """The clients' uploaded models on their two principal components, coloured by cluster (the paper: 400 writers)."""
    ((_, (federation, *_)),) = by_writer(scale).items()
    algorithm, hyper = systems(scale)["FeSEM(4)"]
    key, rounds = jax.random.key(0), scale.rounds or 10
    state, _ = simulate(algorithm, hyper, federation, key, rounds, evaluate_every=rounds)
    held = algorithm.deploy(split_key(key).deploy, hyper, state, federation.train)
    uploaded = tree.own(state.server.kept.models)
    coordinates, share = report.principal_components(uploaded)
    label, group = np.asarray(held.row), federation.group
    group = None if group is None else np.asarray(group)
    figure = plots.model_map(coordinates, share, label, group, "FeSEM(4): the clients' models")
    rows = [{"component": i + 1, "share of the variance": round(float(s), 3)} for i, s in enumerate(share)]
    show(scale, "components", f"{len(label)} clients after {rounds} rounds", rows, figure)


def choice(scale: Scale) -> None:
    """K by pilots of three rounds on some of the clients, as the paper chooses it (it found 4)."""
    model, local, hyper = network(scale), work(scale), fljax.fesem.Hyper(lr=scale.pick(0.1, 0.003))
    ((_, federations),) = by_writer(scale).items()
    stated, rows = published("FeSEM", "both", "K=2..4", "FeSEM", "best_K"), []
    for seed, federation in enumerate(federations):
        found = choose_k(partial(fesem, model, local), hyper, federation, jax.random.key(seed), SIZES)
        scores = {f"score of K = {k}": round(score, 4) for k, score in found.scores.items()}
        rows.append({"seed": seed} | scores | {"chosen": found.n_clusters, "published": stated})
    show(scale, "choice", "Validation accuracy of pilots", rows)


if __name__ == "__main__":
    main(__doc__ or "", {f.__name__: f for f in (tables, figure3, partitions, components, choice)})
