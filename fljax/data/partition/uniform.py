"""All clients have the same distribution: equal, log-normal or Dirichlet sizes."""

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
