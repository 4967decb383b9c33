"""Label skew without groups: Dirichlet shares of each class, few classes per client, or sorted labels."""

import numpy as np

from fljax.data.federation import build
from fljax.data.partition.check import check_clients, check_examples, check_range, check_whole, generator, split_of
from fljax.data.partition.deal import by_label, deal_classes, over_all, stock, take
from fljax.types import Examples, Federation

_DRAWS, _FEW_DRAWS, _MANY = 10_000, 100, 100


def dirichlet(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    beta: float = 0.5,
    iid_share: float = 0.0,
    min_size: int = 10,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Label skew: each class is split among clients by ``p_c ~ Dir_n(beta)``.

    Its shuffled rows are cut at ``floor(cumsum(p_c) n_c)``. The draw is repeated until every client has at least
    ``min_size`` examples. All training images are used. With ``iid_share``, so many of them, drawn at random, are split
    equally among clients, and only the others by class.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients (FedTSDP: 20).
        seed: same seed, same federation.
        beta: above 0; small is more skewed (FedTSDP: 0.2 and 0.5, FeSEM: 0.5).
        iid_share: share of the examples that are split equally at random, 0 (none) to 1 (iid).
        min_size: least number of examples per client.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_range("beta", beta, 1e-6, 1e9)
    check_range("iid_share", iid_share, 0, 1)
    check_clients(n_clients, len(train.y))
    check_whole("min_size", min_size, 1, len(train.y) // n_clients, ", the examples per client")
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    labels = np.asarray(train.y)
    n_classes = len(stock(labels))
    order = rng.permutation(len(labels)) if iid_share else np.arange(len(labels))
    uniform, by_class = np.split(order, [round(iid_share * len(labels))])
    parts = np.array_split(uniform, n_clients)
    class_sizes = np.bincount(labels[by_class], minlength=n_classes)
    counts = _dirichlet_counts(rng, class_sizes, beta, np.array([len(rows) for rows in parts]), min_size)
    pairs = zip(parts, take(rng, labels[by_class], counts), strict=True)
    owned = [np.concatenate([rows, by_class[places]]) for rows, places in pairs]
    return build(train, owned, split, seed, public=test if public else None)


def _dirichlet_counts(
    rng: np.random.Generator, class_sizes: np.ndarray, beta: float, held: np.ndarray, min_size: int
) -> np.ndarray:
    """(clients, classes) counts of `dirichlet` for clients that have ``held`` (clients,) examples already.

    Raises:
        ValueError: in many draws some client had fewer than ``min_size`` examples.
    """
    n_drawn, fewest = 0, len(held)
    # If many clients are too small in each of the first draws, a draw that suits all clients is not to be expected.
    while n_drawn < (_DRAWS if fewest < _MANY else _FEW_DRAWS):
        share = rng.dirichlet(np.full(len(held), beta), size=len(class_sizes))
        cuts = np.floor(np.cumsum(share, axis=1) * class_sizes[:, None]).astype(np.int64)
        cuts[:, -1] = class_sizes  # floor of a sum of shares just below 1 would lose a row
        counts = np.diff(cuts, axis=1, prepend=0).T
        n_drawn, fewest = n_drawn + 1, min(fewest, int((held + counts.sum(axis=1) < min_size).sum()))
        if fewest == 0:
            return counts
    raise ValueError(
        f"beta={beta}: in {n_drawn} draws at least {fewest} of {len(held)} clients had fewer than min_size={min_size}"
        " examples; raise beta, or lower min_size or n_clients"
    )


def classes_per_client(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    classes: int = 2,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Pathological label skew: each client holds equal shards of exactly ``classes`` random classes.

    Each class is cut into as many equal shards as it has clients, ``classes * n_clients / n_classes`` (within one); if
    a class has fewer examples than clients, some of them get none. All training images are used.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients (FedTSDP: 20).
        seed: same seed, same federation.
        classes: distinct classes of each client (FedTSDP "extreme": 2).
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_clients(n_clients, len(train.y))
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    labels = np.asarray(train.y)
    class_sizes = stock(labels)
    sizes_present = class_sizes[class_sizes > 0]
    check_whole("classes", classes, 1, len(sizes_present), ", the number of classes")
    holds = deal_classes(rng, np.full(n_clients, classes), len(sizes_present))
    counts = holds * (sizes_present // holds.sum(axis=0))
    for label, remainder in enumerate(sizes_present - counts.sum(axis=0)):
        counts[rng.choice(np.flatnonzero(holds[:, label]), remainder, replace=False), label] += 1
    owned = take(rng, labels, over_all(counts, class_sizes))
    return build(train, owned, split, seed, public=test if public else None)


def shards(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    n_shards: int = 2,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Pathological label skew of FedAvg's paper: rows sorted by label are cut into shards; each client gets a few.

    McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629: 200 shards of 300 images, two for each of 100
    clients. Shards are equal (within one), and a client may have two of the same class. All training images are used.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients (FedAvg's paper: 100).
        seed: same seed, same federation.
        n_shards: shards per client.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_clients(n_clients, len(train.y))
    check_whole("n_shards", n_shards, 1, len(train.y) // n_clients, ", the examples per client")
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    pieces = np.array_split(by_label(rng, np.asarray(train.y)), n_shards * n_clients)
    dealt = rng.permutation(len(pieces)).reshape(n_clients, n_shards)
    owned = [np.concatenate([pieces[i] for i in numbers]) for numbers in dealt]
    return build(train, owned, split, seed, public=test if public else None)


def similarity(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    share: float = 0.1,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    public: bool = True,
) -> Federation:
    """Label skew of SCAFFOLD's paper: a share of each client is drawn from all labels, the rest from sorted labels.

    Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, after Hsieh et al., ICML 2020. All training images
    are used; sizes differ by at most one.

    Args:
        train: examples that are split among clients.
        test: becomes the server's public images, without labels.
        n_clients: number of clients (SCAFFOLD: 100).
        seed: same seed, same federation.
        share: share of a client's examples drawn at random, 0 (sorted) to 1 (iid); SCAFFOLD: 0, 0.1 and 1, in per cent.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for its local test.
        public: False: the server has no data of its own.
    """
    check_examples(train, test)
    check_range("share", share, 0, 1)
    check_clients(n_clients, len(train.y))
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    order, n_uniform = rng.permutation(len(train.y)), round(share * len(train.y))
    uniform, by_class = order[:n_uniform], order[n_uniform:]
    by_class = by_class[by_label(rng, np.asarray(train.y)[by_class])]
    parts = zip(np.array_split(uniform, n_clients), reversed(np.array_split(by_class, n_clients)), strict=True)
    return build(train, [np.concatenate(pair) for pair in parts], split, seed, public=test if public else None)
