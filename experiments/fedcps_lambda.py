"""FedCPS: the adaptive lambda over the rounds, and accuracy with and without personal layers.

    python experiments/fedcps_lambda.py [strength personal] [--scale smoke|paper]

FLJAX_DATA names the folder with fashion_mnist and cifar10. The paper has lambda rise for few-shot clients and fall for
the others. In lambda = sigma^2 / (n^2 tau^2) n is fixed and tau^2 is one number for a cluster, so that the two kinds of
clients can part only through sigma^2, the noise of their own gradients. The paper does not say how tau^2 is estimated:
as the spread of the cluster's models or of the client's own, both kinds rise; as the cluster's mean of sigma^2 / n^2,
few-shot clients rise and the others fall. Beside lambda stands its value over the mean of the round's participants
("relative"). Lines and figures are in results/fedcps/.
"""

import numpy as np
from fedcps_methods import cps, federations, networks, run
from lines import keep_curves, keep_numbers, keep_runs
from reporting import Result, Scale, main
from table_figures import over_rounds
from tables import beside, last, published, show, table

from fljax.report.plots import learning_curves

SPREADS = {
    "spread of the cluster": ("adaptive", 0.01),
    "spread of the client": ("per_client", 0.01),
    "noise of the cluster": ("relative", 1.5),
}
"""What tau^2 is, and the option's name with a strength that brings the mean lambda to about the same."""

SMOOTHED = 21
FEW_SHOT, NON_IID = "gamma=30%", "non-iid_1"
"""The setting of each figure."""


