"""The setting of DC-PFL (Liu et al.): a primary and a secondary class for each client, in bands of heterogeneity."""

from typing import Literal

import numpy as np

from fljax.data.divergence import mean_kld
from fljax.data.federation import build
from fljax.data.partition.check import check_clients, check_examples, check_whole, generator, split_of
from fljax.data.partition.deal import merge, over_all, stock, take
from fljax.types import Examples, Federation

BANDS = ("low", "mid", "high")
SHARES = ("generation", "client")
_DRAWS = 100


def primary_secondary(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    band: Literal["low", "mid", "high", "any"] = "mid",
    examples: int | None = None,
    val_fraction: float = 0.0,
    shares: Literal["generation", "client"] = "generation",
) -> Federation:
    """Label skew: 40 to 60 % of a client's examples are of its primary class, 20 to 40 % of its secondary class.

    The rest is uniform. Each client's two classes are distinct and drawn uniformly; the two shares are uniform and
    independent. 100 label tables are drawn, the range of their mean pairwise symmetric KLD is cut into three equal
    bands, and a table of the chosen band is used. If shares are drawn once per table (the paper repeats "the data
    generation process"), the bands are far apart: with 50 clients and 10 classes they begin at 0.8 to 0.9 and end at
    3.4 to 6, depending on the seed. If shares are drawn per client, all tables lie between 1.5 and 2.2, so the bands
    hardly differ. A client has no image twice; clients may share images. Test images come from the test set in the same
    proportions, a fifth as many as training images.

    Args:
        train: pool of training (and validation) examples.
        test: pool of test examples.
        n_clients: number of clients (DC-PFL: 50).
        seed: same seed, same federation.
        band: heterogeneity (DC-PFL's headline numbers: mid); "any": the first table.
        examples: training images per client; None: the training set divided by ``n_clients`` (DC-PFL: CIFAR-10 1,000,
            Fashion-MNIST 1,200).
        val_fraction: share of each client's examples for validation.
        shares: "generation": all clients of a table have the same two shares; "client": each client has its own.
    """
    check_examples(train, test)
    check_clients(n_clients, len(train.y))
    class_sizes = stock(np.asarray(train.y))
    n_classes = int((class_sizes > 0).sum())
    if n_classes < 3:
        raise ValueError(f"the data has {n_classes} classes; primary, secondary and other classes need at least 3")
    if band not in (*BANDS, "any"):
        raise ValueError(f"band={band!r}: give low, mid, high or any")
    if shares not in SHARES:
        raise ValueError(f"shares={shares!r}: give generation or client")
    examples = len(train.y) // n_clients if examples is None else examples
    check_whole("examples", examples, 5, len(train.y), ", the training images")
    rng, split = generator(seed), split_of(val_fraction)
    share = _choose(rng, n_clients, n_classes, band, shares)
    counts, test_counts = (over_all(_counts(share, n), class_sizes) for n in (examples, round(examples / 5)))
    owned = take(rng, np.asarray(train.y), counts, overlap="freely")
    test_rows = take(rng, np.asarray(test.y), test_counts, overlap="freely")
    test_owned = [rows + len(train.y) for rows in test_rows]
    return build(merge(train, test), owned, split, seed, test_owned=test_owned)


def draw_shares(rng: np.random.Generator, n_clients: int, n_classes: int, shares: str = "generation") -> np.ndarray:
    """(clients, classes) label shares: one table of primary and secondary classes, see `primary_secondary`."""
    order = rng.permuted(np.tile(np.arange(n_classes), (n_clients, 1)), axis=1)
    n_drawn = n_clients if shares == "client" else 1
    return share_table(order, rng.uniform(0.4, 0.6, n_drawn), rng.uniform(0.2, 0.4, n_drawn))


def share_table(order: np.ndarray, primary: np.ndarray, secondary: np.ndarray) -> np.ndarray:
    """(clients, classes) label shares.

    Args:
        order: (clients, classes) classes of each client: the primary first, then the secondary.
        primary: (clients,) or (1,) shares of the primary class.
        secondary: (clients,) or (1,) shares of the secondary class; the rest is spread evenly over the other classes.
    """
    n_clients, n_classes = order.shape
    rest = np.maximum(1 - primary - secondary, 0) / (n_classes - 2)
    share = np.repeat(np.broadcast_to(rest, n_clients)[:, None], n_classes, axis=1)
    client = np.arange(n_clients)
    share[client, order[:, 0]], share[client, order[:, 1]] = primary, secondary
    return share


def _choose(rng: np.random.Generator, n_clients: int, n_classes: int, band: str, shares: str) -> np.ndarray:
    tables = [draw_shares(rng, n_clients, n_classes, shares) for _ in range(_DRAWS)]
    if band == "any":
        return tables[0]
    divergence = np.array([mean_kld(table) for table in tables])
    edges = np.linspace(divergence.min(), divergence.max(), 4)
    band_of_table = np.clip(np.searchsorted(edges, divergence, side="right") - 1, 0, 2)
    band_number = BANDS.index(band)
    tables_in_band = np.flatnonzero(band_of_table == band_number)
    if len(tables_in_band) == 0:  # only with very few clients: take the table nearest to the middle of the band
        return tables[int(np.argmin(np.abs(divergence - edges[band_number : band_number + 2].mean())))]
    return tables[rng.choice(tables_in_band)]


def _counts(share: np.ndarray, n: int) -> np.ndarray:
    """(clients, classes) counts that sum to n per client, each within one of ``share * n`` (largest remainders)."""
    exact = share * n
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    return counts + (rank < (n - counts.sum(axis=1))[:, None])
