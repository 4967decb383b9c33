"""Prototypes: features that stand for each class, which the server makes of the mean features of clients' classes.

They are ``{"mean": (classes, d), "known": (classes,) float32, 1 for a class that has a prototype, else 0}``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.class_means import ClassSums, feature_sums, nearest_prototype, prototype_loss
from fljax.client.features import head_shape
from fljax.client.objectives import batch_mean
from fljax.data.labels import check_classes
from fljax.models.own_network import own_copies
from fljax.rounds.accounting import Weighting, client_weight, reported
from fljax.rounds.local import train
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work

First = Callable[[Key, Params], Params]
"""``first(key, prototypes) -> server``: the server's first state, the given prototypes and what it needs beside."""

Renew = Callable[[Any, Params, ClassSums, Cohort, Array], Params]
"""``renew(hyper, server, sums, cohort, ok) -> server``: its state with new prototypes, from the participants' sums."""


def with_prototypes(
    model: Model, work: Work, renew: Renew, first: First = lambda key, prototypes: prototypes
) -> Algorithm:
    """Clients train networks of their own towards the server's prototypes, and predict the class of the nearest one.

    They minimise `prototype_loss` with ``hyper.lam``, and send the mean features of their classes by the trained
    network. If no class has a prototype, they predict with their last layer.

    Args:
        model: the network, whose last layer is dense.
        work: local work.
        renew: the server's part of a round.
        first: what the server has before the first round, given that no class has a prototype.
    """

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        d, n_classes = head_shape(model, params)
        return State(first(key, no_prototypes(n_classes, d)), own_copies(model, params, data.n_clients))

    def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        prototypes = prototypes_of(state.server)
        prototype_rows = tree.everyone(prototypes, cohort.n_clients)
        trained = train(hyper, state.clients, cohort, prototype_loss(model, hyper.lam), work, prototype_rows)
        n_classes, d = prototypes["mean"].shape
        sums = feature_sums(model, trained.params, cohort.data, n_classes)
        server = renew(hyper, state.server, sums, cohort, trained.ok)
        # A client sends its classes' means, each with its count or its class; it receives all existing prototypes.
        up, down = (sums.count > 0).sum(1).astype(jnp.float32) * (d + 1.0), prototypes["known"].sum() * d
        return State(server, trained.params), reported(trained, up, down)

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients | {"prototypes": tree.broadcast(prototypes_of(state.server), 1)})

    return Algorithm(init, round, deploy, nearest_prototype(model), loss=model.loss)


def prototypes_of(server: Params) -> Params:
    """The prototypes alone, of a server's state that has more."""
    return {name: server[name] for name in ("mean", "known")}


def no_prototypes(n_classes: int, d: int) -> Params:
    """The prototypes before the first round."""
    return {"mean": jnp.zeros((n_classes, d), jnp.float32), "known": jnp.zeros(n_classes, jnp.float32)}


def average_prototypes(previous: Params, sums: ClassSums, weighting: Weighting, cohort: Cohort, ok: Array) -> Params:
    """The prototypes after a round; a class that no participant has keeps its own.

    Args:
        previous: the prototypes so far.
        sums: of the participants' features.
        weighting: of the clients that have a class, "size" (by their examples of it) or "uniform".
        cohort: the participants.
        ok: (cohort,) bool: clients whose training did not diverge.
    """
    count = sums.count if weighting == "size" else (sums.count > 0).astype(jnp.float32)
    mass = client_weight("uniform", cohort, ok)[:, None] * count
    mean = jax.vmap(weighted_mean, in_axes=(1, 1, 0))(sums.mean, mass, previous["mean"])
    return {"mean": mean, "known": jnp.maximum(previous["known"], (mass.sum(0) > 0).astype(jnp.float32))}


def pass_over_means(
    loss: Callable[[Any, Array, Array], Array],
    lr: Array | float,
    params: Any,
    means: Array,
    is_sent: Array,
    place: Array,
    batch_size: int,
) -> Any:
    """``params`` after an SGD step on each batch of the class means that clients sent, in the order of ``place``.

    Args:
        loss: ``loss(params, features (batch, d), y (batch,)) -> (batch,)``, whose mean over the batch is minimised.
        lr: learning rate.
        params: what is trained; the steps are in float32 or wider.
        means: (clients, classes, d) mean features; those that were not sent have no effect, even if they are NaN.
        is_sent: (clients, classes) bool.
        place: (clients, classes) numbers to sort by.
        batch_size: means of a step; the last batch may have fewer.
    """
    n_clients, n_classes = is_sent.shape
    order = jnp.argsort(jnp.where(is_sent, place, jnp.inf).reshape(-1))
    order = jnp.pad(order, (0, -order.shape[0] % batch_size))
    features = jnp.where(is_sent[..., None], means, 0).reshape(n_clients * n_classes, -1)  # of no diverged client
    y = jnp.tile(jnp.arange(n_classes, dtype=jnp.int32), n_clients)
    n_sent = is_sent.sum(dtype=jnp.int32)

    def step(i: Array, params: Any) -> Any:
        at = i * batch_size + jnp.arange(batch_size)
        rows, weight = order[at], (at < n_sent).astype(jnp.float32)
        gradient = jax.grad(lambda params: batch_mean(loss(params, features[rows], y[rows]), weight))(params)
        return jax.tree.map(lambda w, g: w - lr * g, params, gradient)

    n_steps = (n_sent + batch_size - 1) // batch_size
    return tree.as_before(lax.fori_loop(0, n_steps, step, jax.tree.map(tree.at_least_float32, params)), params)
