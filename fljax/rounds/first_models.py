"""Initial models of methods whose clients choose among K: redrawn until enough clients choose each."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.measure import cross_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.server.assign import lowest_loss
from fljax.types import ClientData, Key, Model, Stacked

MAX_REDRAWS = 200


@hyper
class DrawHyper(LocalHyper):
    """Hyperparameters of a method that starts with a `balanced_draw`."""

    min_share: Scalar = number(
        0.1,
        "least share of the clients that must choose each initial model, at most 1/K (larger values mean 1/(2K)); 0 "
        "takes the first draw; the official code of IFCA has 0.35 for K = 2 and 0.1 for K = 4",
        least=0,
        most=1,
    )


@checked_kinds
def balanced_draw(key: Key, model: Model, n_clusters: int, min_share: Array | float, data: ClientData) -> Stacked:
    """K random models, redrawn until each has the least loss on a share ``min_share`` of the clients.

    A draw costs one pass of each model over all training data. Fewer examples would not do: the losses of untrained
    models differ so little that clients of one group would then choose different models.

    Args:
        key: random key.
        model: the network.
        n_clusters: K.
        min_share: share of the clients in [0, 1/K]; 0 takes the first draw. After `MAX_REDRAWS` draws the most even
            draw is used. More than 1/K, which no draw could reach, means half of an equal share, 1/(2K).
        data: the clients' training rows.

    Returns:
        (K, ...) models.

    Raises:
        ValueError: the network's initial parameters do not depend on the key, as with a pretrained network: all K
            models would be equal, and every client would keep the first.

    Source: Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, code.
    """
    if n_clusters > 1 and _is_constant(model):
        raise ValueError(
            f"the network's initial parameters do not depend on the key, so all {n_clusters} initial models would be "
            "equal, and every client would keep the first; let its init add a little noise from its key, or choose a "
            "method that starts from one model"
        )
    least = jnp.where(min_share * n_clusters > 1, 0.5 / n_clusters, min_share)

    def draw(key: Key) -> Stacked:
        return jax.vmap(model.init)(jax.random.split(key, n_clusters))

    def least_share(centers: Stacked) -> Array:
        n_won = jnp.bincount(lowest_loss(cross_loss(model, centers, data)), length=n_clusters)
        return n_won.min().astype(jnp.float32) / data.n_clients

    def too_uneven(carry: tuple) -> Array:
        n_drawn, _, share = carry
        return (n_drawn == 0) | ((share < least) & (n_drawn < MAX_REDRAWS))

    def redraw(carry: tuple) -> tuple:
        n_drawn, centers, share = carry
        new_centers = draw(jax.random.fold_in(key, n_drawn))
        new_share = least_share(new_centers)
        best = tree.where(new_share > share, new_centers, centers)
        return n_drawn + 1, best, jnp.maximum(new_share, share)

    placeholder = jax.tree.map(jnp.zeros_like, jax.eval_shape(draw, key))
    # The loop also makes the first draw; otherwise the draw would be compiled twice.
    return lax.while_loop(too_uneven, redraw, (jnp.int32(0), placeholder, jnp.float32(-1)))[1]


def _is_constant(model: Model) -> bool:
    """Whether ``model.init`` returns parameters without using the key."""
    is_constant: list[bool] = []

    def look(key: Key) -> Key:
        is_constant.append(not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(model.init(key))))
        return key

    jax.eval_shape(look, jax.random.key(0))
    return is_constant[0]
