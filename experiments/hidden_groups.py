"""Federations of real images whose true groups are known, and how well a method finds them."""

from collections.abc import Mapping, Sequence

import numpy as np
from reporting import Result, Row, Scale, first_round, last, some, table

from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.types import Examples, Federation

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "rotated_groups": {},
    "dominant_label_groups": {"beta": 0.8},
    "writers": {"sigma": 0.0},
}


def settings(scale: Scale, n_clients: int, n_groups: int, val_fraction: float = 0.0) -> dict[str, list[Federation]]:
    """Rotated images, a dominant label, and hands of writers (a proxy): MNIST, at smoke 3,000 images of it."""
    train, test = (Examples(split.x, split.y) for split in load("mnist"))
    if not scale.paper:
        train, test = some(train, 3000), some(test, 1000)
    return {
        name: [
            PARTITIONS[name](train, test, n_clients, seed=s, n_groups=n_groups, val_fraction=val_fraction, **options)
            for s in range(scale.n_seeds)
        ]
        for name, options in SETTINGS.items()
    }


def found(results: Sequence[Result], baseline: str = "FedAvg") -> list[Row]:
    """Of every clustered method: agreement with the truth, when it was best, and the margin over the baseline."""
    base = {(r.setting, r.seed): r.metrics["accuracy_macro"][-1] for r in results if r.method == baseline}
    columns = {
        "best ARI": lambda r: np.max(r.metrics["ari"]),
        "its round": lambda r: int(np.argmax(r.metrics["ari"])) + 1,
        "ARI stays 1 from": first_round("ari", lambda ari: ari == 1),
        "last ARI": last("ari"),
        "clusters": last("n_clusters"),
        "accuracy": last("accuracy_macro"),
        "margin": lambda r: r.metrics["accuracy_macro"][-1] - base[r.setting, r.seed],
    }
    return table([r for r in results if "ari" in r.metrics], columns)
