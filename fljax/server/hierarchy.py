"""A fixed hierarchy of groups, walked down step by step: DC-PFL's normalised threshold on a dendrogram."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.server.linkage import cut


def threshold(steps: Array, step: Array | float) -> Array:
    """``1 - steps * step``, and 0 where that is below half a step: whole steps do not drift, as sums of 0.2 do."""
    level = 1 - steps.astype(jnp.float32) * step
    return jnp.where(level < step / 2, 0.0, level)


def cut_at(dendrogram: Array, level: Array | float) -> Array:
    """The groups (n,) at a normalised threshold: merges of at most ``level`` times the height of the last are made.

    1 gives one group, 0 everyone alone but for clients at distance zero.
    """
    return cut(dendrogram, level * dendrogram[:, 2].max(initial=0.0))


@jax.jit
def next_split(dendrogram: Array, label: Array, steps: Array, step: Array | float) -> tuple[Array, Array, Array]:
    """The first lower threshold at which the groups differ from ``label``.

    Args:
        dendrogram: (n-1, 4) of `fljax.server.linkage`.
        label: (n,) canonical, the present groups.
        steps: () int32 steps already taken from 1.
        step: lambda, how much a step lowers the threshold; 0 never does.

    Returns:
        The groups (n,), the steps () taken to them, and whether there are such: False at threshold 0.
    """

    def same(carry: tuple[Array, Array]) -> Array:
        groups, steps = carry
        return (groups == label).all() & (threshold(steps, step) > 0) & (step > 0)

    def lower(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        steps = carry[1] + 1
        return cut_at(dendrogram, threshold(steps, step)), steps

    groups, steps = lax.while_loop(same, lower, (label, steps))
    return groups, steps, (groups != label).any()
