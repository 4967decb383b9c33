"""The geometric median of models, by Weiszfeld steps; ``where`` and ``empty`` as in `fljax.server.robust`."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.server import blocks
from fljax.server.aggregate import weighted_mean
from fljax.server.checks import check_one, check_vector, everyone, n_rows
from fljax.server.distance import cross_squared_l2
from fljax.server.entry import WEIGHT, checked
from fljax.server.gram import trainable_matrices
from fljax.server.robust import is_within_reach
from fljax.types import Params, Stacked


@checked(weight=WEIGHT)
@jax.jit
def geometric_median(
    stacked: Stacked,
    weight: Array | None = None,
    where: Array | None = None,
    empty: Params | None = None,
    n_steps: ArrayLike = 100,
    tolerance: ArrayLike = 1e-7,
) -> Params:
    """``argmin_z sum_i w_i |x_i - z|_2`` by Weiszfeld steps from the mean (Pillutla et al. 2022, RFA).

    ``z <- sum_i b_i x_i / sum_i b_i`` with ``b_i = w_i / |x_i - z|``. If z meets a client (nearer than a millionth of
    the median distance), the step is that of Vardi and Zhang (2000), which leaves the client unless it is the median.
    After the last step, the nearest client is tried as the result too, because steps towards a client become small. The
    objective falls at every step; its final relative error is about 1e-5. Each step reads the models twice. Only
    forward differentiation works (a loop of traced length). Clients with NaN, or with a norm above 3e18, whose squared
    distances may overflow float32, do not count.

    Args:
        stacked: (clients, d) array or leaves (clients, ...); running statistics are averaged with the same b. Leaves
            narrower than float32 and integers are computed in float32, 64-bit integers in float64; the result has their
            dtype, integers are rounded.
        weight: (clients,), 0 or more; None: equal.
        where: (clients,) bool participants; None: all.
        empty: one model, the result without participants; None: zeros.
        n_steps: maximum number of steps.
        tolerance: stops earlier, if a step lowers the objective by less than this share of it; if a few distant clients
            dominate the objective, the step must also be short.

    Returns:
        One model.
    """
    check_one(n_steps=n_steps, tolerance=tolerance)
    n, given = n_rows("stacked", stacked), stacked
    stacked = jax.tree.map(tree.at_least_float32, stacked)
    where = everyone(n, where, "stacked")
    where &= is_within_reach(stacked)
    if weight is not None:
        check_vector("weight", weight, n, "stacked")
    weight = jnp.where(where, jnp.ones(n, jnp.float32) if weight is None else weight.astype(jnp.float32), 0)

    def distance(center: Params) -> Array:
        square = cross_squared_l2(stacked, tree.broadcast(center, 1))[:, 0]
        return tree.root(jnp.where(weight > 0, square, 0))

    def middle(apart: Array) -> Array:
        order = jnp.where(weight > 0, apart, jnp.inf).argsort()
        return apart[order[(jnp.cumsum(weight[order]) >= weight.sum() / 2).argmax()]]

    def cond(carry: tuple[Params, Array, Array, Array]) -> Array:
        _, _, step, goes_on = carry
        return (step < jnp.asarray(n_steps, jnp.int32)) & goes_on

    def body(carry: tuple[Params, Array, Array, Array]) -> tuple[Params, Array, Array, Array]:
        begun, apart, step, _ = carry
        center = _weiszfeld(stacked, weight, begun, apart, 1e-6 * middle(apart))
        nearer = distance(center)
        before, after, typical = (weight * apart).sum(), (weight * nearer).sum(), middle(nearer)
        gains = before - after > tolerance * jnp.maximum(before, 1e-30)
        # The other clients' share of such an objective is below its rounding error, so the step's length decides.
        is_of_few = after > 100 * weight.sum() * typical
        went, is_at = (tree.root(tree.squared_norm(x)) for x in (tree.subtract(center, begun), center))
        return center, nearer, step + 1, gains | (is_of_few & (went > jnp.maximum(1e-3 * typical, 1e-6 * is_at)))

    start = weighted_mean(stacked, weight, empty)
    center, apart, *_ = lax.while_loop(cond, body, (start, distance(start), jnp.int32(0), jnp.bool_(True)))
    nearest = tree.take(stacked, jnp.where(weight > 0, apart, jnp.inf).argmin())
    is_cheaper = (weight * _less_far(stacked, nearest, center, distance(nearest), apart)).sum() > 0

    def chosen(leaf: Array, a: Array, b: Array) -> Array:
        return tree.rounded(jnp.where(is_cheaper, a, b), leaf.dtype)

    return jax.tree.map(chosen, given, nearest, center)


def _weiszfeld(stacked: Stacked, weight: Array, center: Params, apart: Array, meets: Array) -> Params:
    """The mean by w / distance of the clients further than ``meets``, held back by the weight of the nearer clients."""
    away = apart > meets
    pull = jnp.where(away, weight / jnp.where(away, apart, 1), 0)
    target = weighted_mean(stacked, pull, center)
    force = pull.sum() * tree.root(tree.squared_norm(tree.subtract(target, center)))
    held = jnp.where(away, 0, weight).sum()
    leaves = force > held
    stay = jnp.where(leaves, held / jnp.where(leaves, force, 1), jnp.where(held > 0, 1, 0))
    return jax.tree.map(lambda a, b: (1 - stay).astype(a.dtype) * a + stay.astype(a.dtype) * b, target, center)


def _less_far(stacked: Stacked, a: Params, b: Params, from_a: Array, from_b: Array) -> Array:
    """``|x_i - b| - |x_i - a|``, as ``(a - b)(2 x_i - a - b)`` divided by the sum of both distances: for a distant
    client, subtracting them leaves no correct digit."""

    def part(x: Array, a: Array, b: Array) -> Array:
        return ((a - b) * ((x - a) + (x - b))).sum(axis=1)

    total = jnp.zeros_like(from_a)
    parts = [trainable_matrices(each, None) for each in (stacked, tree.broadcast(a, 1), tree.broadcast(b, 1))]
    for x, *others in zip(*parts, strict=True):
        total = blocks.add_blocks_by_row(part, total, x, *others, columns=blocks.width(x.shape[0]))
    return jnp.where(from_a + from_b > 0, total / jnp.where(from_a + from_b > 0, from_a + from_b, 1), 0)
