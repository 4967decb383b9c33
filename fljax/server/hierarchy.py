"""A fixed hierarchy of groups, walked down step by step: DC-PFL's normalised threshold on a dendrogram."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.server.checks import check_one, check_vector
from fljax.server.tree_cuts import cut, n_clients

_MOST = 2**31 - 1
"""Steps that int32 counts."""


def threshold(steps: Array | int, step: Array | float) -> Array:
    """``1 - steps * step``, and 0 where that is below half a step: whole steps do not drift, as sums of 0.2 do."""
    level = 1 - jnp.asarray(steps, jnp.float32) * step
    return jnp.where(level < step / 2, 0.0, level)


def cut_at(dendrogram: Array, level: Array | float, where: Array | None = None) -> Array:
    """The groups (n,) at a normalised threshold: merges of at most ``level`` times the largest height are made.

    1 gives one group, 0 everyone alone but for clients at distance zero. Heights of inf, which merge those that
    `fljax.server.linkage` was told to keep apart, do not count.

    Args:
        dendrogram: (n-1, 4) of `fljax.server.linkage`.
        level: () in [0, 1]; may be traced.
        where: (n,) bool, the mask that `fljax.server.linkage` was given; None: all.

    Returns:
        (n,) int32, canonical; -1 where ``where`` is False.

    Raises:
        ValueError: the dendrogram is not of shape (n-1, 4), or lengths differ.
    """
    n_clients("dendrogram", dendrogram)
    check_one(level=level)
    return cut(dendrogram, level * _largest(dendrogram[:, 2]), where)


def _largest(height: Array) -> Array:
    """() the largest height of a merge; those that were to be kept apart do not count."""
    return jnp.where(height < jnp.inf, height, 0).max(initial=0.0)


@jax.jit
def next_split(
    dendrogram: Array, label: Array, steps: Array, step: Array | float, where: Array | None = None
) -> tuple[Array, Array, Array]:
    """The first lower threshold at which the groups differ from ``label``.

    However small a step is, no more thresholds are looked at than the dendrogram has heights. Steps are counted up to
    2^31 - 1: one below 5e-10 never comes to 0.

    Args:
        dendrogram: (n-1, 4) of `fljax.server.linkage`.
        label: (n,) canonical, the present groups.
        steps: () steps already taken from 1.
        step: lambda, how much a step lowers the threshold; 0 never does.
        where: (n,) bool, the mask that `fljax.server.linkage` was given; None: all.

    Returns:
        The groups (n,) int32, the steps () int32 taken to them, and whether there are such: False at threshold 0.

    Raises:
        ValueError: the dendrogram is not of shape (n-1, 4), or lengths differ.
    """
    check_vector("label", label, n_clients("dendrogram", dendrogram), "clients")
    check_one(steps=steps, step=step)
    label, steps = label.astype(jnp.int32), steps.astype(jnp.int32)

    def same(carry: tuple[Array, Array]) -> Array:
        groups, steps = carry
        return (groups == label).all() & (threshold(steps, step) > 0) & (step > 0) & (steps < _MOST)

    def lower(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        steps = carry[1] + 1
        level = threshold(steps, step)
        groups = cut_at(dendrogram, level, where)
        return groups, jnp.where((groups == label).all(), _last_alike(dendrogram[:, 2], level, steps, step), steps)

    groups, steps = lax.while_loop(same, lower, (label, steps))
    return groups, steps, (groups != label).any()


def _last_alike(height: Array, level: Array, steps: Array, step: Array | float) -> Array:
    """() int32, the most steps after which the same merges are made as after ``steps``, and no more than come to 0.

    Found by halving: thresholds only fall, and whether a merge is made follows from its height.
    """
    largest = _largest(height)
    made = height <= level * largest

    def raised(i: int, found: Array) -> Array:
        """``found`` and a power of two, where all is alike after so many steps too."""
        more = found + (jnp.int32(2**30) >> i)
        at = threshold(more, step)
        alike = (more > found) & (at > 0) & ((height <= at * largest) == made).all()
        return jnp.where(alike, more, found)

    return lax.fori_loop(0, 31, raised, steps)
