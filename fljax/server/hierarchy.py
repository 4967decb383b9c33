"""Splits of a fixed hierarchy, step by step: DC-PFL's normalised threshold on a dendrogram."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax.server.checks import check_one, check_vector
from fljax.server.entry import compiled
from fljax.server.tree_cuts import cut, n_clients
from fljax.types import AnyArray

_MOST = 2**31 - 1
"""Largest number of steps: the maximum of int32."""


def threshold(steps: ArrayLike, step: ArrayLike) -> Array:
    """``1 - steps * step``, or 0 if that is below half a step: free of the rounding drift that repeated sums have."""
    level = 1 - jnp.asarray(steps, jnp.float32) * step
    return jnp.where(level < step / 2, 0.0, level)


def cut_at(dendrogram: AnyArray, level: ArrayLike, where: AnyArray | None = None) -> Array:
    """The groups (n,) at a normalised threshold: merges up to ``level`` times the largest height are made.

    Level 1 gives one group; level 0 one group per client, except that clients at distance 0 stay together. Heights of
    inf, at which `fljax.server.linkage` merges clients that must stay apart, are ignored.

    Args:
        dendrogram: (n-1, 4) of `fljax.server.linkage`.
        level: () in [0, 1]; may be traced.
        where: (n,) bool, the mask passed to `fljax.server.linkage`; None: all.

    Returns:
        (n,) int32, canonical; -1 where ``where`` is False.

    Raises:
        ValueError: the dendrogram is not of shape (n-1, 4), or lengths differ.
    """
    n_clients("dendrogram", dendrogram)
    check_one(level=level)
    return cut(dendrogram, level * _largest(dendrogram[:, 2]), where)


def _largest(height: AnyArray) -> Array:
    """() the largest finite height of a merge."""
    return jnp.where(height < jnp.inf, height, 0).max(initial=0.0)


@compiled
def next_split(
    dendrogram: AnyArray, label: AnyArray, steps: ArrayLike, step: ArrayLike, where: AnyArray | None = None
) -> tuple[Array, Array, Array]:
    """The first lower threshold at which the groups differ from ``label``.

    However small a step is, the search tries at most as many thresholds as the dendrogram has heights. At most 2^31 - 1
    steps are counted, so a step below 5e-10 never reaches threshold 0.

    Args:
        dendrogram: (n-1, 4) of `fljax.server.linkage`.
        label: (n,) canonical, the current groups.
        steps: () number of steps already taken from threshold 1.
        step: lambda, by which a step lowers the threshold; with 0 the groups stay.
        where: (n,) bool, the mask passed to `fljax.server.linkage`; None: all.

    Returns:
        The groups (n,) int32, the number of steps () int32 down to them, and whether they differ from ``label``, ()
        bool: False if no threshold down to 0 changes the groups.

    Raises:
        ValueError: the dendrogram is not of shape (n-1, 4), or lengths differ.
    """
    check_vector("label", label, n_clients("dendrogram", dendrogram), "clients")
    check_one(steps=steps, step=step)
    label, steps, step = jnp.asarray(label, jnp.int32), jnp.asarray(steps, jnp.int32), jnp.asarray(step)

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


def _last_alike(height: AnyArray, level: Array, steps: Array, step: Array | float) -> Array:
    """() int32, the largest number of steps that makes the same merges as ``steps``, with a threshold above 0.

    Found by bisection: thresholds only fall, and a merge is made if its height is at most the threshold.
    """
    largest = _largest(height)
    is_made = height <= level * largest

    def raised(i: int, n_steps: Array) -> Array:
        """``n_steps`` plus a power of two, if that many steps make the same merges; else ``n_steps``."""
        trial = n_steps + (jnp.int32(2**30) >> i)
        trial_level = threshold(trial, step)
        is_alike = (trial > n_steps) & (trial_level > 0) & ((height <= trial_level * largest) == is_made).all()
        return jnp.where(is_alike, trial, n_steps)

    return lax.fori_loop(0, 31, raised, steps)
