"""FedCPS (Yang et al., CMC 2025): Tables 2 to 6, the adaptive lambda, personal layers. Hidden groups: hidden_groups.py.

python experiments/fedcps.py [table2 ... table6 strength personal] [--scale smoke|paper] [--seeds N]

FLJAX_DATA names the folder with mnist, fashion_mnist and cifar10.

What came out at smoke (2 cores, jax 0.10.2, all of it in 163 s, nothing compiled before; one seed):

    Fashion-MNIST    non-iid_1: FedAVG 0.724, Ditto 0.786, FedCPS 0.789    non-iid_2: 0.752, 0.758, 0.805
    CIFAR-10         no few-shot clients: Ditto 0.271, FedCPS 0.247        gamma 30 %: 0.372, 0.367
    k clusters       1: 0.337, 2: 0.332, 3: 0.324, more: 0.310             (10 rounds of CIFAR-10 are a beginning)
    lambda, median   few-shot clients 0.67 in the first third, 1.04 in the last; regular ones 0.35 and 0.48
    layers           shared_base 0.791, personal_layers 0.779, none 0.788 with twice the downlink

Few-shot clients lean on their cluster two to three times as much as regular ones, and more so over the 160 rounds, as
the paper says. Regular ones do too, where the paper has them fall: tau^2 falls from 4.3e-6 to 2.1e-6 for all, the
noise of their gradients only from 1.7e-4 to 1.5e-4 (that of the few-shot clients from 7e-5 to 5e-5), and n_i is fixed.

Table 2 at paper scale (100 clients, 10 a round, the FedCR CNN of 1,258,798 parameters), Fashion-MNIST, non-iid_1, seed
0, as far as it was run on the same machine: FedAVG 0.774 after 50 rounds and 0.824 after 100 (138 rounds in 21 minutes
at the lowest priority; published 0.884 after 250), FedCPS 0.829 after 50 (55 rounds in about 20 minutes; published
0.935).
"""

import numpy as np
from reporting import Methods, Result, Scale, beside, compare, last, main, published, show, some, table

from fljax.algorithms.ditto import DittoHyper, ditto
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedbabu import FedBABUHyper, fedbabu
from fljax.algorithms.fedcps import FedCPSHyper, fedcps
from fljax.algorithms.fedper import FedPerHyper, fedper
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import fedcr_cnn, mlp
from fljax.run.cost import Link, Processor, joules, seconds, working
from fljax.run.plots import learning_curves
from fljax.types import Examples, Federation, Model, Work

PAPER_NAMES = {"cifar10": "CIFAR10", "fashion_mnist": "FMNIST", "mnist": "MNIST"}


def data(name: str, scale: Scale, n_train: int = 3000, n_test: int = 600) -> tuple[Examples, Examples]:
    """All of a data set at the paper's scale, some of it at smoke."""
    train, test = (Examples(split.x, split.y) for split in load(name))
    return (train, test) if scale.paper else (some(train, n_train), some(test, n_test))


def federations(
    name: str, scale: Scale, partition: str, n_clients: int | None = None, **options: float
) -> list[Federation]:
    """The paper's 100 clients (smoke: 20), one federation a seed; at smoke one."""
    sets, n_clients = data(name, scale), n_clients or scale.pick(20, 100)
    return [PARTITIONS[partition](*sets, n_clients, seed=s, **options) for s in range(scale.pick(1, scale.n_seeds))]


def network(dataset: str, scale: Scale) -> Model:
    """FedCR's network; at smoke a small dense one of as many roles: base, cluster and client layers."""
    shape = (32, 32, 3) if dataset == "cifar10" else (28, 28, 1)
    return scale.pick(mlp(shape, (64, 32)), fedcr_cnn(shape))


def effort(scale: Scale) -> Work:
    """FedCR's 10 epochs of batches of 48."""
    return Work(epochs=scale.pick(3, 10), batch_size=scale.pick(16, 48))


def run(
    scale: Scale, methods: Methods, settings: dict[str, list[Federation]], n_rounds: int, every: int | None = None
) -> list[Result]:
    """10 % of the clients a round (smoke: half)."""
    folder, n_rounds = scale.pick(None, scale.folder / "runs"), scale.rounds or n_rounds
    chosen, share = (scale.chosen(methods), scale.chosen(settings)), scale.pick(0.5, 0.1)
    every = every or scale.pick(None, 50)  # the same however short a part of the run is
    return compare(*chosen, n_rounds, evaluate_every=every, participation=share, folder=folder)


