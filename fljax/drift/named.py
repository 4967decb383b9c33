"""The drifts by name. The first change is before round ``start``, counted from 0, the next ``every`` rounds later."""

from collections.abc import Callable
from numbers import Integral
from typing import Annotated, Any

import numpy as np

from fljax.choices import Positive, Seed
from fljax.data.images import rotate
from fljax.data.labels import check_classes
from fljax.drift.timeline import Drift, Timeline
from fljax.ranges import Number, said
from fljax.static_values import static_value
from fljax.types import Federation

Share = Annotated[float, Number(above=0, most=1)]
Degrees = Annotated[float, Number(above=-360, below=360)]


def _drift(make: Callable[..., Callable[[Federation], Timeline]]) -> Callable[..., Drift]:
    """``make``, which returns a `Drift.timeline`, as a function that returns the drift."""

    def drift(timeline: Callable[[Federation], Timeline], arguments: dict[str, Any]) -> Drift:
        times = {name: arguments[name] for name in ("start", "changes", "every")}
        return Drift(make.__name__, timeline, about=(("drift", make.__name__), *arguments.items()), **times)

    return static_value(make, drift, settle=_with_classes)


def _with_classes(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a drift; ``classes``, if it has them, as a tuple of two."""
    if "classes" not in arguments:
        return arguments
    classes = tuple(arguments["classes"]) if isinstance(arguments["classes"], list) else arguments["classes"]
    is_pair = isinstance(classes, tuple) and len(classes) == 2 and all(isinstance(label, Integral) for label in classes)
    if not is_pair or classes[0] == classes[1] or min(classes) < 0 or any(isinstance(label, bool) for label in classes):
        raise ValueError(f"{said('classes', classes)}: give two different whole numbers from 0, such as (0, 1)")
    return arguments | {"classes": classes}


def none() -> Drift:
    """Nothing changes."""
    return Drift("none")


@_drift
def swap_labels(
    *,
    classes: tuple[int, int] = (0, 1),
    share: Share = 0.5,
    start: Positive = 10,
    changes: Positive = 1,
    every: Positive = 10,
    seed: Seed = 0,
):
    """Two classes are swapped for a share of the clients, and back at the next change (as in FedDrift, AISTATS 2023).

    Args:
        classes: the two classes.
        share: share of the clients that change; rounded, at least one.
        start: first round after the first change, counted from 0.
        changes: number of changes.
        every: rounds between two changes.
        seed: of the draw of the clients.
    """

    def swap(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x, np.where(y == classes[0], classes[1], np.where(y == classes[1], classes[0], y))

    def timeline(federation: Federation) -> Timeline:
        labels = np.asarray(federation.train.pool.y)
        check_classes(labels, "the drift swap_labels")
        if max(classes) > labels.max():
            raise ValueError(f"classes={classes}: give two different classes from 0 to {labels.max()}")
        line, ids = Timeline.of(changes + 1, _n_clients(federation)), _drawn_clients(federation, share, seed)
        line.version[1::2, ids] = 1
        return line._replace(versions=(swap,))

    return timeline


@_drift
def rotate_images(
    *,
    degrees: Degrees = 90.0,
    share: Share = 0.5,
    start: Positive = 10,
    changes: Positive = 1,
    every: Positive = 10,
    seed: Seed = 0,
):
    """Images of a share of the clients are rotated, further at each change.

    Args:
        degrees: rotation that each change adds.
        share: share of the clients that change; rounded, at least one.
        start: first round after the first change, counted from 0.
        changes: number of changes.
        every: rounds between two changes.
        seed: of the draw of the clients.
    """

    def by(angle: float):
        return lambda x, y: (rotate(x, angle), y)

    def timeline(federation: Federation) -> Timeline:
        if federation.train.pool.x.ndim != 4:
            shape = federation.train.pool.x.shape[1:]
            raise ValueError(f"rotate_images: examples have shape {shape}; give images, (height, width, channels)")
        line, ids = Timeline.of(changes + 1, _n_clients(federation)), _drawn_clients(federation, share, seed)
        line.version[:, ids] = np.arange(changes + 1)[:, None]
        return line._replace(versions=tuple(by(degrees * change) for change in range(1, changes + 1)))

    return timeline


@_drift
def move(*, share: Share = 0.5, start: Positive = 10, changes: Positive = 1, every: Positive = 10, seed: Seed = 0):
    """A share of the clients exchange their data, so that each gets data of another true group, as far as possible.

    Args:
        share: share of the clients that move at each change; rounded, at least two.
        start: first round after the first change, counted from 0.
        changes: number of changes.
        every: rounds between two changes.
        seed: of the draw of the clients.
    """

    def timeline(federation: Federation) -> Timeline:
        n = _n_clients(federation)
        line, group = Timeline.of(changes + 1, n), _group(federation)
        for change in range(1, changes + 1):
            owner_before = line.owner[change - 1]
            ids = _drawn_clients(federation._replace(group=group[owner_before]), max(share, 2 / n), seed + change)
            ids = ids[np.argsort(group[owner_before[ids]], kind="stable")]
            largest_group = np.unique(group[owner_before[ids]], return_counts=True)[1].max()
            line.owner[change] = owner_before
            # Beyond all clients of the same group, unless it is a majority.
            line.owner[change, ids] = owner_before[np.roll(ids, largest_group)]
        return line

    return timeline


@_drift
def arrive(*, share: Share = 0.5, start: Positive = 10, changes: Positive = 1, every: Positive = 10, seed: Seed = 0):
    """A share of the clients is absent at first and arrives later, equally many at each change.

    Args:
        share: share of the clients that arrive; rounded, at least one.
        start: first round after the first change, counted from 0.
        changes: number of changes.
        every: rounds between two changes.
        seed: of the draw of the clients.
    """

    return _absence(share, changes, seed, lambda ids, n: ids[n:])


@_drift
def leave(*, share: Share = 0.5, start: Positive = 10, changes: Positive = 1, every: Positive = 10, seed: Seed = 0):
    """A share of the clients leaves permanently, equally many at each change.

    Args:
        share: share of the clients that leave; rounded, at least one.
        start: first round after the first change, counted from 0.
        changes: number of changes.
        every: rounds between two changes.
        seed: of the draw of the clients.
    """

    return _absence(share, changes, seed, lambda ids, n: ids[:n])


def _drawn_clients(federation: Federation, share: float, seed: int) -> np.ndarray:
    """Ids of a share of the clients, drawn evenly from the true groups, in random order."""
    rng, n = np.random.default_rng(seed), _n_clients(federation)
    count, shuffled = max(1, round(share * n)), rng.permutation(n)
    order = shuffled[np.argsort(_group(federation)[shuffled], kind="stable")]
    return rng.permutation(order[np.arange(count) * n // count])


def _group(federation: Federation) -> np.ndarray:
    """(clients,) true groups; without true groups, each client is its own group."""
    return np.arange(_n_clients(federation)) if federation.group is None else np.asarray(federation.group)


def _n_clients(federation: Federation) -> int:
    return federation.train.n_clients


DRIFTS: dict[str, Callable[..., Drift]] = {
    make.__name__: make for make in (none, swap_labels, rotate_images, move, arrive, leave)
}
"""Name -> function that makes the drift."""


def _absence(
    share: float, changes: int, seed: int, absent_ids: Callable[[np.ndarray, int], np.ndarray]
) -> Callable[[Federation], Timeline]:
    """Of a share of the clients, ``absent_ids(ids, n)`` are absent after n have moved; changes move equally many."""

    def timeline(federation: Federation) -> Timeline:
        line, ids = Timeline.of(changes + 1, _n_clients(federation)), _drawn_clients(federation, share, seed)
        for change in range(changes + 1):
            line.there[change, absent_ids(ids, round(len(ids) * change / changes))] = False
        return line

    return timeline
