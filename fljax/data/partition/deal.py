"""Steps common to partitions: from a table of counts, or a set of classes, to the rows that each client owns."""

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
    """The test images that clients may own, and ``n_public`` random ones for the server (None if that is 0).

    They are drawn by a separate generator, so that the clients' training images do not depend on ``n_public``.
    """
    check_whole("n_public", n_public, 0, max(len(test.y) - 1, 0), ", the number of test images less 1")
    if n_public == 0:
        return test, None
    order = np.random.default_rng([seed, n_public]).permutation(len(test.y))
    public, rest = np.sort(order[:n_public]), np.sort(order[n_public:])
    x, y = np.asarray(test.x), np.asarray(test.y)
    return on_host(x[rest], y[rest]), on_host(x[public], y[public])


def stock(labels: np.ndarray) -> np.ndarray:
    """(classes,) the number of examples of each class, up to the largest label.

    Raises:
        ValueError: the labels are not classes.
    """
    check_classes(labels)
    return np.bincount(np.asarray(labels))


def over_all(counts: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
    """(clients, classes) ``counts`` with columns of zeros inserted for classes without examples.

    Partitions use only classes that have examples: a user's labels may begin at 1, or leave some out.

    Args:
        counts: (clients, classes that have examples).
        class_sizes: (classes,) as `stock` returns it.
    """
    all_counts = np.zeros((len(counts), len(class_sizes)), counts.dtype)
    all_counts[:, class_sizes > 0] = counts
    return all_counts


def take(
    rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray, overlap: Overlap = "never"
) -> list[np.ndarray]:
    """For each client, ``counts[client, class]`` random rows of each class, no row twice.

    Args:
        rng: chooses the rows.
        labels: (examples,) of the pool.
        counts: (clients, classes) int.
        overlap: "never"; "if short": a class with fewer rows than requested is used repeatedly, so that its rows have
            equally many owners (within one); "freely": each client draws from all rows.

    Raises:
        ValueError: a class has fewer examples than all clients request together ("never"), or than one client requests.
    """
    _check_stock(stock(labels), counts, overlap)
    drawn_rows, owners = [], []
    for label, n_rows in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if overlap == "freely":
            places = [rng.choice(len(rows), count, replace=False) for count in n_rows.tolist() if count]
            drawn_rows.append(rows[np.concatenate(places)] if places else rows[:0])
        else:  # after the last row, continue with the first
            drawn_rows.append(rows[np.arange(n_rows.sum()) % max(len(rows), 1)])
        owners.append(np.repeat(np.arange(len(n_rows)), n_rows))
    by_client = np.argsort(np.concatenate(owners), kind="stable")
    return np.split(np.concatenate(drawn_rows)[by_client], np.cumsum(counts.sum(axis=1))[:-1])


def _check_stock(class_sizes: np.ndarray, counts: np.ndarray, overlap: Overlap) -> None:
    class_sizes = np.pad(class_sizes, (0, max(0, counts.shape[1] - len(class_sizes))))[: counts.shape[1]]
    n_needed = counts.sum(axis=0) if overlap == "never" else counts.max(axis=0)
    if (n_needed > class_sizes).any():
        short = int(np.argmax(n_needed > class_sizes))
        who, fewer = ("one client asks", "")
        if overlap == "never":
            who, fewer = ("all clients ask", ", or the number of clients")
        raise ValueError(
            f"class {short} has {class_sizes[short]} examples and {who} for {n_needed[short]};"
            f" lower the examples or classes per client{fewer}"
        )


def by_label(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """(rows,) all rows sorted by label, in random order within a label; regression targets are sorted by value.

    Raises:
        ValueError: an example has several labels.
    """
    if labels.ndim != 1:
        raise ValueError(f"labels of shape {labels.shape} have no order; give one label for each example")
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def deal_evenly(rng: np.random.Generator, labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """Each client's rows, round-robin class by class: sizes, and counts of each class, differ by at most one."""
    order = by_label(rng, labels)
    return [order[client::n_clients] for client in range(n_clients)]


def deal_classes(rng: np.random.Generator, wants: np.ndarray, n_classes: int) -> np.ndarray:
    """(clients, classes) bool: ``wants[client]`` distinct random classes each, every class equally often (within one).

    A shuffled multiset of class ids is split among the clients; a client that has a class twice swaps one of the two
    with another client.

    Raises:
        ValueError: the clients hold too few classes together to cover all.
    """
    total = int(wants.sum())
    if total < n_classes:
        raise ValueError(
            f"n_clients={len(wants)}: they hold {total} classes together and the data has {n_classes}, so a class would"
            " have no client; give more clients, or more classes per client"
        )
    multiset = np.concatenate([np.tile(np.arange(n_classes), total // n_classes), rng.permutation(n_classes)])[:total]
    client, label = np.repeat(np.arange(len(wants)), wants), rng.permutation(multiset)
    holds = np.zeros((len(wants), n_classes), np.int64)
    np.add.at(holds, (client, label), 1)
    first_slot, repeated = np.cumsum(wants) - wants, np.flatnonzero(holds[client, label] > 1).tolist()  # ascending
    while repeated:
        slot, other_slot = repeated[rng.integers(len(repeated))], int(rng.integers(total))
        client_a, client_b = client[slot], client[other_slot]
        if not (holds[client_a, label[other_slot]] or holds[client_b, label[slot]]):
            # Only these two clients' slots can change; a search through all would be quadratic in the clients.
            labels = [label[slot], label[other_slot], label[other_slot], label[slot]]
            holds[[client_a, client_a, client_b, client_b], labels] += [-1, 1, -1, 1]
            label[slot], label[other_slot] = label[other_slot], label[slot]
            for begin in (first_slot[client_a], first_slot[client_b]):
                slots = slice(begin, begin + wants[client[begin]])
                low, high = bisect_left(repeated, slots.start), bisect_left(repeated, slots.stop)
                repeated[low:high] = (slots.start + np.flatnonzero(holds[client[begin], label[slots]] > 1)).tolist()
    return holds.astype(bool)


def own_pool(pool: Examples, owned: list[np.ndarray]) -> tuple[Examples, list[np.ndarray]]:
    """A copy of the owned rows, ordered by owner, which can be changed client by client; and each client's new rows."""
    rows = np.concatenate(owned)
    ranges = np.split(np.arange(len(rows)), np.cumsum([len(client_rows) for client_rows in owned])[:-1])
    return on_host(np.asarray(pool.x)[rows], np.asarray(pool.y)[rows]), ranges