def cps(model: Model, scale: Scale, n_clusters: int = 2, **options: object) -> tuple:
    """FedCPS as the paper tests it: every client's model up to date."""
    lr = scale.pick(0.05, 0.01)
    return fedcps(model, effort(scale), n_clusters, **({"deployed": "fresh"} | options)), FedCPSHyper(lr, max_norm=10.0)


def contenders(model: Model, scale: Scale, personal: bool = False) -> Methods:
    """FedCPS and those of its rivals that are cheap enough."""
    lr, work = scale.pick(0.05, 0.01), effort(scale)
    methods: dict = {
        "FedAVG": (fedavg(model, work), FedAvgHyper(lr)),
        "Ditto": (ditto(model, work), DittoHyper(lr, 0.1)),
        "FedCPS": cps(model, scale),
    }
    if scale.paper or personal:
        methods["FedPer"] = (fedper(model, work), FedPerHyper(lr))
        methods["FedBABU"] = (fedbabu(model, work), FedBABUHyper(lr))
    return methods


def table2(scale: Scale) -> None:
    """Table 2, Fashion-MNIST: accuracy under classes per client (non-iid_1) and class priors (non-iid_2)."""
    settings = {
        "non-iid_1": federations("fashion_mnist", scale, "few_shot"),
        "non-iid_2": federations("fashion_mnist", scale, "dirichlet_prior"),
    }
    methods = contenders(network("fashion_mnist", scale), scale)
    results = run(scale, methods, settings, scale.pick(15, 250))
    rows = table(results, {"accuracy": last("accuracy_macro"), "run s": lambda r: r.seconds})
    stated = {(s, m): published("FedCPS", "FMNIST", s, m, "acc_pct") for s in settings for m in methods}
    show(scale, "table2", "fashion_mnist: mean accuracy over clients", beside(rows, "accuracy", stated, 100))


