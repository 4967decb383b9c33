"""What partitions share: from a table of counts, or a set of classes, to the rows that each client owns."""

from bisect import bisect_left
from typing import Literal

import numpy as np

from fljax.data.federation import on_host
from fljax.data.labels import check_classes
from fljax.data.partition.check import check_whole
from fljax.types import Examples

Overlap = Literal["never", "if short", "freely"]
"""Whether a row may belong to several clients."""


def merge(train: Examples, test: Examples) -> Examples:
    """Train and test as one pool, test rows last."""
    return on_host(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]))


def set_aside(test: Examples, n_public: int, seed: int) -> tuple[Examples, Examples | None]:
    """The test images that clients may own, and ``n_public`` random ones for the server; None where that is 0.

    The draw is its own, so that the clients' training images do not depend on ``n_public``.
    """
    check_whole("n_public", n_public, 0, max(len(test.y) - 1, 0), ", one test image less than there are")
    if n_public == 0:
        return test, None
    order = np.random.default_rng([seed, n_public]).permutation(len(test.y))
    public, rest = np.sort(order[:n_public]), np.sort(order[n_public:])
    x, y = np.asarray(test.x), np.asarray(test.y)
    return on_host(x[rest], y[rest]), on_host(x[public], y[public])


def stock(labels: np.ndarray) -> np.ndarray:
    """(classes,) how many examples of each class there are; classes run to the largest label.

    Raises:
        ValueError: the labels are no classes.
    """
    check_classes(labels)
    return np.bincount(np.asarray(labels))


def over_all(counts: np.ndarray, have: np.ndarray) -> np.ndarray:
    """(clients, classes) ``counts`` of the classes that have examples, with zeros for the others between them.

    Partitions draw and spread over the classes that are there: labels of one's own may begin at 1, or leave some out.

    Args:
        counts: (clients, classes that have examples).
        have: (classes,) as `stock` gives it.
    """
    whole = np.zeros((len(counts), len(have)), counts.dtype)
    whole[:, have > 0] = counts
    return whole


def take(
    rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray, overlap: Overlap = "never"
) -> list[np.ndarray]:
    """For every client, ``counts[client, class]`` random rows of each class, none twice.

    Args:
        rng: decides which.
        labels: (examples,) of the pool.
        counts: (clients, classes) int.
        overlap: "never"; "if short": a class with fewer rows than are asked of it goes round again, so that its rows
            have equally many owners (within one); "freely": every client draws from all rows.

    Raises:
        ValueError: a class has fewer examples than are asked of it, without overlap by all clients, else by one.
    """
    _check_stock(stock(labels), counts, overlap)
    drawn, owners = [], []
    for label, asked in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if overlap == "freely":
            places = [rng.choice(len(rows), count, replace=False) for count in asked.tolist() if count]
            drawn.append(rows[np.concatenate(places)] if places else rows[:0])
        else:  # where the rows end, the first come again
            drawn.append(rows[np.arange(asked.sum()) % max(len(rows), 1)])
        owners.append(np.repeat(np.arange(len(asked)), asked))
    by_client = np.argsort(np.concatenate(owners), kind="stable")
    return np.split(np.concatenate(drawn)[by_client], np.cumsum(counts.sum(axis=1))[:-1])


def _check_stock(have: np.ndarray, counts: np.ndarray, overlap: Overlap) -> None:
    have = np.pad(have, (0, max(0, counts.shape[1] - len(have))))[: counts.shape[1]]
    asked = counts.sum(axis=0) if overlap == "never" else counts.max(axis=0)
    if (asked > have).any():
        short = int(np.argmax(asked > have))
        by, fewer = ("all clients ask", ", or the number of clients") if overlap == "never" else ("one client asks", "")
        raise ValueError(
            f"class {short} has {have[short]} examples and {by} for {asked[short]};"
            f" lower the examples or classes per client{fewer}"
        )


def by_label(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """(rows,) all rows in the order of their labels, those of one label in random order; of targets by their value.

    Raises:
        ValueError: an example has several labels.
    """
    if labels.ndim != 1:
        raise ValueError(f"labels of shape {labels.shape} have no order; give one label for each example")
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def deal_evenly(rng: np.random.Generator, labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """All rows, class by class and round-robin: sizes, and counts of each class, differ by at most one."""
    order = by_label(rng, labels)
    return [order[client::n_clients] for client in range(n_clients)]


def deal_classes(rng: np.random.Generator, wants: np.ndarray, n_classes: int) -> np.ndarray:
    """(clients, classes) bool: ``wants[client]`` distinct random classes each, every class equally often (within one).

    A shuffled multiset of class ids is dealt; a client that got a class twice swaps one of the two with another client.

    Raises:
        ValueError: all together want too few to cover every class.
    """
    total = int(wants.sum())
    if total < n_classes:
        raise ValueError(
            f"{len(wants)} clients hold {total} classes together and the data has {n_classes}, so a class would have no"
            " client; use more clients or more classes per client"
        )
    multiset = np.concatenate([np.tile(np.arange(n_classes), total // n_classes), rng.permutation(n_classes)])[:total]
    client, label = np.repeat(np.arange(len(wants)), wants), rng.permutation(multiset)
    holds = np.zeros((len(wants), n_classes), np.int64)
    np.add.at(holds, (client, label), 1)
    first, repeated = np.cumsum(wants) - wants, np.flatnonzero(holds[client, label] > 1).tolist()  # ascending
    while repeated:
        slot, other = repeated[rng.integers(len(repeated))], int(rng.integers(total))
        one, two = client[slot], client[other]
        if not (holds[one, label[other]] or holds[two, label[slot]]):
            # Only these two clients' slots can change: looking at all again would be quadratic in the clients.
            holds[[one, one, two, two], [label[slot], label[other], label[other], label[slot]]] += [-1, 1, -1, 1]
            label[slot], label[other] = label[other], label[slot]
            for mine in (first[one], first[two]):
                own = slice(mine, mine + wants[client[mine]])
                left, right = bisect_left(repeated, own.start), bisect_left(repeated, own.stop)
                repeated[left:right] = (own.start + np.flatnonzero(holds[client[mine], label[own]] > 1)).tolist()
    return holds.astype(bool)


def own_pool(pool: Examples, owned: list[np.ndarray]) -> tuple[Examples, list[np.ndarray]]:
    """A pool of the owned rows only, in the order of their owners, to be changed client by client; and the new rows."""
    rows = np.concatenate(owned)
    ranges = np.split(np.arange(len(rows)), np.cumsum([len(piece) for piece in owned])[:-1])
    return on_host(np.asarray(pool.x)[rows], np.asarray(pool.y)[rows]), ranges
