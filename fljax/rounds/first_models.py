"""Initial models of methods whose clients choose among K: random draws, or models that clients have trained alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.measure import client_loss, cross_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds.accounting import in_first_round
from fljax.rounds.local import train_beforehand
from fljax.rounds.uplink.private import check_not_private
from fljax.server.assign import lowest_loss
from fljax.types import ClientData, Cohort, Key, Metrics, Model, Stacked, Work

MAX_REDRAWS = 200

FirstModels = Callable[[Key, Any, ClientData], Stacked]
"""``first_models(key, hyper, data) -> (K, ...)``, before the first round."""


@hyper
class DrawHyper(LocalHyper):
    """Hyperparameters of a method that starts with a `balanced_draw`, unless its ``alone_epochs`` say otherwise."""

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


def first_models(model: Model, work: Work, n_clusters: int, alone_epochs: int | None) -> FirstModels:
    """A `balanced_draw` with ``hyper.min_share``; or the `farthest_models`, trained alone for ``alone_epochs``.

    Raises:
        ValueError: with ``alone_epochs``, if the clients' training is private.
    """
    if alone_epochs is None:
        return lambda key, hyper, data: balanced_draw(key, model, n_clusters, hyper.min_share, data)
    check_not_private(
        work, "with alone_epochs clients also train before the first round, and epsilon counts rounds only"
    )
    alone = work.for_epochs(alone_epochs)
    return lambda key, hyper, data: farthest_models(key, hyper, model, alone, n_clusters, data)


def farthest_models(key: Key, hyper: Any, model: Model, work: Work, n_clusters: int, data: ClientData) -> Stacked:
    """K of the models that the clients train alone from one initial model, farthest from each other by loss.

    The first is that of a random client. Each further one is that of the client whose least loss under the models so
    far is the largest, among clients not chosen yet: the greedy k-center in place of k-means++, as in FedJAX's
    `ModelKMeansInitializer`, where a client can be chosen twice. Clients without examples, or whose training failed,
    are not chosen as long as there are others.

    Args:
        key: random key.
        hyper: of the clients' training, at the learning rate of the first round.
        model: the network.
        work: of the clients' training.
        n_clusters: K.
        data: the clients' training rows.

    Returns:
        (K, ...) models.
    """
    theta, n_clients = model.init(key), data.n_clients
    trained = train_beforehand(jax.random.fold_in(key, 1), hyper, theta, data, model, work)
    counts = trained.ok & (data.size > 0)
    ticket = jax.random.uniform(jax.random.fold_in(key, 2), (n_clients,), jnp.float32)
    first = jnp.argmax(jnp.where(counts, ticket, -1.0))

    def add(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], Array]:
        least, is_free, last = carry
        loss = client_loss(model, tree.everyone(tree.take(trained.params, last), n_clients), data)
        least = jnp.minimum(least, jnp.where(jnp.isnan(loss), jnp.inf, loss))
        is_free &= jnp.arange(n_clients) != last
        chosen = jnp.argmax(jnp.where(is_free, least, -jnp.inf))
        return (least, is_free, chosen), chosen

    begun = jnp.full(n_clients, jnp.inf, jnp.float32), counts, first
    _, further = lax.scan(add, begun, length=n_clusters - 1)
    return tree.take(trained.params, jnp.append(first, further))


def with_first_models(metrics: Metrics, cohort: Cohort, n_parameters: int, n_clusters: int, alone: bool) -> Metrics:
    """A participant's traffic with that of the `farthest_models`, if ``alone``: counted once, in the first round.

    A model up; the initial model and all but the last of the K down, and its loss under each of these up.
    """
    if not alone:
        return metrics
    up, down = n_parameters + n_clusters - 1, n_parameters * n_clusters
    more = {"uplink": in_first_round(cohort, up), "downlink": in_first_round(cohort, down)}
    return {name: value + more[name] for name, value in metrics.items()}
