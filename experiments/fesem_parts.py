"""FeSEM: the best K by the number of hidden hands, the choice of K by pilots, and the clients' models in the plane.

    python experiments/fesem_parts.py [hands components choice] [--scale smoke|paper]

Data and scales are those of fesem.py; `hands` is always of the small proxy. Lines and figures are in results/fesem/.
"""

from functools import partial

import jax
import numpy as np
from fesem_methods import DATA, SIZES, by_writer, centered, network, of_writers, work
from lines import keep_numbers, keep_runs
from reporting import Scale, compare, main, random_examples, same_shapes
from table_figures import against
from tables import last, published, show, table

import fljax
from fljax import tree
from fljax.algorithms.fesem import fesem
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.report import plots, summary
from fljax.run.one_round import split_key
from fljax.run.pilot import choose_k
from fljax.run.simulate import simulate
from fljax.server import adjusted_rand
from fljax.types import Examples


def hands(scale: Scale) -> None:
    """Which K is best when the writers' true number of hands is 1 to 4: does the best K follow it? (proxy)"""
    model, local_work, lr = of_writers(scale._replace(paper=False))
    train, test = (Examples(split.x, split.y) for split in load("mnist"))
    sets, n_clients = (random_examples(train, 3200), random_examples(test, 800)), 20
    options = {"sigma": 0.3, "jitter": 0.05, "val_fraction": 0.1}
    by_hands = {
        f"{n} hands": [PARTITIONS["writers"](*sets, n_clients, seed=s, n_groups=n, **options) for s in seeds]
        for n in (1, 2, 3, 4)
        for seeds in [range(scale.n_seeds)]
    }
    widened = iter(same_shapes([federation for seeds in by_hands.values() for federation in seeds]))
    by_hands = {name: [next(widened) for _ in seeds] for name, seeds in by_hands.items()}
    methods = {f"FeSEM({k})": centered(model, local_work, lr, k) for k in (1, *SIZES)}
    n_rounds = scale.rounds or 15
    results = [r for name, m in methods.items() for r in compare({name: m}, by_hands, n_rounds)]  # a program for each K
    columns = {"accuracy_micro": last("accuracy_micro"), "objective": last("objective"), "ari": last("ari")}
    place, small_scale = ("FeSEM", "hands", "MNIST-writers"), scale._replace(paper=False)
    keep_runs(small_scale, place, results, columns, 15, clients=n_clients, proxy="MNIST rewritten")
    rows = sorted(table(results, columns), key=lambda row: row["setting"])
    ylabel = "test accuracy, by test size"
    points = [row | {"K": int(row["method"][6:-1]), ylabel: row["accuracy_micro"]} for row in rows]
    figure = against(points, "K", by="setting", value=ylabel)
    about = f"{place[2]} (proxy), {n_clients} clients, {n_rounds} rounds, {scale.seeds_in_words}; bands: least to most"
    show(small_scale, "hands", "FeSEM: K and the number of hidden hands", rows, figure, place, about)


def components(scale: Scale) -> None:
    """The clients' uploaded models on their two principal components, coloured by cluster (the paper: 400 writers)."""
    ((_, (federation, *_)),) = by_writer(scale).items()
    algorithm, hyper = centered(*of_writers(scale), 4)
    key, rounds = jax.random.key(0), scale.rounds or 10
    state, _ = simulate(algorithm, hyper, federation, key, rounds, evaluate_every=rounds)
    models = algorithm.deploy(split_key(key).deploy, hyper, state, federation.train)
    uploaded = tree.own(state.server.kept.models)
    coordinates, share = summary.principal_components(uploaded)
    label, group = np.asarray(models.row), federation.group
    group = None if group is None else np.asarray(group)
    figure = plots.model_map(coordinates, share, label, group)
    rows = [{"component": i + 1, "share of the variance": round(float(s), 3)} for i, s in enumerate(share)]
    numbers = {("FeSEM(4)", "clients' models", 0, f"share_of_component_{i + 1}"): float(s) for i, s in enumerate(share)}
    numbers["FeSEM(4)", "clients' models", 0, "clusters"] = float(len(np.unique(label)))
    if group is not None:
        numbers["FeSEM(4)", "clients' models", 0, "ari"] = float(adjusted_rand(label, group))
    place = ("FeSEM", "components", DATA[scale.paper])
    keep_numbers(scale, place, numbers, (rounds, 10), clients=len(label))
    about = f"{place[2]}, {len(label)} clients after {rounds} rounds, seed 0"
    show(scale, "components", "FeSEM(4): the clients' models", rows, figure, place, about)


def choice(scale: Scale) -> None:
    """K by pilots of three rounds on some of the clients, as the paper chooses it (it found 4)."""
    model, local_work, hyper = network(scale), work(scale), fljax.fesem.Hyper(lr=scale.pick(0.1, 0.003))
    ((_, federations),) = by_writer(scale, validated=True).items()
    stated, rows = published("FeSEM", "both", "K=2..4", "FeSEM", "best_K"), []
    for seed, federation in enumerate(federations):
        pilots = choose_k(partial(fesem, model, local_work), hyper, federation, jax.random.key(seed), SIZES)
        scores = {f"score of K = {k}": round(score, 4) for k, score in pilots.scores.items()}
        rows.append({"seed": seed} | scores | {"chosen": pilots.n_clusters, "published": stated})
    show(scale, "choice", "Validation accuracy of pilots", rows)


if __name__ == "__main__":
    main(__doc__ or "", {f.__name__: f for f in (hands, components, choice)})
