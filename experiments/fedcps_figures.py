"""FedCPS beyond its tables: clients with wrong labels, what models make of test images (t-SNE), and who has what.

    python experiments/fedcps_figures.py [hostile outputs labels] [--scale smoke|paper] [--seeds N]

Settings are those of fedcps_methods.py. The paper speaks of malicious clients without saying what they do; here their
training labels are c -> 9 - c, and accuracy is that of the honest clients. Its t-SNE figures are of representations of
networks that are not described; here they are of the outputs of each client's model on its own test images. Lines and
figures are in results/fedcps/.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fedcps_methods import contenders, federations, networks, run
from lines import keep_numbers
from matplotlib.figure import Figure
from reporting import Result, Scale, main, same_shapes
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from table_figures import against, maps
from tables import Row, show, spread

from fljax.data.federation import class_histogram
from fljax.report.plots import COLORS
from fljax.run.one_round import split_key
from fljax.run.simulate import simulate
from fljax.types import Examples, Federation

DATASET, PUBLISHED_DATA = "fashion_mnist", "FMNIST"
SHARES = {f"{round(100 * share)}% wrong": share for share in (0.0, 0.2, 0.4)}
"""Of clients with wrong labels."""

COMPARED = ("FedAVG", "FedPer", "Ditto", "FedCPS")
HONEST = "accuracy of the honest, %"


def with_wrong_labels(federation: Federation, share: float, seed: int) -> tuple[Federation, np.ndarray]:
    """The federation with so many clients' training labels turned round, and who they are, (clients,) bool.

    Clients of this partition share no image, so that turning a client's rows leaves the others' alone.
    """
    n_clients = federation.train.n_clients
    chosen_clients = np.random.default_rng(seed).permutation(n_clients)[: round(share * n_clients)]
    is_hostile = np.isin(np.arange(n_clients), chosen_clients)
    pool = federation.train.pool
    y, index, size = np.array(pool.y), np.asarray(federation.train.index), np.asarray(federation.train.size)
    for client in chosen_clients:
        rows = index[client, : size[client]]
        y[rows] = 9 - y[rows]
    return federation._replace(train=federation.train._replace(pool=Examples(pool.x, jnp.asarray(y)))), is_hostile


def hostile(scale: Scale) -> None:
    """Accuracy of honest clients when some train on wrong labels: FedCPS against FedAvg, FedPer and Ditto."""
    methods, planned = contenders(DATASET, scale, *COMPARED), scale.pick(16, 250)
    clean_federations, settings, hostile_masks = federations(DATASET, scale, "few_shot"), {}, {}
    for name, share in SHARES.items():
        changed = [with_wrong_labels(federation, share, seed) for seed, federation in enumerate(clean_federations)]
        settings[name] = same_shapes([federation for federation, _ in changed])
        hostile_masks |= {(name, seed): mask for seed, (_, mask) in enumerate(changed)}
    results = run(scale, "hostile", methods, settings, planned, scale.pick(2, 50))
    numbers, rows = {}, []
    for result in results:
        numbers[result.method, result.setting, result.seed, "honest_acc_pct"] = honest_accuracy(result, hostile_masks)
    for method, setting in dict.fromkeys((r.method, r.setting) for r in results):
        values = [v for (m, s, _, _), v in numbers.items() if (m, s) == (method, setting)]
        share = {"clients with wrong labels, %": 100 * SHARES[setting]}
        rows.append({"method": method, "setting": setting} | share | {HONEST: spread(values)})
    n_rounds, place = scale.rounds or planned, ("FedCPS", "hostile", PUBLISHED_DATA)
    keep_numbers(scale, place, numbers, (n_rounds, planned), labels="9 - c")
    figure = against(rows, "clients with wrong labels, %", value=HONEST)
    n_clients = clean_federations[0].train.n_clients
    about = (
        f"{PUBLISHED_DATA}, non-iid_1, {n_clients} clients, {n_rounds} rounds, {scale.seeds_in_words}; "
        "bands: least to most"
    )
    show(scale, "hostile", "FedCPS and rivals: clients with wrong labels", rows, figure, place, about)


def honest_accuracy(result: Result, hostile_masks: dict[tuple[str, int], np.ndarray]) -> float:
    """Mean accuracy of the clients with right labels, %, over those of the last ten rounds that end with a test."""
    accuracies = np.asarray(result.metrics["client_accuracy"])[-10:]
    return 100 * float(np.nanmean(accuracies[:, ~hostile_masks[result.setting, result.seed]]))


def projection() -> Any:
    """t-SNE; ``Any``, because a type checker takes ten seconds to infer what its untyped ``fit_transform`` returns."""
    return TSNE(n_components=2, init="pca", random_state=0, perplexity=30)


def outputs(scale: Scale) -> None:
    """t-SNE of the outputs of clients' models on their test images, FedAVG and FedCPS; how well classes part."""
    federation, planned = federations(DATASET, scale, "few_shot")[0], scale.pick(16, 250)
    n_rounds, key, rows, numbers = scale.rounds or planned, jax.random.key(0), [], {}
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    participation = scale.pick(0.5, 0.1)
    for i, (name, (algorithm, hyper)) in enumerate(contenders(DATASET, scale, "FedAVG", "FedCPS").items()):
        state, _ = simulate(
            algorithm, hyper, federation, key, n_rounds, evaluate_every=n_rounds, participation=participation
        )
        models = algorithm.deploy(split_key(key).deploy, hyper, state, federation.train)
        client_outputs, classes = logits(models, federation, scale)
        points = projection().fit_transform(client_outputs)
        score = float(silhouette_score(client_outputs, classes))
        rows.append({"method": name, "images": len(classes), "silhouette of the outputs": round(score, 3)})
        numbers[name, "non-iid_1", 0, "silhouette"] = score
        axes = figure.add_subplot(1, 2, i + 1)
        for label in np.unique(classes):
            axes.scatter(*points[classes == label].T, s=8, color=COLORS[int(label) % len(COLORS)], label=str(label))
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{name}: silhouette of the outputs {score:.2f}", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", title="class", frameon=False)
    place = ("FedCPS", "outputs", PUBLISHED_DATA)
    keep_numbers(scale, place, numbers, (n_rounds, planned))
    about = f"{PUBLISHED_DATA}, non-iid_1, test images of 10 of {federation.train.n_clients} clients, "
    about += f"{n_rounds} rounds, seed 0"
    show(scale, "outputs", "t-SNE of the outputs of clients' models", rows, figure, place, about)


