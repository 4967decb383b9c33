"""The two settings of FedCPS (Yang et al., CMC 2025): few-shot clients, and a class prior for each client."""

import numpy as np

from fljax.data.federation import build
from fljax.data.partition.check import check_clients, check_examples, check_range, check_whole, generator, split_of
from fljax.data.partition.deal import deal_classes, merge, over_all, stock, take
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
    every = stock(labels)
    have = every[every > 0]
    check_whole("classes", classes, 1, len(have), ", the number of classes")
    check_whole("few_classes", few_classes, 1, len(have), ", the number of classes")
    wants = np.full(n_clients, classes)
    wants[rng.choice(n_clients, round(gamma * n_clients), replace=False)] = few_classes
    holds = deal_classes(rng, wants, len(have))
    if consecutive:
        offset = (np.arange(len(have)) - np.arange(n_clients)[:, None]) % len(have)
        holds = offset < wants[:, None]
    clients_of_class = np.maximum(holds.sum(axis=0), -(-n_clients * classes // len(have)))
    quota = min(len(labels) // (n_clients * classes), int((have // clients_of_class).min()))
    if quota < 1:
        raise ValueError(f"too few images for {n_clients} clients with {classes} classes each; use fewer of either")
    owned = take(rng, labels, over_all(holds * quota, every))
    return build(pool, owned, split, seed, stratify=False)


def dirichlet_prior(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    alpha: float = 0.6,
    val_fraction: float = 0.0,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCPS non-iid_2: equal sizes ``N // n`` and a class prior ``Dir_C(alpha)`` for each client.

    Train and test images are one pool. Images are assigned one at a time: a random client that is not full draws a
    class from its prior, and draws again if that class is used up. No image has two owners.

    Args:
        train: first part of the pool.
        test: second part of the pool.
        n_clients: number of clients (FedCPS: 100).
        seed: same seed, same federation.
        alpha: above 0; small is more skewed (FedCPS: 0.6; CIFAR-100: 0.4).
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
    """
    check_examples(train, test)
    pool = merge(train, test)
    check_clients(n_clients, len(pool.y))
    check_range("alpha", alpha, 1e-6, 1e9)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    labels = np.asarray(pool.y)
    have = stock(labels)
    prior = rng.dirichlet(np.full(len(have), alpha), size=n_clients)
    counts = _hand_out(rng, prior, have, len(labels) // n_clients)
    return build(pool, take(rng, labels, counts), split, seed, stratify=False)


def _hand_out(rng: np.random.Generator, prior: np.ndarray, have: np.ndarray, size: int) -> np.ndarray:
    """(clients, classes) counts, drawn one image at a time until every client has ``size``."""
    which, draw = rng.random((len(prior) * size, 2)).T
    client = _turns(which, len(prior), size)
    counts, left, at = np.zeros(prior.shape, np.int64), have.astype(np.int64), 0
    then = left  # when a class was last used up: drawing again until another class comes is the prior without it
    while at < len(client):
        who = client[at : at + _AT_ONCE]
        label = _drawn(_cumulative(prior[who], then), draw[at : at + _AT_ONCE])
        label = label[: _until_used_up(label, left)]
        np.add.at(counts, (who[: len(label)], label), 1)
        left = left - np.bincount(label, minlength=len(left))
        then = then if left[label[-1]] else left
        at += len(label)
    return counts


def _turns(which: np.ndarray, n_clients: int, size: int) -> np.ndarray:
    """The client of each draw ``which`` in [0, 1), among the clients that have fewer than ``size`` images so far."""
    room, unfilled, n_unfilled = [size] * n_clients, list(range(n_clients)), n_clients
    turns = []
    for one in which.tolist():
        place = int(one * n_unfilled)
        client = unfilled[place]
        turns.append(client)
        room[client] -= 1
        if not room[client]:
            n_unfilled -= 1
            unfilled[place] = unfilled[n_unfilled]
    return np.array(turns, np.int64)


def _drawn(cumulative: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """The class of each draw in [0, 1) by its own cumulative prior: `bisect.bisect_right` for all at once."""
    row, low, high = np.arange(len(draw)), np.zeros(len(draw), np.int64), np.full(len(draw), cumulative.shape[1] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        below = draw < cumulative[row, middle]
        low, high = np.where(below | (low == high), low, middle + 1), np.where(below, middle, high)
    return low


def _until_used_up(label: np.ndarray, left: np.ndarray) -> int:
    """The number of draws up to and with the first that takes the last image of a class; all if none does."""
    by_class = np.argsort(label, kind="stable")
    label, n_of_class = label[by_class], np.bincount(label, minlength=len(left))
    nth = np.arange(len(label)) - (np.cumsum(n_of_class) - n_of_class)[label]
    return 1 + int(by_class[nth + 1 == left[label]].min(initial=len(label) - 1))


def _cumulative(prior: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Cumulative priors over the classes with images left; a client without mass there draws by the images left."""
    mass = np.where(left > 0, prior, 0.0)
    mass = np.where(mass.sum(axis=1, keepdims=True) > 0, mass, left)
    stops = np.cumsum(mass, axis=1)
    last = stops.shape[1] - 1 - np.argmax((mass > 0)[:, ::-1], axis=1)
    stops = stops / np.where(stops[:, -1:] > 0, stops[:, -1:], 1.0)  # a mass may be as little as 1e-320
    stops[np.arange(len(stops)), last] = 1.0  # a draw just below 1 must not fall past the last class that is left
    return stops
