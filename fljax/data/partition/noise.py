"""Feature skew without groups: inputs with noise that grows from client to client."""

import numpy as np

from fljax.data.federation import build, on_host
from fljax.data.images import with_noise
from fljax.data.partition.check import check_clients, check_examples, check_range, generator, split_of
from fljax.data.partition.deal import own_pool
from fljax.types import Examples, Federation


def noisy_features(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    sigma: float = 0.1,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Feature skew of NIID-Bench: noise of standard deviation ``sigma i / (n - 1)`` on the inputs of client i of n.

    Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos, ICDE 2022, https://arxiv.org/abs/2102.02079. The paper
    calls sigma a variance; here it is a standard deviation, as in its code. The noise is normal. All training images
    are split equally among clients; a client's test images have its noise too.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels or noise.
        n_clients: number of clients (NIID-Bench: 10).
        seed: same seed, same federation.
        sigma: noise of the last client, in units of the inputs' range (255 for uint8, 1 for others), 0 to 10.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_range("sigma", sigma, 0, 10)
    check_clients(n_clients, len(train.y))
    if (kind := np.asarray(train.x).dtype) != np.uint8 and kind.kind != "f":
        raise ValueError(f"x has dtype {kind}, as tokens have, to which noise cannot be added; give pixels or floats")
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    pool, owned = own_pool(train, np.array_split(rng.permutation(len(train.y)), n_clients))
    x = np.asarray(pool.x)  # `own_pool` has made a copy
    for client, rows in enumerate(owned):
        x[rows] = with_noise(rng, x[rows], sigma * client / max(n_clients - 1, 1))
    return build(on_host(x, pool.y), owned, split, seed, public=test if public else None)
