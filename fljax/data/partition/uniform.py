"""Every client draws from the same distribution: equal sizes, or log-normal ones."""

import numpy as np

from fljax.data.federation import build
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
    """All training images shuffled and dealt equally (sizes differ by at most one), without overlap.

    Args:
        train: what is dealt.
        test: the server's public images, without labels.
        n_clients: at most a few times fewer than examples.
        seed: same seed, same federation.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test (FedTSDP: 0.2).
        public: False: the server has no data of its own.
    """
    if not 1 <= n_clients <= len(train.y):
        raise ValueError(f"n_clients={n_clients}: give 1 to {len(train.y)}, the number of training examples")
    rng = np.random.default_rng(seed)
    owned = np.array_split(rng.permutation(len(train.y)), n_clients)
    split = (1 - val_fraction - test_fraction, val_fraction, test_fraction)
    return build(train, owned, split, seed, public=test if public else None)
