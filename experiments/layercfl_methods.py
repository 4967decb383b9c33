"""What LayerCFL's experiments run: clients in groups, networks, the rule of splitting, and runs without splits.

Paper's scale has the published ``eps_1``, a tenth of the largest mean update so far. At smoke no mean update falls so
far in so few rounds; there it is a half.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from reporting import Methods, Result, Scale, compare, random_examples, same_shapes

import fljax
from fljax.algorithms.cfl import cfl
from fljax.algorithms.layercfl import layercfl
from fljax.algorithms.layercfl.similarity import chosen_layers, layers_by_pilot
from fljax.data.datasets import load
from fljax.data.federation import on_host
from fljax.data.images import resize
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS, cnn
from fljax.types import Examples, Federation, Model, Work

N_GROUPS = 4
KINDS = {"rotation": "feature", "dominant label": "label"}
"""Setting -> kind of skew, by which LayerCFL chooses its layers."""
DATA = {False: "FMNIST", True: "CIFAR10"}
"""At the paper's scale or not -> data set of the lines."""
LETTERS = {"emnist/letters": "EMNIST", "fashion_mnist": "FMNIST", "cifar10": "CIFAR10"}
"""`letters` -> data set of the lines."""


def place_of(table: str, data: str) -> tuple[str, str, str]:
    """Where lines and a figure of `letters` are."""
    return "LayerCFL", table, LETTERS[data]


@cache
def images(paper: bool, name: str) -> Any:
    """Train and test examples: whole (letters at 32x32), or at 14x14 with some of the test images."""
    train, test = load(name)
    if not paper:
        test = random_examples(test, 1200)
    side = {False: 14, True: 32}[paper]
    if train.x.shape[1] == side:
        return train, test
    return tuple(on_host(resize(np.asarray(split.x), side), split.y) for split in (train, test))


def photographs(scale: Scale) -> str:
    """The data of most tables."""
    return scale.pick("fashion_mnist", "cifar10")


@cache
def letters(scale: Scale) -> str:
    """EMNIST letters, the paper's other data, where this machine has them, else what the other tables show."""
    try:
        load("emnist/letters")
    except FileNotFoundError:
        return photographs(scale)
    return "emnist/letters"


def network(scale: Scale, name: str | None = None) -> Model:
    """VGG16, or a CNN; of 17,786 parameters for 10 classes."""
    train, _ = images(scale.paper, name or photographs(scale))
    n_classes = 26 if name == "emnist/letters" else 10
    if scale.paper:
        return MODELS["vgg16"](input_shape=train.x.shape[1:], n_classes=n_classes)
    return cnn(train.x.shape[1:], n_classes, (8, 16), 5, "SAME", "each", (32,), (0.0, 0.0))


@cache
def settings(scale: Scale, name: str, examples: int, n_clients: int, n_groups: int) -> dict[str, list[Federation]]:
    """Federations by setting, one a seed; all of one shape, so that a program serves them all. "iid" has no groups."""
    train, test = images(scale.paper, name)
    beta = scale.pick(0.8, 0.5) if n_groups == N_GROUPS else 0.8
    options: dict[str, Mapping[str, Any]] = {
        "rotation": {"n_groups": n_groups},
        "dominant label": {"n_groups": n_groups, "beta": beta},
    }
    if n_groups == N_GROUPS:
        options |= {"iid": {"n_groups": 1}}
    partitions = {"dominant label": PARTITIONS["dominant_label_groups"]}
    drawn = {
        (kind, seed): partitions.get(kind, PARTITIONS["rotated_groups"])(
            train, test, n_clients, seed=seed, examples=examples, **kind_options
        )
        for kind, kind_options in options.items()
        for seed in range(max(5, scale.n_seeds) if kind == "iid" else scale.n_seeds)
    }
    widened = dict(zip(drawn, same_shapes(same_pools(list(drawn.values()))), strict=True))
    return {
        kind: [federation for (drawn_kind, _), federation in widened.items() if drawn_kind == kind] for kind in options
    }


def same_pools(federations: Sequence[Federation]) -> list[Federation]:
    """The federations with pools of one size: the rows that somebody has, and some of them again where they are few."""
    splits = ("train", "test")
    rows_in_use = [
        np.unique(np.concatenate([getattr(f, split).index.ravel() for split in splits])) for f in federations
    ]
    result = []
    for federation, rows in zip(federations, rows_in_use, strict=True):
        pool, kept_rows = federation.train.pool, np.resize(rows, max(map(len, rows_in_use)))
        small_pool = Examples(jnp.asarray(np.asarray(pool.x)[kept_rows]), jnp.asarray(np.asarray(pool.y)[kept_rows]))
        data_of_split = {split: getattr(federation, split) for split in splits}
        data_of_split = {
            split: data._replace(pool=small_pool, index=jnp.asarray(np.searchsorted(rows, data.index), jnp.int32))
            for split, data in data_of_split.items()
        }
        result.append(federation._replace(**data_of_split))
    return result


