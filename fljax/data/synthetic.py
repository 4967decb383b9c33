"""Synthetic federations: hidden groups that a clustered method must find, and Synthetic(alpha, beta)."""

from typing import Literal

import numpy as np

from fljax.choices import Seed, check_choices
from fljax.data.federation import build, on_host
from fljax.data.partition.check import check_whole
from fljax.ranges import Number, check_number
from fljax.types import Federation


def linear_groups(
    n_clients: int = 12,
    n_groups: int = 3,
    *,
    seed: Seed = 0,
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
    ``differ="labels"``, class c has the label ``(c + g) mod n_classes`` in group g: equal features, other labels. With
    ``differ="features"``, the features of group g are rolled by g places: equal labels, other features. Groups have
    equal size (within one) and are in order: the first clients are group 0.

    Args:
        n_clients: at least ``n_groups``.
        n_groups: at most ``n_classes`` for "labels", at most ``side * side`` for "features".
        seed: same seed, same federation.
        n_classes: at least 2.
        examples: mean number of examples of a client.
        side: images are (side, side, 1) float32.
        noise: standard deviation within a class.
        differ: whether groups differ in "labels" or "features".
        ragged: sigma of log-normal client sizes; 0: equal sizes.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for test.

    Raises:
        ValueError: more groups than clients, or than classes or features can distinguish; or an invalid number.
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


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    n_clients: int = 30,
    *,
    iid: bool = False,
    seed: Seed = 0,
    n_features: int = 60,
    n_classes: int = 10,
    val_fraction: float = 0.0,
    test_fraction: float = 0.1,
) -> Federation:
    """Synthetic(alpha, beta): each client has its own logistic regression, and features about its own mean.

    Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, after Shamir et al., ICML 2014; the data of FedProx, q-FFL,
    pFedMe and others. Client k has ``W_k, b_k ~ N(u_k, 1)`` with ``u_k ~ N(0, alpha)``, features ``x ~ N(v_k, S)`` with
    ``v_k ~ N(B_k, 1)``, ``B_k ~ N(0, beta)`` and ``S_jj = j^-1.2``, and labels ``argmax(W_k x + b_k)``. It has 50
    examples and a log-normal number more (the logarithm has mean 4 and standard deviation 2), so that few clients have
    most examples.

    As in the authors' code, alpha and beta are standard deviations (the paper calls them variances), and u_k is one
    number for all classes: it is added to all logits of an example alike, so the data do not depend on alpha.

    Args:
        alpha: standard deviation of u_k, the mean of W_k and b_k.
        beta: standard deviation of B_k, the mean of v_k.
        n_clients: number of clients.
        iid: True: all clients have the same W and b ~ N(0, 1) and features about 0; alpha and beta are not used.
        seed: same seed, same federation.
        n_features: inputs are (n_features,) float32.
        n_classes: at least 2.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for test.

    Raises:
        ValueError: a number is out of its range.
    """
    x, y, client = logistic_users(
        alpha, beta, n_clients, iid=iid, seed=seed, n_features=n_features, n_classes=n_classes
    )
    owned = np.split(np.arange(len(client)), np.cumsum(np.bincount(client))[:-1])
    return build(on_host(x, y), owned, (1 - val_fraction - test_fraction, val_fraction, test_fraction), seed)


def logistic_users(
    alpha: float,
    beta: float,
    n_users: int = 30,
    *,
    iid: bool = False,
    seed: Seed = 0,
    n_features: int = 60,
    n_classes: int = 10,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The examples of `synthetic`: x (n, features) float32, y (n,) and their clients (n,), ascending.

    Raises:
        ValueError: a number is out of its range.
    """
    check_choices(logistic_users, {"seed": seed})
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value, Number(meaning="standard deviation", least=0))
    for name, value, least in (("n_clients", n_users, 1), ("n_features", n_features, 1), ("n_classes", n_classes, 2)):
        check_whole(name, value, least)
    rng = np.random.default_rng(seed)
    size = rng.lognormal(4, 2, n_users).astype(np.int64) + 50
    user = np.repeat(np.arange(n_users), size)
    scale = np.arange(1, n_features + 1) ** -0.6  # standard deviations
    x = scale * rng.standard_normal((len(user), n_features))
    if iid:
        weights, bias = rng.standard_normal((1, n_features, n_classes)), rng.standard_normal((1, n_classes))
    else:
        u, center = (deviation * rng.standard_normal((n_users, 1)) for deviation in (alpha, beta))
        weights = u[..., None] + rng.standard_normal((n_users, n_features, n_classes))
        bias = u + rng.standard_normal((n_users, n_classes))
        x += (center + rng.standard_normal((n_users, n_features)))[user]
    begins = [0, *np.cumsum(size)]
    pairs = zip(
        begins[:-1], begins[1:], *(np.broadcast_to(a, (n_users, *a.shape[1:])) for a in (weights, bias)), strict=True
    )
    y = np.concatenate([(x[low:high] @ w + b).argmax(axis=1) for low, high, w, b in pairs])
    return x.astype(np.float32), y.astype(np.int32), user


def ragged_sizes(rng: np.random.Generator, n_clients: int, mean: float, sigma: float, minimum: int = 4) -> np.ndarray:
    """(clients,) sizes, log-normal with the given mean and sigma of the logarithm; none below ``minimum``.

    With ``sigma = 0`` all sizes are ``round(mean)``.
    """
    draws = mean * np.exp(sigma * rng.standard_normal(n_clients) - sigma**2 / 2)
    return np.maximum(np.round(draws).astype(np.int64), minimum)
