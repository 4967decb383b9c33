"""Federations with a known answer: small, fast to build, with hidden groups that a clustered method must find."""

from typing import Literal

import numpy as np

from fljax.choices import Natural, check_choices
from fljax.data.federation import build, on_host
from fljax.data.partition.check import check_whole
from fljax.ranges import Number, check_number
from fljax.types import Federation


def linear_groups(
    n_clients: int = 12,
    n_groups: int = 3,
    *,
    seed: Natural = 0,
    n_classes: int = 4,
    examples: int = 60,
    side: int = 4,
    noise: float = 0.3,
    differ: Literal["labels", "features"] = "labels",
    ragged: float = 0.0,
    val_fraction: float = 0.0,
    test_fraction: float = 0.25,
) -> Federation:
    """Gaussian classes that a linear model separates within a group and, by design, not across groups.

    Class c has a mean ``m_c ~ N(0, I)`` of ``side * side`` features and examples ``x = m_c + noise * N(0, I)``. With
    ``differ="labels"`` group g calls class c by the name ``(c + g) mod n_classes``: equal features, other answers. With
    ``differ="features"`` group g sees its features rolled by g places: equal answers, other features. Clients are in
    groups of equal size (within one), in order: the first are group 0.

    Args:
        n_clients: at least ``n_groups``.
        n_groups: at most ``n_classes`` for "labels", at most ``side * side`` for "features".
        seed: same seed, same federation.
        n_classes: at least 2.
        examples: mean number of examples of a client.
        side: images are (side, side, 1) float32.
        noise: standard deviation within a class.
        differ: what tells the groups apart.
        ragged: sigma of log-normal client sizes; 0: equal sizes.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for test.

    Raises:
        ValueError: more groups than clients or than the classes or features can tell apart, or a number that cannot be.
    """
    check_choices(linear_groups, {"differ": differ, "seed": seed})
    check_whole("n_clients", n_clients, 1)
    check_whole("n_classes", n_classes, 2)
    check_whole("side", side, 1)
    check_whole("examples", examples, 1)
    limit = n_classes if differ == "labels" else side * side
    check_whole("n_groups", n_groups, 1, min(n_clients, limit), f" for {n_clients} clients and {differ}")
    sigma = Number(meaning="sigma of the sizes' logarithm", least=0)
    check_number("ragged", ragged, sigma)
    rng = np.random.default_rng(seed)
    size = ragged_sizes(rng, n_clients, examples, ragged)
    group = np.arange(n_clients) * n_groups // n_clients
    client = np.repeat(np.arange(n_clients), size)
    label = rng.integers(n_classes, size=len(client))
    means = rng.standard_normal((n_classes, side * side))
    x = means[label] + noise * rng.standard_normal((len(client), side * side))
    y = label
    if differ == "labels":
        y = (label + group[client]) % n_classes
    else:
        x = np.take_along_axis(x, (np.arange(side * side) - group[client][:, None]) % (side * side), axis=1)
    pool = on_host(x.reshape(-1, side, side, 1).astype(np.float32), y)
    owned = np.split(np.arange(len(client)), np.cumsum(size)[:-1])
    return build(pool, owned, (1 - val_fraction - test_fraction, val_fraction, test_fraction), seed, group=group)


def ragged_sizes(rng: np.random.Generator, n_clients: int, mean: float, sigma: float, minimum: int = 4) -> np.ndarray:
    """(clients,) sizes, log-normal with the given mean and sigma of the logarithm; none below ``minimum``.

    ``sigma = 0`` gives ``round(mean)`` everywhere.
    """
    draws = mean * np.exp(sigma * rng.standard_normal(n_clients) - sigma**2 / 2)
    return np.maximum(np.round(draws).astype(np.int64), minimum)
