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
from fljax.server.entry import WEIGHT, checked, compiled
from fljax.server.gram import trainable_matrices
from fljax.server.robust import is_within_reach
from fljax.types import AnyArray, Params, Stacked


@checked(weight=WEIGHT)
@compiled
def geometric_median(
    stacked: Stacked,
    weight: AnyArray | None = None,
    where: AnyArray | None = None,
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
    n, original = n_rows("stacked", stacked), stacked
    stacked = jax.tree.map(tree.at_least_float32, stacked)
    where = everyone(n, where, "stacked")
    where &= is_within_reach(stacked)
    if weight is not None:
        check_vector("weight", weight, n, "stacked")
    weight = jnp.where(where, jnp.ones(n, jnp.float32) if weight is None else weight.astype(jnp.float32), 0)

    def distance(center: Params) -> Array:
        square = cross_squared_l2(stacked, tree.broadcast(center, 1))[:, 0]
        return tree.root(jnp.where(weight > 0, square, 0))

    def middle(distances: Array) -> Array:
        order = jnp.where(weight > 0, distances, jnp.inf).argsort()
        return distances[order[(jnp.cumsum(weight[order]) >= weight.sum() / 2).argmax()]]

    def cond(carry: tuple[Params, Array, Array, Array]) -> Array:
        _, _, step, goes_on = carry
        return (step < jnp.asarray(n_steps, jnp.int32)) & goes_on

    def body(carry: tuple[Params, Array, Array, Array]) -> tuple[Params, Array, Array, Array]:
        old_center, distances, step, _ = carry
        center = _weiszfeld(stacked, weight, old_center, distances, 1e-6 * middle(distances))
        new_distances = distance(center)
        old_objective, new_objective = (weight * distances).sum(), (weight * new_distances).sum()
        median = middle(new_distances)
        is_lower = old_objective - new_objective > tolerance * jnp.maximum(old_objective, 1e-30)
        # The other clients' share of such an objective is below its rounding error, so the step's length decides.
        is_of_few = new_objective > 100 * weight.sum() * median
        moved, norm = (tree.root(tree.squared_norm(x)) for x in (tree.subtract(center, old_center), center))
        return (
            center,
            new_distances,
            step + 1,
            is_lower | (is_of_few & (moved > jnp.maximum(1e-3 * median, 1e-6 * norm))),
        )

    start = weighted_mean(stacked, weight, empty)
    center, distances, *_ = lax.while_loop(cond, body, (start, distance(start), jnp.int32(0), jnp.bool_(True)))
    nearest = tree.take(stacked, jnp.where(weight > 0, distances, jnp.inf).argmin())
    is_cheaper = (weight * _distance_difference(stacked, nearest, center, distance(nearest), distances)).sum() > 0

    def chosen(leaf: Array, a: Array, b: Array) -> Array:
        return tree.rounded(jnp.where(is_cheaper, a, b), leaf.dtype)

    return jax.tree.map(chosen, original, nearest, center)


def _weiszfeld(stacked: Stacked, weight: Array, center: Params, distances: Array, radius: Array) -> Params:
    """The mean by w / distance of the clients further than ``radius``, held back by the nearer clients' weight."""
    is_away = distances > radius
    pull = jnp.where(is_away, weight / jnp.where(is_away, distances, 1), 0)
    target = weighted_mean(stacked, pull, center)
    force = pull.sum() * tree.root(tree.squared_norm(tree.subtract(target, center)))
    near_weight = jnp.where(is_away, 0, weight).sum()
    is_left = force > near_weight
    share = jnp.where(is_left, near_weight / jnp.where(is_left, force, 1), jnp.where(near_weight > 0, 1, 0))
    return jax.tree.map(lambda a, b: (1 - share).astype(a.dtype) * a + share.astype(a.dtype) * b, target, center)


def _distance_difference(stacked: Stacked, a: Params, b: Params, to_a: Array, to_b: Array) -> Array:
    """``|x_i - b| - |x_i - a|``, as ``(a - b)(2 x_i - a - b)`` divided by the sum of both distances: for a distant
    client, subtracting them leaves no correct digit."""

    def part(x: Array, a: Array, b: Array) -> Array:
        return ((a - b) * ((x - a) + (x - b))).sum(axis=1)

    total = jnp.zeros_like(to_a)
    matrices = [trainable_matrices(models, None) for models in (stacked, tree.broadcast(a, 1), tree.broadcast(b, 1))]
    for x, *points in zip(*matrices, strict=True):
        total = blocks.add_blocks_by_row(part, total, x, *points, columns=blocks.width(x.shape[0]))
    return jnp.where(to_a + to_b > 0, total / jnp.where(to_a + to_b > 0, to_a + to_b, 1), 0)