def table3(scale: Scale) -> None:
    """Table 3: CIFAR-10 with a share gamma of few-shot clients."""
    shares = scale.pick((0.0, 0.3), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    names = {gamma: f"gamma={round(100 * gamma)}%" if gamma else "gamma=none(non-iid)" for gamma in shares}
    settings = {names[gamma]: federations("cifar10", scale, "few_shot", gamma=gamma) for gamma in shares}
    methods = {k: v for k, v in contenders(network("cifar10", scale), scale).items() if k != "FedAVG"}
    rows = table(run(scale, methods, settings, scale.pick(10, 500)), {"accuracy": last("accuracy_macro")})
    stated = {(s, m): published("FedCPS", "CIFAR10", s, m, "acc_pct") for s in settings for m in methods}
    show(scale, "table3", "cifar10, few-shot clients", beside(rows, "accuracy", stated, 100))


def table4(scale: Scale) -> None:
    """Table 4: seconds and joules of a client's round, from what is counted.

    The paper gives no model of its devices: link and processor are those for which FedAvg costs what the paper states.
    An operation is an example passed forward and backward; a forward pass alone is a third.
    """
    fed = {
        name: published("FedCPS", "CIFAR10", "non-iid_1", "FedAVG", name)
        for name in ("T_comp_s", "T_comm_s", "E_comp_J", "E_comm_J")
    }
    n_floats, size, epochs, chosen = 2_806_602, 360, 10, 50
    link = Link(uplink=32 * n_floats / fed["T_comm_s"], transmit=fed["E_comm_J"] / fed["T_comm_s"])
    processor = Processor(rate=epochs * size / fed["T_comp_s"], power=fed["E_comp_J"] / fed["T_comp_s"])
    extra = 2 * chosen / 3 + 2 * size  # two models compared, an epoch without the pull, a pass for sigma^2
    counted = {
        "FedAVG": (n_floats, epochs * size),
        "FedCPS": (n_floats + 2, epochs * size + extra),
        "FedCPS, fixed lambda": (n_floats + 1, epochs * size + 2 * chosen / 3),
        "FedPer": (n_floats - 10_250, epochs * size),
    }
    rows = []
    for name, (uplink, operations) in counted.items():
        time, energy = working(operations, processor)
        ours = {
            "T_comp_s": time,
            "T_comm_s": seconds(uplink, 0, link),
            "E_comp_J": energy,
            "E_comm_J": joules(uplink, 0, link),
        }
        row: dict = {"method": name}
        for metric, value in ours.items():
            row[metric] = round(float(value), 3)
            known = name.partition(",")[0] == name
            row[f"published {metric}"] = published("FedCPS", "CIFAR10", "non-iid_1", name, metric) if known else None
        rows.append(row)
    show(scale, "table4", "a round of one client, CIFAR-10", rows)


def table5(scale: Scale) -> None:
    """Table 5: more clients."""
    settings = {f"n={n}": federations("cifar10", scale, "few_shot", n) for n in scale.pick((20, 40), (100, 200, 500))}
    rows = table(
        run(scale, {"FedCPS": cps(network("cifar10", scale), scale)}, settings, scale.pick(10, 500)),
        {"accuracy": last("accuracy_macro")},
    )
    stated = (
        {(s, "FedCPS"): published("FedCPS", "CIFAR10", s, "FedCPS", "acc_pct") for s in settings} if scale.paper else {}
    )
    show(scale, "table5", "cifar10, number of clients", beside(rows, "accuracy", stated, 100))


def table6(scale: Scale) -> None:
    """Table 6: number of clusters."""
    model, names = network("cifar10", scale), {1: "k=1(Global)", 2: "k=2", 3: "k=3", 4: "k>3"}
    methods = {name: cps(model, scale, k) for k, name in names.items()}
    results = run(scale, methods, {"non-iid_2": federations("cifar10", scale, "dirichlet_prior")}, scale.pick(10, 500))
    rows = table(results, {"accuracy": last("accuracy_macro"), "clusters in use": last("n_clusters")})
    stated = {("non-iid_2", name): published("FedCPS", "CIFAR10", name, "FedCPS", "acc_pct") for name in methods}
    show(scale, "table6", "cifar10, number of clusters", beside(rows, "accuracy", stated, 100))


def by_kind(result: Result, few: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median lambda of the few-shot clients and of the others in each round; NaN where none took part."""
    value, kind = np.asarray(result.metrics["lambda"]), few[np.asarray(result.metrics["ids"])]
    return tuple(
        np.array([np.median(v[k]) if k.any() else np.nan for v, k in zip(value, mask, strict=True)])
        for mask in (kind, ~kind)
    )  # pyright: ignore[reportReturnType]


def strength(scale: Scale) -> None:
    """lambda of few-shot clients against the others over the rounds (the paper: rises, falls)."""
    given = federations("cifar10" if scale.paper else "fashion_mnist", scale, "few_shot", gamma=0.3)
    model = network("cifar10" if scale.paper else "fashion_mnist", scale)
    results = run(scale, {"FedCPS": cps(model, scale, deployed="own")}, {"gamma=30%": given}, scale.pick(160, 500))
    rows, curves = [], {}
    for result, federation in zip(results, given, strict=True):
        size = np.asarray(federation.train.size)
        few, regular = by_kind(result, size < size.max())
        third = len(few) // 3
        row: dict = {"seed": result.seed}
        for name, curve in (("few-shot", few), ("regular", regular)):
            row |= {
                f"{name}, first third": round(float(np.nanmedian(curve[1:third])), 3),
                f"{name}, last third": round(float(np.nanmedian(curve[-third:])), 3),
            }
        rows.append(row)
        if result.seed == 0:
            curves = {
                name: (np.flatnonzero(np.isfinite(c)) + 1, c[np.isfinite(c)])
                for name, c in (("few-shot", few), ("regular", regular))
            }
    show(scale, "strength", "median lambda", rows, learning_curves(curves, ylabel="lambda"))


def personal(scale: Scale) -> None:
    """With and without personal layers: accuracy, and the round from which it is within a point of its best."""
    model = network("fashion_mnist", scale)
    methods = {name: cps(model, scale, sharing=name) for name in ("shared_base", "personal_layers", "none")}
    given = {"non-iid_1": federations("fashion_mnist", scale, "few_shot")}
    results = run(scale, methods, given, scale.pick(16, 250), scale.pick(2, 10))
    rows = table(
        results,
        {
            "accuracy": last("accuracy_macro"),
            "round": arrived,
            "uplink": last("uplink"),
            "downlink": lambda r: float(np.mean(r.metrics["downlink"])),
        },
    )
    show(scale, "personal", "fashion_mnist, roles of layers", rows)


def arrived(result: Result) -> int:
    """The first tested round (from 1) within a point of the best accuracy."""
    accuracy = result.metrics["accuracy_macro"]
    return int(np.argmax(np.nan_to_num(accuracy) >= np.nanmax(accuracy) - 0.01)) + 1


if __name__ == "__main__":
    functions = (table2, table3, table4, table5, table6, strength, personal)
    main(__doc__ or "", {f.__name__: f for f in functions}, n_seeds=(3, 3))
