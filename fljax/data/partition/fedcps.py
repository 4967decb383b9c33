"""The two settings of FedCPS (Yang et al., CMC 2025): few-shot clients, and a class prior for each client."""

import numpy as np

from fljax.data.federation import build
from fljax.data.partition.check import check_clients, check_examples, check_range, check_whole, generator, split_of
from fljax.data.partition.deal import deal_classes, merge, over_all, stock, take
from fljax.data.partition.uniform import log_normal_sizes
from fljax.types import Examples, Federation

_AT_ONCE = 1024


def few_shot(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    gamma: float = 0.0,
    classes: int = 5,
    few_classes: int = 2,
    consecutive: bool = False,
    val_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> Federation:
    """FedCPS non-iid_1: few classes per client, the same number of images of each, and a share of few-shot clients.

    Train and test images are one pool. A client has ``min(N // (n classes), smallest class // its clients)`` images of
    each of its classes: 140 on Fashion-MNIST, 126 on MNIST, 120 on CIFAR-10 with 100 clients. The number does not
    depend on gamma. Each class is held equally often; splits are random. No image has two owners.

    Args:
        train: first part of the pool.
        test: second part of the pool.
        n_clients: number of clients (FedCPS: 100).
        seed: same seed, same federation.
        gamma: fraction of few-shot clients, chosen uniformly, 0 to 1 (FedCPS: 0, 0.1, ..., 0.5).
        classes: distinct classes of a regular client (FedCPS: 5; CIFAR-100: 15).
        few_classes: distinct classes of a few-shot client (FedCPS: 2; CIFAR-100: 5).
        consecutive: True: client i has the classes ``(i + j) mod n_classes``, as in FedCR's code.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
    """
    check_examples(train, test)
    pool = merge(train, test)
    check_clients(n_clients, len(pool.y))
    check_range("gamma", gamma, 0, 1)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    labels = np.asarray(pool.y)
    class_sizes = stock(labels)
    sizes_present = class_sizes[class_sizes > 0]
    check_whole("classes", classes, 1, len(sizes_present), ", the number of classes")
    check_whole("few_classes", few_classes, 1, len(sizes_present), ", the number of classes")
    wants = np.full(n_clients, classes)
    wants[rng.choice(n_clients, round(gamma * n_clients), replace=False)] = few_classes
    holds = deal_classes(rng, wants, len(sizes_present))
    if consecutive:
        offset = (np.arange(len(sizes_present)) - np.arange(n_clients)[:, None]) % len(sizes_present)
        holds = offset < wants[:, None]
    clients_of_class = np.maximum(holds.sum(axis=0), -(-n_clients * classes // len(sizes_present)))
    quota = min(len(labels) // (n_clients * classes), int((sizes_present // clients_of_class).min()))
    if quota < 1:
        raise ValueError(f"n_clients={n_clients}, classes={classes}: too few images; give fewer clients or classes")
    owned = take(rng, labels, over_all(holds * quota, class_sizes))
    return build(pool, owned, split, seed, stratify=False)


def dirichlet_prior(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    alpha: float = 0.6,
    sigma: float = 0.0,
    val_fraction: float = 0.0,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCPS non-iid_2: equal sizes ``N // n`` and a class prior ``Dir_C(alpha)`` for each client.

    Train and test images are one pool. Images are assigned one at a time: a random client that is not full draws a
    class from its prior, and draws again if that class is used up. No image has two owners. With ``sigma`` the sizes
    are log-normal and sum to N, as in FedDyn's code (Acar et al., ICLR 2021, https://openreview.net/forum?id=B7v4QMR6Z9w).

    Args:
        train: first part of the pool.
        test: second part of the pool.
        n_clients: number of clients (FedCPS: 100).
        seed: same seed, same federation.
        alpha: above 0; small is more skewed (FedCPS: 0.6; CIFAR-100: 0.4).
        sigma: standard deviation of the logarithm of a client's size, 0 (equal sizes) to 10.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
    """
    check_examples(train, test)
    pool = merge(train, test)
    check_clients(n_clients, len(pool.y))
    check_range("alpha", alpha, 1e-6, 1e9)
    check_range("sigma", sigma, 0, 10)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    labels = np.asarray(pool.y)
    class_sizes = stock(labels)
    prior = rng.dirichlet(np.full(len(class_sizes), alpha), size=n_clients)
    size = np.full(n_clients, len(labels) // n_clients)
    if sigma:
        # One example for each split; if there are not so many, `build` says so.
        least = min(sum(share > 0 for share in split), len(labels) // n_clients)
        size = log_normal_sizes(rng, len(labels), n_clients, sigma, least)
    counts = _hand_out(rng, prior, class_sizes, size)
    return build(pool, take(rng, labels, counts), split, seed, stratify=False)


def _hand_out(rng: np.random.Generator, prior: np.ndarray, class_sizes: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(clients, classes) counts, drawn one image at a time until every client has its ``size``."""
    client_draws, class_draws = rng.random((size.sum(), 2)).T
    clients = _clients_of_draws(client_draws, size)
    counts, remaining, begin = np.zeros(prior.shape, np.int64), class_sizes.astype(np.int64), 0
    # The stock when a class was last used up: drawing again until another class comes is the prior without that class.
    remaining_before = remaining
    while begin < len(clients):
        next_clients = clients[begin : begin + _AT_ONCE]
        labels = _classes_of_draws(
            _cumulative(prior[next_clients], remaining_before), class_draws[begin : begin + _AT_ONCE]
        )
        labels = labels[: _until_used_up(labels, remaining)]
        np.add.at(counts, (next_clients[: len(labels)], labels), 1)
        remaining = remaining - np.bincount(labels, minlength=len(remaining))
        remaining_before = remaining_before if remaining[labels[-1]] else remaining
        begin += len(labels)
    return counts


def _clients_of_draws(draws: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The client of each draw in [0, 1), among the clients that have fewer than their ``size`` images so far."""
    room, not_full, n_not_full = size.tolist(), list(range(len(size))), len(size)
    clients = []
    for draw in draws.tolist():
        place = int(draw * n_not_full)
        client = not_full[place]
        clients.append(client)
        room[client] -= 1
        if not room[client]:
            n_not_full -= 1
            not_full[place] = not_full[n_not_full]
    return np.array(clients, np.int64)


def _classes_of_draws(cumulative: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The class of each draw in [0, 1) by its own cumulative prior: `bisect.bisect_right` for all at once."""
    row, low, high = np.arange(len(draws)), np.zeros(len(draws), np.int64), np.full(len(draws), cumulative.shape[1] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        is_below = draws < cumulative[row, middle]
        low, high = np.where(is_below | (low == high), low, middle + 1), np.where(is_below, middle, high)
    return low


def _until_used_up(labels: np.ndarray, remaining: np.ndarray) -> int:
    """The number of draws up to and with the first that takes the last image of a class; all if none does."""
    by_class = np.argsort(labels, kind="stable")
    labels, n_of_class = labels[by_class], np.bincount(labels, minlength=len(remaining))
    nth = np.arange(len(labels)) - (np.cumsum(n_of_class) - n_of_class)[labels]
    return 1 + int(by_class[nth + 1 == remaining[labels]].min(initial=len(labels) - 1))


def _cumulative(prior: np.ndarray, remaining: np.ndarray) -> np.ndarray:
    """Cumulative priors over the classes with images left; a client without mass there draws by the images left."""
    mass = np.where(remaining > 0, prior, 0.0)
    mass = np.where(mass.sum(axis=1, keepdims=True) > 0, mass, remaining)
    stops = np.cumsum(mass, axis=1)
    last = stops.shape[1] - 1 - np.argmax((mass > 0)[:, ::-1], axis=1)
    stops = stops / np.where(stops[:, -1:] > 0, stops[:, -1:], 1.0)  # a mass may be as little as 1e-320
    stops[np.arange(len(stops)), last] = 1.0  # a draw just below 1 must not fall past the last class that is left
    return stops
