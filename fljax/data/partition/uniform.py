"""All clients have the same distribution: equal, log-normal, Dirichlet or given sizes."""

from collections.abc import Sequence
from numbers import Real

import numpy as np

from fljax.data.federation import build
from fljax.data.partition.check import check_clients, check_examples, check_range, check_whole, generator, split_of
from fljax.types import Examples, Federation


def iid(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """All training images, shuffled and split equally among clients without overlap: sizes differ by at most one.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients.
        seed: same seed, same federation.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test (FedTSDP: 0.2).
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_clients(n_clients, len(train.y))
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    owned = np.array_split(rng.permutation(len(train.y)), n_clients)
    return build(train, owned, split, seed, public=test if public else None)


def log_normal(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    sigma: float = 1.0,
    min_size: int = 10,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Quantity skew: all training images, shuffled and split among clients in log-normal sizes, without overlap.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients.
        seed: same seed, same federation.
        sigma: standard deviation of the logarithm of a client's share, 0 (equal sizes) to 10.
        min_size: every client gets this many examples first; the rest is shared log-normally.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    size = log_normal_sizes(rng, len(train.y), n_clients, sigma, min_size)
    owned = np.split(rng.permutation(len(train.y)), np.cumsum(size)[:-1])
    return build(train, owned, split, seed, public=test if public else None)


def dirichlet_sizes(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    beta: float = 0.5,
    min_size: int = 10,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Quantity skew of NIID-Bench: all training images, shuffled and split among clients in ``Dir_n(beta)`` shares.

    Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos, ICDE 2022, https://arxiv.org/abs/2102.02079. Their
    code draws again until every client has at least 10 examples; here see ``min_size``.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients (NIID-Bench: 10).
        seed: same seed, same federation.
        beta: above 0; small is more skewed (NIID-Bench: 0.5).
        min_size: every client gets this many examples first; the rest is shared.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_range("beta", beta, 1e-6, 1e9)
    check_clients(n_clients, len(train.y))
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    size = sizes_of(rng.dirichlet(np.full(n_clients, beta)), len(train.y), min_size)
    owned = np.split(rng.permutation(len(train.y)), np.cumsum(size)[:-1])
    return build(train, owned, split, seed, public=test if public else None)


def proportional_sizes(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    proportions: Sequence[float] | None = None,
    min_size: int = 10,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Quantity skew: all training images, shuffled and split among clients in sizes of given proportions.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients.
        seed: same seed, same federation.
        proportions: a number above 0 for each client, such as their sizes; None: 1, 2, 3 and so on.
        min_size: clients that would get fewer examples get this many.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_clients(n_clients, len(train.y))
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    size = _in_proportion(_proportions(n_clients, proportions), len(train.y), min_size)
    owned = np.split(rng.permutation(len(train.y)), np.cumsum(size)[:-1])
    return build(train, owned, split, seed, public=test if public else None)


def _proportions(n_clients: int, proportions: Sequence[float] | None) -> np.ndarray:
    """(clients,) the largest of them 1; ValueError unless there is a finite number above 0 for each client."""
    if proportions is None:
        return np.arange(1, n_clients + 1) / n_clients
    row = np.asarray([*proportions] if np.iterable(proportions) else [], object)
    if len(row) != n_clients:
        raise ValueError(f"proportions: {len(row)} numbers for {n_clients} clients; give one for each client")
    for i, proportion in enumerate(row):
        if isinstance(proportion, bool) or not isinstance(proportion, Real) or not 0 < float(proportion) < np.inf:
            raise ValueError(f"proportions: {proportion!r} of client {i}; give numbers above 0")
    return row.astype(np.float64) / max(row)


def _in_proportion(share: np.ndarray, n_examples: int, min_size: int) -> np.ndarray:
    """(clients,) sizes that sum to ``n_examples``: in proportion to ``share``, but at least ``min_size``."""
    check_whole("min_size", min_size, 1, n_examples // len(share), ", the examples per client")
    is_least = np.zeros(len(share), bool)
    while True:
        n_rest = n_examples - min_size * is_least.sum()
        size = np.where(is_least, min_size, share / share[~is_least].sum() * n_rest if n_rest else 0)
        if not (size < min_size).any():
            return np.diff(np.round(np.cumsum(size)).astype(np.int64), prepend=0)
        is_least |= size < min_size


def log_normal_sizes(
    rng: np.random.Generator, n_examples: int, n_clients: int, sigma: float, min_size: int
) -> np.ndarray:
    """(clients,) sizes that sum to ``n_examples``: ``min_size`` each, and the rest by shares ``exp(sigma N(0, 1))``."""
    check_clients(n_clients, n_examples)
    check_range("sigma", sigma, 0, 10)
    return sizes_of(np.exp(sigma * rng.standard_normal(n_clients)), n_examples, min_size)


def sizes_of(share: np.ndarray, n_examples: int, min_size: int) -> np.ndarray:
    """(clients,) sizes that sum to ``n_examples``: ``min_size`` each, and the rest by ``share`` (clients,)."""
    n_clients = len(share)
    check_whole("min_size", min_size, 1, n_examples // n_clients, ", the examples per client")
    stops = np.round(np.cumsum(share) / share.sum() * (n_examples - n_clients * min_size)).astype(np.int64)
    return min_size + np.diff(stops, prepend=0)