def by_kind(result: Result, few_shot_clients: np.ndarray, relative: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Median lambda of the few-shot clients and of the others in each round; NaN where none took part.

    Where ``relative``, of lambda over the mean of all participants of the round.
    """
    lambdas, is_few_shot = np.asarray(result.metrics["lambda"]), few_shot_clients[np.asarray(result.metrics["ids"])]
    if relative:  # the first round has no tau^2 yet, and no pull
        lambdas = lambdas / np.where(lambdas.any(axis=1), lambdas.mean(axis=1), np.nan)[:, None]
    few_shot, others = (
        np.array([np.median(v[k]) if k.any() else np.nan for v, k in zip(lambdas, mask, strict=True)])
        for mask in (is_few_shot, ~is_few_shot)
    )
    return few_shot, others


def thirds(curve: np.ndarray) -> tuple[float, float]:
    """Medians over the first third of the rounds, without the first round, and over the last third."""
    third = len(curve) // 3
    return float(np.nanmedian(curve[1:third])), float(np.nanmedian(curve[-third:]))


def strength(scale: Scale) -> None:
    """lambda of few-shot clients against the others over the rounds (the paper: rises, falls)."""
    dataset = scale.pick("fashion_mnist", "cifar10")
    few_shot_federations, (model, _) = federations(dataset, scale, "few_shot", gamma=0.3), networks(dataset, scale)
    planned = scale.pick(160, 500)
    n_rounds = scale.rounds or planned
    methods = {}
    for name, (mode, factor) in scale.chosen(SPREADS).items():
        algorithm, hyper = cps(model, scale, deployed="own", lambda_mode=mode)
        methods[name] = algorithm, hyper.replace(strength=factor)
    results = run(scale, "strength", methods, {FEW_SHOT: few_shot_federations}, planned)
    rows, seed_curves, numbers = [], {}, {}
    for result in results:
        size = np.asarray(few_shot_federations[result.seed].train.size)
        few, regular = by_kind(result, size < size.max())
        row: dict = {"method": result.method, "seed": result.seed}
        for prefix, pair in (("", (few, regular)), ("relative ", by_kind(result, size < size.max(), relative=True))):
            for name, curve in zip(("few-shot", "regular"), pair, strict=True):
                begin, end = thirds(curve)
                row |= {f"{prefix}{name}, first third": round(begin, 3), f"{prefix}{name}, last third": round(end, 3)}
                metric = f"{prefix}lambda_change_{name}".replace(" ", "_")
                numbers[result.method, FEW_SHOT, result.seed, metric] = end - begin
        rows.append(row)
        for kind, curve in (("few-shot", few), ("regular", regular)):
            seed_curves.setdefault(f"{kind}, {result.method}", []).append(smooth(curve))
    place = ("FedCPS", "lambda", scale.pick("FMNIST", "CIFAR10"))
    keep_numbers(scale, place, numbers, (n_rounds, planned), few_shot="30% of the clients")
    # The first round has no pull, for nothing has been measured.
    curves = {
        name: (np.arange(2, n_rounds + 1), np.nanmean(values, axis=0)[1:]) for name, values in seed_curves.items()
    }
    figure = learning_curves(curves, f"lambda, median of {SMOOTHED} rounds")
    about = (
        f"{place[2]}, {few_shot_federations[0].train.n_clients} clients, 30 % of them few-shot, {n_rounds} rounds, "
        f"mean of {scale.seeds_in_words}; tau^2 is the spread or the noise that is named"
    )
    show(scale, "strength", "FedCPS: lambda of few-shot and of regular clients", rows, figure, place, about)


def smooth(curve: np.ndarray) -> np.ndarray:
    """The median of `SMOOTHED` rounds about each, fewer at the ends."""
    half = SMOOTHED // 2
    return np.array([np.nanmedian(curve[max(i - half, 1) : i + half + 1]) for i in range(len(curve))])


def roles(scale: Scale) -> tuple[str, ...]:
    """What FedCPS's layers can be, by its name for it."""
    return ("shared_base", "personal_layers", *scale.pick((), ("none",)))


def personal(scale: Scale) -> None:
    """With and without personal layers: accuracy, and the round from which it is within a point of its best.

    Published are the rounds of convergence on CIFAR-10, 470 with personal layers and 490 without, of 500; ours stand
    beside them in per cent of the run. The paper does not say when a run has converged.
    """
    dataset = scale.pick("fashion_mnist", "cifar10")
    model, _ = networks(dataset, scale)
    methods = {name: cps(model, scale, sharing=name) for name in roles(scale)}
    settings = {NON_IID: federations(dataset, scale, "few_shot")}
    results = run(scale, "personal", methods, settings, scale.pick(16, 500), scale.pick(2, 10))
    rows = table(
        results,
        {
            "accuracy": last("accuracy_macro"),
            "round": round_near_best,
            "% of the run": lambda r: 100 * round_near_best(r) / len(r.metrics["accuracy_macro"]),
            "uplink": last("uplink"),
            "downlink": lambda r: float(np.mean(r.metrics["downlink"])),
        },
    )
    keep_personal(scale, results)
    names = {"shared_base": "no personal layers", "personal_layers": "personal layers L_p=2"}
    stated = {
        (NON_IID, method): published("FedCPS", "CIFAR10", setting, "FedCPS", "convergence_round") / 5
        for method, setting in names.items()
    }
    figure, place = over_rounds(results, "accuracy_macro", "test accuracy"), personal_place(scale)
    about = f"{place[2]}, non-iid_1, {settings[NON_IID][0].train.n_clients} clients, {scale.seeds_in_words}; "
    about += "bands: least to most"
    rows = beside(rows, "% of the run", stated)
    show(scale, "personal", "FedCPS: personal layers or none", rows, figure, place, about)


def personal_place(scale: Scale) -> tuple[str, str, str]:
    """Where `personal`'s lines and figure are."""
    return "FedCPS", "personal", scale.pick("FMNIST", "CIFAR10")


def keep_personal(scale: Scale, results: list[Result]) -> None:
    """Accuracy of each, and the published rounds of convergence as a line of 500 rounds each."""
    names = {"shared_base": "no personal layers", "personal_layers": "personal layers L_p=2"}
    planned, place = scale.pick(16, 500), personal_place(scale)
    columns = {"accuracy_macro": last("accuracy_macro"), "arrived": round_near_best}
    keep_runs(scale, place, results, columns, planned)
    keep_curves(scale, place, results, ["accuracy_macro"], planned)
    if scale.paper:
        renamed = [r._replace(setting=names[r.method], method="FedCPS") for r in results if r.method in names]
        metric = "convergence_round"
        stated = {(s, "FedCPS", metric): published("FedCPS", "CIFAR10", s, "FedCPS", metric) for s in names.values()}
        keep_runs(scale, ("FedCPS", "text", "CIFAR10"), renamed, {metric: round_near_best}, planned, stated)


def round_near_best(result: Result) -> int:
    """The first tested round (from 1) within a point of the best accuracy."""
    accuracy = result.metrics["accuracy_macro"]
    return int(np.argmax(np.nan_to_num(accuracy) >= np.nanmax(accuracy) - 0.01)) + 1


if __name__ == "__main__":
    names = lambda scale: (*SPREADS, FEW_SHOT, *roles(scale), NON_IID)  # noqa: E731
    main(__doc__ or "", {f.__name__: f for f in (strength, personal)}, n_seeds=(3, 3), only=names)
