"""Attacks on data: poisoned copies of the attackers' examples, and test examples with a trigger."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fljax.data.images import with_noise
from fljax.drift.changed import changed
from fljax.types import ClientData, Examples, Federation

Poison = Callable[[np.random.Generator, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""``poison(rng, x, y, n_classes) -> (x, y)`` for one client's examples; it returns as many as it receives."""


class Poisoned(NamedTuple):
    """A federation with poisoned copies at the end of its pool, and their first row."""

    federation: Federation
    first: int  # row of the pool; the examples of the j-th attacker begin at first + j * capacity


def poisoned(federation: Federation, ids: tuple[int, ...], poison: Poison, n_classes: int, seed: int) -> Poisoned:
    """Adds poisoned copies of the training examples of the clients ``ids``; no client's index points to them yet.

    Raises:
        ValueError: ``poison`` returns other shapes, or numbers outside of the examples' dtype.
    """
    data = federation.train
    pool, index, size = (np.asarray(leaf) for leaf in data.pool), np.asarray(data.index), np.asarray(data.size)
    x, y = pool
    if isinstance(poison, Backdoor):
        poison = poison._replace(bright=brightness(x))
    copies_x, copies_y = [x], [y]
    for client in ids:
        rows = index[client].copy()
        rows[size[client] :] = rows[0]
        # fljax's poisons also draw for padding, so that results match existing folders; they change each example by
        # itself. A user's own poison sees only the client's examples.
        copied_rows = rows if _is_ours(poison) else rows[: size[client]]
        copies = x[copied_rows], y[copied_rows]
        if len(copied_rows):
            result = poison(np.random.default_rng([seed, client]), *copies, n_classes)
            copies = changed(f"poison: client {client}: it", result, *copies)
        copies_x.append(_filled(copies[0], x[rows]))
        copies_y.append(_filled(copies[1], y[rows]))
    grown_pool = Examples(jnp.asarray(np.concatenate(copies_x)), jnp.asarray(np.concatenate(copies_y)))
    return Poisoned(federation._replace(train=data._replace(pool=grown_pool)), len(y))


def _is_ours(poison: Poison) -> bool:
    function = poison.func if isinstance(poison, partial) else poison
    return isinstance(poison, Backdoor) or function in (_label_flip, _feature_noise)


def _filled(copies: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """``copies``, padded with their first row to the number of ``originals``; the originals if there are no copies."""
    rest = originals[len(copies) :]
    return np.concatenate([copies, np.broadcast_to(copies[:1], rest.shape) if len(copies) else rest])


def pointed_at(data: ClientData, ids: tuple[int, ...], first: int) -> ClientData:
    """``data`` of a whole federation, with the attackers' index at their poisoned examples."""
    index, capacity = np.asarray(data.index).copy(), data.index.shape[1]
    for j, client in enumerate(ids):
        index[client] = first + j * capacity + np.arange(capacity)
    return data._replace(index=jnp.asarray(index))


def label_flip(target: int | None) -> Poison:
    """Every label y becomes ``n_classes - 1 - y``, or ``target`` if it is given."""
    return partial(_label_flip, target=target)


def _label_flip(
    rng: np.random.Generator, x: np.ndarray, y: np.ndarray, n_classes: int, *, target: int | None
) -> tuple[np.ndarray, np.ndarray]:
    _check_target(target, n_classes)
    return x, n_classes - 1 - y if target is None else np.full_like(y, target)


def feature_noise(std: float) -> Poison:
    """Normal noise on every input, in units of the inputs' range (255 for uint8, 1 for others); labels stay.

    The poison raises ValueError for integers that are not pixels, such as tokens of texts.
    """
    return partial(_feature_noise, std=std)


def _feature_noise(
    rng: np.random.Generator, x: np.ndarray, y: np.ndarray, n_classes: int, *, std: float
) -> tuple[np.ndarray, np.ndarray]:
    if x.dtype != np.uint8 and x.dtype.kind in "iub":
        raise ValueError(
            f"feature_noise: x has dtype {x.dtype}, as tokens do, to which noise cannot be added; choose another attack"
        )
    return with_noise(rng, x, std), y


class Backdoor(NamedTuple):
    """A share of the examples gets the trigger and the label ``target`` (Gu et al., BadNets, 2017)."""

    target: int
    share: float
    width: int
    bright: float | None = None  # of the trigger's pixels; `poisoned` takes the pool's `brightness`

    def __call__(
        self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray, n_classes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Poison`."""
        _check_target(self.target, n_classes)
        is_chosen = rng.random(len(y)) < self.share
        x, y = x.copy(), y.copy()
        x[is_chosen], y[is_chosen] = triggered(x[is_chosen], self.width, self.bright), self.target
        return x, y


def brightness(x: np.ndarray) -> float:
    """The value of a bright pixel in images: 255 for uint8, otherwise the largest value, at least 1."""
    return 255.0 if x.dtype == np.uint8 else max(1.0, float(x.max(initial=1.0)))


def triggered(x: np.ndarray, width: int, bright: float | None = None) -> np.ndarray:
    """Images (n, height, width, channels) with a bright square of ``width`` pixels in the lower right corner.

    Args:
        x: the images.
        width: side of the square.
        bright: value of its pixels; None: the `brightness` of these images.

    Raises:
        ValueError: they are not images, or smaller than the square.
    """
    if x.ndim != 4 or not 1 <= width <= min(x.shape[1:3]):
        raise ValueError(
            f"width={width}: the trigger is a square within an image; examples have the shape {x.shape[1:]}"
        )
    x = x.copy()
    x[:, -width:, -width:] = brightness(x) if bright is None else bright
    return x


def with_trigger(
    test: ClientData, ids: tuple[int, ...], target: int, width: int, bright: float | None = None
) -> ClientData:
    """The honest clients' test examples of other classes than ``target``, with the trigger, all labelled ``target``.

    ``bright`` is passed to `triggered`; the attackers use the training pool's `brightness`.
    """
    x, y = (np.asarray(leaf) for leaf in test.pool)
    index, size = np.asarray(test.with_own_rows().index), np.asarray(test.size)
    rows = [
        np.zeros(0, int) if client in ids else client_rows[: size[client]][y[client_rows[: size[client]]] != target]
        for client, client_rows in enumerate(index)
    ]
    capacity = max(1, *(len(client_rows) for client_rows in rows))
    table = np.stack([np.pad(client_rows, (0, capacity - len(client_rows))) for client_rows in rows]).astype(np.int32)
    n_rows = np.array([len(client_rows) for client_rows in rows], np.int32)
    table = table[[n_rows.argmax()]] if test.is_common else table
    pool = Examples(jnp.asarray(triggered(x, width, bright)), jnp.full(len(y), target, jnp.int32))
    return ClientData(pool, jnp.asarray(table), jnp.asarray(n_rows))


def _check_target(target: int | None, n_classes: int) -> None:
    if target is not None and not 0 <= target < n_classes:
        raise ValueError(f"target={target} is not a class; choose 0 to {n_classes - 1}")
