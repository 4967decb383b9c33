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

    dealt = _Dealt(seed, n_groups, examples, n_public, val_fraction)
    return _in_groups(train, test, n_clients, dealt, rotated, lambda x: x if side is None else resize(x, side))


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
    names = np.unique(np.concatenate([np.flatnonzero(stock(np.asarray(part.y))) for part in (train, test)]))
    check_clients(n_clients, min(len(train.y), len(test.y)))
    check_groups(n_groups, min(n_clients, factorial(len(names))))
    generator(seed)
    rng, orders = np.random.default_rng([seed, 0x6E616D65]), {tuple(names): None}
    while len(orders) < n_groups:  # no two groups have the same permutation
        orders[tuple(rng.permutation(names))] = None
    called = np.array([*orders])

    def renamed(x: np.ndarray, y: np.ndarray, g: int) -> tuple[np.ndarray, np.ndarray]:
        return x, called[g][np.searchsorted(names, y)].astype(y.dtype)

    return _in_groups(train, test, n_clients, _Dealt(seed, n_groups, examples, n_public, val_fraction), renamed)


class _Dealt(NamedTuple):
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
    how: _Dealt,
    change: Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    prepare: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> Federation:
    """Train and test images split evenly by class, changed by ``prepare(x)`` and per client ``change(x, y, group)``."""
    check_examples(train, test)
    rng, split = generator(how.seed), split_of(how.val_fraction)
    test, public = set_aside(test, how.n_public, how.seed)
    if public is not None:
        public = on_host(prepare(np.asarray(public.x)), public.y)
    check_clients(n_clients, min(len(train.y), len(test.y)))
    check_groups(how.n_groups, n_clients)
    owned = deal_evenly(rng, np.asarray(train.y), n_clients)
    if (examples := how.examples) is not None:
        check_whole("examples", examples, 1, len(train.y) // n_clients, ", the training images per client")
        owned = [rows[np.arange(examples) * len(rows) // examples] for rows in owned]
    test_owned = [rows + len(train.y) for rows in deal_evenly(rng, np.asarray(test.y), n_clients)]
    pool, rows = own_pool(merge(train, test), owned + test_owned)
    x, y = prepare(np.asarray(pool.x)), np.array(pool.y)
    group = np.arange(n_clients) * how.n_groups // n_clients
    for client, g in enumerate(group.tolist()):
        for mine in (rows[client], rows[n_clients + client]):
            x[mine], y[mine] = change(x[mine], y[mine], g)
    return build(
        on_host(x, y), rows[:n_clients], split, how.seed, group=group, public=public, test_owned=rows[n_clients:]
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
    every, test_every = stock(labels), stock(test_labels)
    have = every[every > 0]
    check_clients(n_clients, min(len(train.y), len(test.y)))
    limit = f", for {n_clients} clients and {len(have)} classes"
    check_whole("n_groups", n_groups, 1, min(n_clients, len(have)), limit)
    group = np.arange(n_clients) * n_groups // n_clients
    dominant = rng.choice(len(have), n_groups, replace=False)[group]
    if examples is None:
        counts = _largest(rng, have, dominant, beta)
    else:
        owners = 1 if overlap else n_clients
        check_whole("examples", examples, 1, len(labels) // owners, f", of {len(labels)} training images")
        counts = _counts(rng, have, dominant, beta, examples)
    owned = take(rng, labels, over_all(counts, every), "if short" if overlap else "never")
    test_counts = _largest(rng, _of_the_same(every, test_every), dominant, beta)
    test_rows = take(rng, test_labels, over_all(test_counts, every))
    test_owned = [rows + len(labels) for rows in test_rows]
    return build(merge(train, test), owned, split, seed, group=group, public=public, test_owned=test_owned)


def _of_the_same(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Test examples per class, for the classes that have training examples; both arguments are as of `stock`."""
    labels = np.flatnonzero(train)
    test = np.pad(test, (0, max(0, len(train) - len(test))))[labels]
    if not test.all():
        label = labels[np.argmin(test)]
        raise ValueError(f"class {label} has {train[label]} training examples and no test examples; give some")
    return test


def _counts(rng: np.random.Generator, have: np.ndarray, dominant: np.ndarray, beta: float, n: int) -> np.ndarray:
    """(clients, classes) counts of n examples; the remainder goes to the classes with the largest stock left."""
    n_major, n_minor, n_over = _whole_shares(len(have), beta, n)
    counts = np.full((len(dominant), len(have)), n_minor)
    counts[np.arange(len(dominant)), dominant] = n_major
    tie = rng.random(counts.shape)
    # Smallest key first. A client that has all of a class takes no more of it (inf); the dominant class (NaN) is last.
    key = np.where(n_minor < have, counts.sum(axis=0) - have, np.inf)
    for client, label in enumerate(dominant.tolist() if n_over else ()):
        first = key - tie[client]
        first[label] = np.nan
        extra = first.argsort(kind="stable")[:n_over]
        counts[client, extra] += 1
        key[extra] += 1
    return counts


def _whole_shares(n_classes: int, beta: float, n: int) -> tuple[int, int, int]:
    """Of a client's n examples: the number of the dominant class, of each other class, and the remainder."""
    n_major = n if n_classes == 1 else round(beta * n)
    return n_major, *divmod(n - n_major, max(n_classes - 1, 1))


def _largest(rng: np.random.Generator, have: np.ndarray, dominant: np.ndarray, beta: float) -> np.ndarray:
    """The counts of the largest equal clients that the stock allows without overlap."""
    beta = beta if len(have) > 1 else 1.0  # there is no other class to take the rest from
    share = np.full((len(dominant), len(have)), (1 - beta) / max(len(have) - 1, 1))
    share[np.arange(len(dominant)), dominant] = beta
    asked = share.sum(axis=0)
    largest = int((have[asked > 0] / asked[asked > 0]).min())
    for n in range(min(largest + len(have), int(have.sum()) // len(dominant)), 0, -1):
        if not _may_suffice(have, dominant, beta, n):
            rng.random(share.shape)  # as `_counts` draws, so that a seed's rows do not depend on this shortcut
            continue
        counts = _counts(rng, have, dominant, beta, n)
        if (counts.sum(axis=0) <= have).all():
            return counts
    raise ValueError(f"too few examples for {len(dominant)} clients with beta={beta}; use fewer clients")


def _may_suffice(have: np.ndarray, dominant: np.ndarray, beta: float, n: int) -> bool:
    """False if n examples per client exceed the stock for any choice of remainders; `_counts` goes client by client."""
    n_major, n_minor, n_over = _whole_shares(len(have), beta, n)
    members = np.bincount(dominant, minlength=len(have))
    others = len(dominant) - members
    left = have - n_major * members - n_minor * others
    return bool((left >= 0).all() and np.minimum(left, others).sum() >= n_over * len(dominant))
