"""Attacks x defences x methods on real images: accuracy of the honest clients, success of the trigger, clusters.

    python experiments/hostile.py                    # all three tables, smoke scale: digits, 12 clients, one seed
    python experiments/hostile.py attacks --seeds 3
    python experiments/hostile.py systems --scale paper

``attacks``: what each attack does to FedAvg and to each defence. ``systems``: FedAvg, Ditto, IFCA, FeSEM and the five
systems under the attacks of `UNDER`, with the agreement of their clusters with the true groups. ``placed``: attackers
spread over the groups, or all in one. A quarter of the clients attacks from the third round on.

Smoke: 1,797 digits of 8 x 8 pixels turned in one of three ways, an MLP 64-32-10, 12 rounds of 2 epochs. Paper: MNIST
(FLJAX_DATA names its folder), 20 clients, an MLP 784-64-10, 40 rounds of 5 epochs, 3 seeds.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from reporting import Scale, main
from table_figures import grid
from tables import Row, show, spread

import fljax
from fljax.attacks import ATTACKS, Attack, attacked
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.models import mlp
from fljax.types import Federation, Model, Work

SHARE, START = 0.25, 2
DEFENCES = ("", "+median", "+trimmed_mean", "+krum", "+multi_krum", "+geometric_median", "+clip_update")
NUMBERS: Mapping[str, float] = {"n_attackers": 3, "n_selected": 6, "trim": 0.25, "clip": 0.5}
ATTACKED_BY: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "label_flip": {},
    "sign_flip": {"scale": 3.0},
    "alie": {},
    "ipm": {"scale": 3.0},
    "fang": {},
    "min_max": {},
    "min_sum": {},
    "model_replacement": {"scale": 5.0, "width": 2},
    "free_rider": {},
}
QUICK = ("none", "sign_flip", "alie", "model_replacement")
UNDER = ("none", "sign_flip", "label_flip")
SYSTEMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, float]]] = {
    "fedavg": ({}, {}),
    "ditto": ({}, {}),
    "ifca": ({"n_clusters": 3}, {}),
    "fesem": ({"n_clusters": 3}, {}),
    "fedtsdp": ({"public_batch": 50, "n_draws": 5}, {}),
    "layercfl": ({"layers": "all"}, {}),
    "dcpfl": ({}, {}),
    "fedcps": ({"n_clusters": 3}, {}),
}


@cache
def federation(paper: bool, seed: int) -> Federation:
    """Real images turned in one of three ways, a way a group."""
    train, test = load("mnist" if paper else "digits")
    n_clients = 20 if paper else 12
    return fljax.PARTITIONS["rotated_groups"](train, test, n_clients, n_groups=3, seed=seed, n_public=100)


def network(scale: Scale) -> Model:
    """An MLP for the images."""
    one = federation(scale.paper, 0)
    return mlp(one.train.pool.x.shape[1:], (scale.pick(32, 64),), n_classes(one))


def attack_of(name: str, **who: Any) -> Attack:
    """An attack with the numbers of `ATTACKED_BY`, by a share of the clients."""
    return ATTACKS[name](**ATTACKED_BY[name], **({"share": SHARE, "start": START} | who if name != "none" else {}))


def measured(scale: Scale, name: str, attack: Attack, choices: Mapping[str, Any], numbers: Mapping[str, float]) -> Row:
    """One method under one attack over all seeds."""
    method = fljax.compose(name)
    algorithm = method(network(scale), Work(scale.pick(2, 5), 32), **choices)
    fields = {field for field in NUMBERS if field in fljax.numbers.as_dict(method.Hyper())}
    hyper = method.Hyper(lr=scale.pick(0.3, 0.1), **{field: NUMBERS[field] for field in fields}, **numbers)
    n_rounds, found = scale.rounds or scale.pick(12, 40), []
    for seed in range(scale.n_seeds):
        made = attacked(algorithm, federation(scale.paper, seed), attack)
        given = (made.algorithm, hyper, made.federation, jax.random.key(seed), n_rounds)
        found.append(jax.device_get(fljax.simulate(*given, evaluate_every=n_rounds)[1]))
    row: Row = {"method": name, "attack": attack.name, "accuracy": of_seeds(found, "accuracy_macro")}
    if "attack_success" in found[0]:
        row["attack success"] = of_seeds(found, "attack_success")
    if "ari" in found[0]:
        row["ARI"] = of_seeds(found, "ari")
    return row


def of_seeds(found: Sequence[Mapping[str, np.ndarray]], name: str) -> Any:
    """A metric after the last round, over the seeds."""
    return spread(metrics[name][-1] for metrics in found)


def attacks(scale: Scale) -> None:
    """What each attack does to FedAvg, and to each defence."""
    names = scale.chosen(dict.fromkeys(scale.pick(QUICK, tuple(ATTACKED_BY))))
    defences = scale.pick(("", "+median", "+multi_krum", "+clip_update"), DEFENCES)
    rows = [measured(scale, f"fedavg{defence}", attack_of(name), {}, {}) for name in names for defence in defences]
    title = "FedAvg and its defences: a quarter of the clients attacks"
    show(scale, "attacks", title, rows, grid(rows, "method", "attack"))


def systems(scale: Scale) -> None:
    """Personalised and clustered methods under attack."""
    names = scale.pick(("fedavg", "ditto", "ifca"), tuple(SYSTEMS))
    chosen = scale.chosen(dict.fromkeys(names))
    under = scale.pick(("none", "sign_flip"), UNDER)
    rows = [measured(scale, name, attack_of(attack), *SYSTEMS[name]) for name in chosen for attack in under]
    title = "Methods under attack: accuracy of the honest, agreement of clusters with groups"
    show(scale, "systems", title, rows, grid(rows, "method", "attack"))


def placed(scale: Scale) -> None:
    """Attackers spread over the groups, or all in one: per cluster a quarter is few, or everybody."""
    rows = [
        {"placed": where} | measured(scale, name, attack_of("sign_flip", placed=where), *SYSTEMS["ifca"])
        for where in ("spread", "one_group")
        for name in ("ifca", "ifca+median")
    ]
    title = "IFCA under sign flips, attackers spread over the groups or in one"
    show(scale, "placed", title, rows, grid(rows, "method", "placed"))


if __name__ == "__main__":
    main(__doc__ or "", {"attacks": attacks, "systems": systems, "placed": placed}, (1, 3))
