"""A federation of noisy images with a known answer, from NumPy alone: what the benchmarks of speed train on."""

import numpy as np

Set = tuple[np.ndarray, np.ndarray]
"""(images (examples, height, width, channels) float32, labels (examples,) int32)."""


def make_data(
    ragged: bool,
    n_clients: int = 100,
    samples: int = 100,
    seed: int = 0,
    shape: tuple[int, int, int] = (28, 28, 1),
    n_classes: int = 10,
    n_groups: int = 1,
    signal: float = 0.1,
) -> tuple[list[Set], Set]:
    """([the set of each client], a test set of 2,000): class prototypes with noise and Dirichlet(0.5) label skew.

    An image is ``signal`` times the prototype of its class, which is standard normal as is the noise.
    Clients have ``samples`` examples each, or log-normal numbers of a like mean, from 20 to four times ``samples``.
    Client i sees its images turned by ``i mod n_groups`` right angles; the test set is not turned.
    """
    rng = np.random.default_rng(seed)
    prototype = rng.standard_normal((n_classes, *shape), np.float32)

    def make(n: int, probability: np.ndarray, n_turns: int = 0) -> Set:
        y = rng.choice(n_classes, size=n, p=probability).astype(np.int32)
        x = signal * prototype[y] + rng.standard_normal((n, *shape), np.float32)
        return np.rot90(x, n_turns, (1, 2)), y

    sizes = np.full(n_clients, samples)
    if ragged:
        numbers = np.exp(0.8 * rng.standard_normal(n_clients) + np.log(0.75 * samples))
        sizes = np.clip(numbers, 20, 4 * samples).astype(int)
    probability = rng.dirichlet(np.full(n_classes, 0.5), size=n_clients)
    clients = [make(n, p, i % n_groups) for i, (n, p) in enumerate(zip(sizes, probability, strict=True))]
    return clients, make(2000, np.full(n_classes, 1 / n_classes))