def logits(models, federation: Federation, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of ten clients' models on up to 60 of their test images each, and the images' classes."""
    (model, _), client_outputs, classes = networks(DATASET, scale), [], []
    model_rows = np.asarray(models.row)
    for client in range(10):
        params = jax.tree.map(lambda leaf, r=model_rows[client]: leaf[min(int(r), len(leaf) - 1)], models.params)
        rows = np.asarray(federation.test.index)[client, : min(60, int(federation.test.size[client]))]
        client_outputs.append(np.asarray(model.apply(params, federation.test.pool.x[rows], None)[0]))
        classes.append(np.asarray(federation.test.pool.y)[rows])
    return np.concatenate(client_outputs), np.concatenate(classes)


def labels(scale: Scale) -> None:
    """Images of each class that each client has, in the paper's two settings."""
    rows: list[Row] = []
    panels, numbers = {}, {}
    for name, partition in (("non-iid_1", "few_shot"), ("non-iid_2", "dirichlet_prior")):
        counts = np.asarray(class_histogram(federations(DATASET, scale, partition)[0].train, 10))
        panels[name] = counts.T
        row: Row = {"setting": name, "classes of a client, mean": float((counts > 0).sum(1).mean())}
        rows.append(row | {"images, least": int(counts.sum(1).min()), "most": int(counts.sum(1).max())})
        largest_four = np.sort(counts, axis=1)[:, -4:].sum(1) / counts.sum(1)
        values = {"classes_mean": (counts > 0).sum(1).mean(), "share_of_four_classes_pct": 100 * largest_four.mean()}
        values |= {"images_least": counts.sum(1).min(), "images_most": counts.sum(1).max()}
        numbers |= {("partition", name, 0, metric): float(value) for metric, value in values.items()}
    place, n_clients = ("FedCPS", "labels", PUBLISHED_DATA), next(iter(panels.values())).shape[1]
    keep_numbers(scale, place, numbers, (0,), clients=n_clients)
    figure = maps(
        list(panels.items()), ("training images", "training images"), ("class", "client"), without_diagonal=False
    )
    about = f"{PUBLISHED_DATA}, {n_clients} clients, seed 0"
    show(scale, "labels", "Images of each class that each client has", rows, figure, place, about)


if __name__ == "__main__":
    functions, names = (hostile, outputs, labels), (*COMPARED, *SHARES)
    main(__doc__ or "", {f.__name__: f for f in functions}, n_seeds=(3, 1), only=lambda _: names)
