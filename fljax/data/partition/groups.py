"""Clients in known groups: rotated images or a dominant class, as in LayerCFL (Yuan et al., Cybersecurity 2023), or
permuted labels.
"""

from collections.abc import Callable
from math import factorial
from typing import NamedTuple

import numpy as np

from fljax.data.federation import build, on_host
from fljax.data.images import resize, rotate
from fljax.data.partition.check import (
    check_clients,
    check_examples,
    check_groups,
    check_range,
    check_whole,
    generator,
    split_of,
)
from fljax.data.partition.deal import deal_evenly, merge, over_all, own_pool, set_aside, stock, take
from fljax.types import Examples, Federation


def rotated_groups(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    n_groups: int = 4,
    examples: int | None = None,
    side: int | None = None,
    n_public: int = 0,
    val_fraction: float = 0.0,
) -> Federation:
    """Feature skew: all classes on every client; images of group g are rotated by ``360 g / n_groups`` degrees.

    Train and test images are split evenly by class among clients; no image has two owners. The first clients are
    group 0.

    Args:
        train: split among clients as training (and validation) examples.
        test: split among clients as test examples, all of them.
        n_clients: number of clients (LayerCFL: 20 with 4 groups, 10 with 2).
        seed: same seed, same federation.
        n_groups: number of true clusters; 4 gives 0, 90, 180 and 270 degrees, 2 gives 0 and 180.
        examples: training and validation examples per client (LayerCFL: 100 to 1,500); None: all are used.
        side: height and width after a bilinear resize (LayerCFL: 32 for EMNIST); None: no resize.
        n_public: number of test images for the server instead, without labels and not rotated.
        val_fraction: share of each client's examples for validation.
    """
    if side is not None:
        check_whole("side", side, 1)

    def rotated(x: np.ndarray, y: np.ndarray, g: int) -> tuple[np.ndarray, np.ndarray]:
        return rotate(x, 360 * g / n_groups), y

    settings = _Settings(seed, n_groups, examples, n_public, val_fraction)
    return _in_groups(train, test, n_clients, settings, rotated, lambda x: x if side is None else resize(x, side))


def permuted_label_groups(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    n_groups: int = 4,
    examples: int | None = None,
    n_public: int = 0,
    val_fraction: float = 0.0,
) -> Federation:
    """Concept shift: all classes on every client; each group has another permutation of the labels.

    As in CFL's experiments (Sattler et al., TNNLS 2020, https://arxiv.org/abs/1910.01991): equal images have different
    labels in different groups, so one model cannot fit two groups. Train and test images are split evenly by class
    among clients. The first clients are group 0, which keeps the original labels.

    Args:
        train: split among clients as training (and validation) examples.
        test: split among clients as test examples, all of them.
        n_clients: number of clients (CFL: 20).
        seed: same seed, same federation.
        n_groups: number of true clusters (CFL: 4).
        examples: training and validation examples per client; None: all are used.
        n_public: number of test images for the server instead, without labels.
        val_fraction: share of each client's examples for validation.
    """
    check_examples(train, test)
    classes = np.unique(np.concatenate([np.flatnonzero(stock(np.asarray(part.y))) for part in (train, test)]))
    check_clients(n_clients, min(len(train.y), len(test.y)))
    check_groups(n_groups, min(n_clients, factorial(len(classes))))
    generator(seed)
    rng, orders = np.random.default_rng([seed, 0x6E616D65]), {tuple(classes): None}
    while len(orders) < n_groups:  # no two groups have the same permutation
        orders[tuple(rng.permutation(classes))] = None
    new_labels = np.array([*orders])

    def renamed(x: np.ndarray, y: np.ndarray, g: int) -> tuple[np.ndarray, np.ndarray]:
        return x, new_labels[g][np.searchsorted(classes, y)].astype(y.dtype)

    return _in_groups(train, test, n_clients, _Settings(seed, n_groups, examples, n_public, val_fraction), renamed)


class _Settings(NamedTuple):
    """How images are split among the clients of groups."""

    seed: int
    n_groups: int
    examples: int | None
    n_public: int
    val_fraction: float