def fewer(federation: Federation, n: int, seed: int) -> Federation:
    """The federation with ``n`` of each client's training images; those of a smaller ``n`` are among them."""
    if n == federation.train.index.shape[1]:
        return federation
    order = np.random.default_rng(seed).permutation(federation.train.index.shape[1])
    train = federation.train._replace(
        index=federation.train.index[:, order], size=jnp.minimum(federation.train.size, n)
    )
    return federation._replace(train=train)


def federations(scale: Scale, kind: str) -> list[Federation]:
    """One federation a seed, five at least for "iid"."""
    return settings(scale, photographs(scale), scale.pick(300, 1000), scale.pick(12, 20), N_GROUPS)[kind]


def work(scale: Scale) -> Work:
    """One local epoch."""
    return Work(1, 50, optimizer="adam") if scale.paper else Work(1, 30)


def numbers(scale: Scale, kind: str) -> dict[str, Any]:
    """What the methods of a setting share, and the rule of splitting."""
    if scale.paper:
        return {"lr": 1e-3, "eps_share": 0.1, "eps_ratio": 4.0, "r_min": 5 if kind == "dominant label" else 9}
    rule = {"eps_share": 0.5, "eps_ratio": 1.6, "gamma_max": 0.6, "r_min": 5 if kind == "dominant label" else 9}
    return {"lr": 0.05, "momentum": 0.5} | rule | {"min_size": 3, "spacing": 1.5}


def methods(scale: Scale, kind: str) -> Methods:
    """LayerCFL with the layers for the kind of skew, CFL by the same rule of splitting, and FedAvg."""
    model, local_work, values = network(scale), work(scale), numbers(scale, kind)
    never = fljax.cfl.Hyper(**values).replace(eps_2=float("inf"))
    return {
        "LayerCFL": (layercfl(model, local_work, layers=rule_layers(model, kind)), fljax.layercfl.Hyper(**values)),
        "CFL": (cfl(model, local_work), fljax.cfl.Hyper(**values)),
        "FedAvg": (cfl(model, local_work), never),  # what CFL without a split is (tests), in no program of its own
    }


def rule_layers(model: Model, kind: str) -> tuple[str, ...]:
    """The layers that the paper's rule compares. By name, so that a pilot's equal choice is the same program."""
    return chosen_layers(model, KINDS.get(kind, "feature"))


def pilot_layers(scale: Scale, kind: str, seed: int = 0) -> tuple[str, ...]:
    """The layers that a pilot on one seed's clients chooses, see `unsplit`."""
    index, metrics = seen_in_round(scale) - 1, unsplit(scale, kind)[seed].metrics
    gap = {name.removeprefix("gap_"): float(value[index]) for name, value in metrics.items() if name.startswith("gap_")}
    return layers_by_pilot(network(scale), gap)


def n_unsplit(scale: Scale) -> int:
    """Rounds of the runs without splits."""
    return scale.rounds or planned_unsplit(scale)


def planned_unsplit(scale: Scale) -> int:
    """Rounds of whole runs without splits."""
    return scale.pick(15, 50)


def seen_in_round(scale: Scale) -> int:
    """The round whose gaps a pilot compares."""
    return min(scale.pick(10, 30), n_unsplit(scale))


def unsplit(scale: Scale, kind: str) -> list[Result]:
    """Runs without splits, whose metrics are the gaps of every layer and measure in every round."""
    examples = scale.pick(300, 1000)
    return unsplit_with(scale, kind, photographs(scale), examples, examples)


@cache
def unsplit_with(scale: Scale, kind: str, name: str, largest: int, examples: int) -> list[Result]:
    """`unsplit` with so many of the ``largest`` number of each client's images; one program for all."""
    drawn = settings(scale, name, largest, scale.pick(12, 20), N_GROUPS)[kind]
    drawn = [fewer(federation, examples, seed) for seed, federation in enumerate(drawn)]
    algorithm = layercfl(
        network(scale, name),
        work(scale),
        layers=KINDS[kind],
        group=tuple(np.asarray(drawn[0].group).tolist()),
    )
    hyper = fljax.layercfl.Hyper(**numbers(scale, kind)).replace(eps_2=float("inf"))
    return compare({"unsplit": (algorithm, hyper)}, {f"{kind}, {examples} images": drawn}, n_unsplit(scale))
