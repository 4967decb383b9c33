"""Your own data: examples from arrays, with the client of each, and the federation made of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import Natural, Seed, check_choices
from fljax.data.federation import as_arrays, build, check_split, on_host
from fljax.data.items import as_array
from fljax.data.labels import are_classes
from fljax.data.own.checks import PARTS, check_finite, check_halves, check_lengths, parts_of
from fljax.data.own.fill import Fill, filled, fills
from fljax.data.own.numbered import numbered
from fljax.data.scale import warn_of_scale
from fljax.data.split import Rows, client_data
from fljax.data.validation import validate
from fljax.ranges import real
from fljax.types import Examples, Federation

SPLIT = (0.8, 0.0, 0.2)
"""Shares of train, validation and test if the data does not assign its examples to splits."""


class OwnData(NamedTuple):
    """Examples and their clients, with the names that the numbers of clients and classes stand for."""

    examples: Examples  # NumPy arrays
    client: np.ndarray | None  # (examples,) int32 into `clients`; None: a partition assigns clients
    clients: tuple[str, ...]
    classes: tuple[str, ...] = ()  # names of the classes, if the labels had names
    part: np.ndarray | None = None  # (examples,) "train", "val" or "test"; None: split at random
    inputs: tuple[str, ...] = ()  # names of the features, if they come from a table
    words: tuple[str, ...] = ()  # the word of each token, if the examples are texts of words
    empty: np.ndarray | None = None  # (examples, features) bool: empty cells of a table, which `fill` fills
    fill: Fill | None = None

    def federation(
        self,
        split: tuple[float, float, float] = SPLIT,
        *,
        seed: Seed = 0,
        min_size: Natural = 0,
        stratify: bool = True,
    ) -> Federation:
        """The federation of the clients, in the order of `clients`.

        Args:
            split: shares of train, validation and test in each client, if `part` does not assign the examples.
            seed: decides which examples go to which split.
            min_size: clients with fewer examples are left out.
            stratify: whether each split has its share of each class.

        Raises:
            ValueError: a client has too few examples, or an example is not finite (both are named); no client has test
                examples (with `part`, some clients may have none and are not tested); or both `part` and ``split`` are
                given.
        """
        if self.part is not None and tuple(split) != SPLIT:
            raise ValueError(f"split={split} is given, but part assigns each example to a split; leave one of them out")
        if self.client is None:
            raise ValueError("the data does not name its clients; give client ids, or use a partition")
        check_split(split)
        check_choices(OwnData.federation, {"seed": seed, "min_size": min_size})
        names, owned = self._owned(min_size)
        if self.part is None:
            self._check_sizes(owned, names, sum(share > 0 for share in split))
            return self.filled(build(self.examples, owned, split, seed, stratify=stratify))
        return self.filled(self._by_part(owned, names))

    def fills(self, federation: Federation) -> np.ndarray | None:
        """(features,) the value that fills each column's empty cells, from a federation's training examples."""
        if self.empty is None or self.fill is None:
            return None
        return fills(federation, self.empty, self.fill)

    def filled(self, federation: Federation, values: np.ndarray | None = None) -> Federation:
        """A federation of this data with its empty cells filled by ``values``; None: by its own `fills`."""
        values = self.fills(federation) if values is None else values
        return federation if self.empty is None or values is None else filled(federation, self.empty, values)

    def halves(self, test_fraction: float = 0.2, seed: Seed = 0) -> tuple[Examples, Examples]:
        """Training and test examples for a partition of `fljax.PARTITIONS`: by `part`, or a random share.

        The partition uses the test examples for the clients' tests, or as the server's public data.

        Raises:
            ValueError: `part` has examples for validation (a partition takes these from each client's examples), or
                none for training or test; there are fewer than 2 examples; or the fraction is not between 0 and 1.
        """
        if self.empty is not None and self.empty.any():
            raise ValueError("empty cells are only filled if the data names its clients; fill them before a partition")
        x, y = np.asarray(self.examples.x), np.asarray(self.examples.y)
        if self.part is not None:
            check_halves(self.part)
            is_test = self.part == "test"
        else:
            check_choices(OwnData.halves, {"seed": seed})
            if not 0 < real("test_fraction", test_fraction) < 1:
                raise ValueError(f"test_fraction={test_fraction} is out of its range; choose 0 < test_fraction < 1")
            if (n := len(y)) < 2:
                raise ValueError(f"the data has {n} example, but a partition needs one to train and one to test on")
            is_test = np.zeros(n, bool)
            is_test[np.random.default_rng(seed).permutation(n)[: min(max(1, round(test_fraction * n)), n - 1)]] = True
        return on_host(x[~is_test], y[~is_test]), on_host(x[is_test], y[is_test])

    def kept(self, min_size: int) -> tuple[str, ...]:
        """Names of the clients that have at least ``min_size`` examples, in the order of the federation."""
        return tuple(self._owned(min_size)[0]) if self.client is not None else ()

    def _owned(self, min_size: int) -> tuple[list[str], Rows]:
        assert self.client is not None
        size = np.bincount(self.client, minlength=len(self.clients))
        rows = np.split(np.argsort(self.client, kind="stable"), np.cumsum(size)[:-1])
        clients = [i for i in range(len(self.clients)) if size[i] >= max(min_size, 1)]
        if not clients:
            raise ValueError(f"min_size={min_size}: no client has so many examples; the largest has {size.max()}")
        return [self.clients[i] for i in clients], [rows[i] for i in clients]

    def _check_sizes(self, owned: Rows, names: Sequence[str], n_splits: int) -> None:
        for name, rows in zip(names, owned, strict=True):
            if len(rows) < n_splits:
                raise ValueError(
                    f"client {name!r} has {len(rows)} examples, too few for {n_splits} splits; "
                    f"min_size={n_splits} (--partition.min-size {n_splits}) leaves such clients out"
                )

    def _by_part(self, owned: Rows, names: Sequence[str]) -> Federation:
        assert self.part is not None
        parts = np.unique(self.part[np.concatenate(owned)])
        needed = ["train", "val"] if "val" in parts else ["train"]  # a client without test examples is not tested
        for name, rows in zip(names, owned, strict=True):
            if missing := [part for part in needed if not (self.part[rows] == part).any()]:
                or_none = ", or mark no example as val" if missing[0] == "val" else ""
                raise ValueError(f"client {name!r} has no {missing[0]} examples; add some, or leave it out{or_none}")
        pool = as_arrays(self.examples)
        warn_of_scale(self.examples.x)
        train, val, test = (client_data(pool, [rows[self.part[rows] == part] for rows in owned]) for part in PARTS)
        federation = Federation(train, val if "val" in needed else None, test, None, None)
        validate(federation)
        return federation


def own_data(x: Any, y: Any, client_ids: Any = None, *, part: Any = None) -> OwnData:
    """Examples in arrays as `OwnData`.

    Args:
        x: (examples, ...) features of any rank: uint8 pixels, which are scaled to [0, 1], floating-point numbers, or
            whole numbers, which stay unchanged (tokens of a text).
        y: (examples,) classes, as whole numbers from 0, or as names (or negative numbers, such as -1 and 1), which are
            numbered in sorted order; (examples,) or (examples, targets) floating-point targets of a regression; or
            (examples, labels) of 0 and 1.
        client_ids: (examples,) client of each example: numbers or names, which are numbered in sorted order.
        part: (examples,) "train", "val" or "test".

    Raises:
        ValueError: arrays of different lengths, an example that is not finite, or invalid ids, labels or parts.
    """
    features, labels = as_array("x", x), as_array("y", y)
    if not (features.ndim and features.size):
        raise ValueError(f"x has shape {features.shape}; give (examples, ...), of at least one example")
    if features.dtype == bool:
        features = features.astype(np.float32)
    elif features.dtype.kind in "iu" and features.dtype not in (np.uint8, np.int32, np.int64):
        if features.max() > np.iinfo(np.int32).max:
            raise ValueError(f"x has {features.dtype} values up to {features.max()}; give tokens that int32 holds")
        features = features.astype(np.int32)
    classes: tuple[str, ...] = ()
    if labels.ndim == 1 and (labels.dtype.kind in "USO" or (are_classes(labels) and labels.size and labels.min() < 0)):
        labels, classes = numbered(labels, "label")
    examples = on_host(features, labels)
    check_lengths(len(features), y=labels, client_ids=client_ids, part=part)
    client, clients = (None, ()) if client_ids is None else numbered(client_ids, "client id")
    if client is not None:
        check_finite(features, client, clients)
    return OwnData(examples, client, clients, classes, None if part is None else parts_of(part))


def federation_from_arrays(
    x: Any,
    y: Any,
    client_ids: Any,
    *,
    split: tuple[float, float, float] = SPLIT,
    part: Any = None,
    seed: int = 0,
    min_size: int = 0,
) -> Federation:
    """A federation of examples with client ids: `own_data` and `OwnData.federation` in one.

    ``client_ids`` (examples,) are numbers or names; client i of the federation is the i-th id in sorted order, which is
    by value if all are numbers ("2" before "10"). ``part`` (examples,) assigns each example to "train", "val" or
    "test"; without it, each client's examples are split at random by the shares of ``split``.

    Raises:
        ValueError: as `own_data` and `OwnData.federation`.
    """
    return own_data(x, y, client_ids, part=part).federation(split, seed=seed, min_size=min_size)