def _in_groups(
    train: Examples,
    test: Examples,
    n_clients: int,
    settings: _Settings,
    change: Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    prepare: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> Federation:
    """Train and test images split evenly by class, changed by ``prepare(x)`` and per client ``change(x, y, group)``."""
    check_examples(train, test)
    rng, split = generator(settings.seed), split_of(settings.val_fraction)
    test, public = set_aside(test, settings.n_public, settings.seed)
    if public is not None:
        public = on_host(prepare(np.asarray(public.x)), public.y)
    check_clients(n_clients, min(len(train.y), len(test.y)))
    check_groups(settings.n_groups, n_clients)
    owned = deal_evenly(rng, np.asarray(train.y), n_clients)
    if (examples := settings.examples) is not None:
        check_whole("examples", examples, 1, len(train.y) // n_clients, ", the training images per client")
        owned = [rows[np.arange(examples) * len(rows) // examples] for rows in owned]
    test_owned = [rows + len(train.y) for rows in deal_evenly(rng, np.asarray(test.y), n_clients)]
    pool, rows = own_pool(merge(train, test), owned + test_owned)
    x, y = prepare(np.asarray(pool.x)), np.array(pool.y)
    group = np.arange(n_clients) * settings.n_groups // n_clients
    for client, g in enumerate(group.tolist()):
        for client_rows in (rows[client], rows[n_clients + client]):
            x[client_rows], y[client_rows] = change(x[client_rows], y[client_rows], g)
    return build(
        on_host(x, y), rows[:n_clients], split, settings.seed, group=group, public=public, test_owned=rows[n_clients:]
    )


def dominant_label_groups(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    n_groups: int = 4,
    beta: float = 0.5,
    examples: int | None = None,
    overlap: bool = True,
    n_public: int = 0,
    val_fraction: float = 0.0,
) -> Federation:
    """Label skew: each group has its own dominant class, a share ``beta`` of each client; the rest is uniform.

    A client has ``round(beta N)`` images of the dominant class and equally many (within one) of each other class. Test
    images follow the same rule, as many as the test set allows without sharing. The first clients are group 0.

    No training image has two owners if its class suffices. If the clients together need more images of a class than
    there are, its images are used repeatedly, as in flsim's bias loader: each is owned equally often (within one),
    never twice by one client. A client may then train on an image that another client validates on; no client trains on
    a test image.

    Args:
        train: pool of training (and validation) examples.
        test: pool of test examples.
        n_clients: number of clients (LayerCFL: 20; heat maps 10).
        seed: same seed, same federation.
        n_groups: number of true clusters, at most one per class (LayerCFL: 4; heat maps 2).
        beta: share of the dominant class, 0 to 1 (LayerCFL: 0.5; heat maps 0.8).
        examples: N, training and validation examples per client (LayerCFL: 100 to 1,500); None: the most without
            sharing.
        overlap: False: rejects ``examples`` for which clients would have to share images.
        n_public: number of test images for the server instead, without labels.
        val_fraction: share of each client's examples for validation.
    """
    check_examples(train, test)
    rng, split = generator(seed), split_of(val_fraction)
    test, public = set_aside(test, n_public, seed)
    check_range("beta", beta, 0, 1)
    labels, test_labels = np.asarray(train.y), np.asarray(test.y)
    class_sizes, test_class_sizes = stock(labels), stock(test_labels)
    sizes_present = class_sizes[class_sizes > 0]
    check_clients(n_clients, min(len(train.y), len(test.y)))
    limit = f", for {n_clients} clients and {len(sizes_present)} classes"
    check_whole("n_groups", n_groups, 1, min(n_clients, len(sizes_present)), limit)
    group = np.arange(n_clients) * n_groups // n_clients
    dominant = rng.choice(len(sizes_present), n_groups, replace=False)[group]
    if examples is None:
        counts = _largest(rng, sizes_present, dominant, beta)
    else:
        owners = 1 if overlap else n_clients
        check_whole("examples", examples, 1, len(labels) // owners, f", of {len(labels)} training images")
        counts = _counts(rng, sizes_present, dominant, beta, examples)
    owned = take(rng, labels, over_all(counts, class_sizes), "if short" if overlap else "never")
    test_counts = _largest(rng, _test_sizes(class_sizes, test_class_sizes), dominant, beta)
    test_rows = take(rng, test_labels, over_all(test_counts, class_sizes))
    test_owned = [rows + len(labels) for rows in test_rows]
    return build(merge(train, test), owned, split, seed, group=group, public=public, test_owned=test_owned)


def _test_sizes(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Test examples per class, for the classes that have training examples; both arguments are as of `stock`."""
    labels = np.flatnonzero(train)
    test = np.pad(test, (0, max(0, len(train) - len(test))))[labels]
    if not test.all():
        label = labels[np.argmin(test)]
        raise ValueError(f"class {label} has {train[label]} training examples and no test examples; give some")
    return test


def _counts(rng: np.random.Generator, class_sizes: np.ndarray, dominant: np.ndarray, beta: float, n: int) -> np.ndarray:
    """(clients, classes) counts of n examples; the remainder goes to the classes with the largest stock left."""
    n_major, n_minor, n_remainder = _whole_shares(len(class_sizes), beta, n)
    counts = np.full((len(dominant), len(class_sizes)), n_minor)
    counts[np.arange(len(dominant)), dominant] = n_major
    tie = rng.random(counts.shape)
    # Smallest key first. A client that has all of a class takes no more of it (inf); the dominant class (NaN) is last.
    key = np.where(n_minor < class_sizes, counts.sum(axis=0) - class_sizes, np.inf)
    for client, label in enumerate(dominant.tolist() if n_remainder else ()):
        order = key - tie[client]
        order[label] = np.nan
        extra = order.argsort(kind="stable")[:n_remainder]
        counts[client, extra] += 1
        key[extra] += 1
    return counts


def _whole_shares(n_classes: int, beta: float, n: int) -> tuple[int, int, int]:
    """Of a client's n examples: the number of the dominant class, of each other class, and the remainder."""
    n_major = n if n_classes == 1 else round(beta * n)
    return n_major, *divmod(n - n_major, max(n_classes - 1, 1))


def _largest(rng: np.random.Generator, class_sizes: np.ndarray, dominant: np.ndarray, beta: float) -> np.ndarray:
    """The counts of the largest equal clients that the stock allows without overlap."""
    beta = beta if len(class_sizes) > 1 else 1.0  # there is no other class to take the rest from
    share = np.full((len(dominant), len(class_sizes)), (1 - beta) / max(len(class_sizes) - 1, 1))
    share[np.arange(len(dominant)), dominant] = beta
    total_share = share.sum(axis=0)
    largest = int((class_sizes[total_share > 0] / total_share[total_share > 0]).min())
    for n in range(min(largest + len(class_sizes), int(class_sizes.sum()) // len(dominant)), 0, -1):
        if not _may_suffice(class_sizes, dominant, beta, n):
            rng.random(share.shape)  # as `_counts` draws, so that a seed's rows do not depend on this shortcut
            continue
        counts = _counts(rng, class_sizes, dominant, beta, n)
        if (counts.sum(axis=0) <= class_sizes).all():
            return counts
    raise ValueError(f"too few examples for {len(dominant)} clients with beta={beta}; use fewer clients")


def _may_suffice(class_sizes: np.ndarray, dominant: np.ndarray, beta: float, n: int) -> bool:
    """False if n examples per client exceed the stock for any choice of remainders; `_counts` goes client by client."""
    n_major, n_minor, n_remainder = _whole_shares(len(class_sizes), beta, n)
    n_dominant = np.bincount(dominant, minlength=len(class_sizes))
    n_others = len(dominant) - n_dominant
    remaining = class_sizes - n_major * n_dominant - n_minor * n_others
    return bool((remaining >= 0).all() and np.minimum(remaining, n_others).sum() >= n_remainder * len(dominant))
