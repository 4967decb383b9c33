"""Means per class of a client model's outputs: prototypes of features, or of logits."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.features import see
from fljax.client.measure import client_sums
from fljax.client.objectives import Loss, batch_mean
from fljax.types import Batch, ClientData, Key, Model, ModelTable, Params, Stacked

Outputs = Callable[[Params, Array], Array]
"""``outputs(params, x) -> (batch, d)``: the outputs that are averaged."""


class ClassSums(NamedTuple):
    """Sums over each client's examples of each class."""

    total: Array  # (clients, classes, d)
    count: Array  # (clients, classes) number of examples

    @property
    def mean(self) -> Array:
        """(clients, classes, d) means; 0 for classes without examples."""
        return self.total / jnp.maximum(self.count, 1.0)[..., None]


def class_sums(outputs: Outputs, models: Stacked | ModelTable, data: ClientData, n_classes: int) -> ClassSums:
    """Sums of ``outputs`` per class, with each client's model in evaluation mode."""

    def score(params: Params, batch: Batch) -> Array:
        value = outputs(params, batch.x)
        with_count = jnp.concatenate([value, jnp.ones_like(value[:, :1])], axis=1)
        return (jax.nn.one_hot(batch.y, n_classes, dtype=jnp.float32)[:, :, None] * with_count[:, None]).reshape(
            value.shape[0], -1
        )

    sums = client_sums(score, models, data).reshape(data.n_clients, n_classes, -1)
    return ClassSums(sums[..., :-1], sums[..., -1])


def feature_sums(model: Model, models: Stacked | ModelTable, data: ClientData, n_classes: int) -> ClassSums:
    """Sums of features, the inputs of the last layer, per class; their means are a client's prototypes."""
    return class_sums(lambda params, x: see(model, params, x, None).features, models, data, n_classes)


def prototype_loss(model: Model, lam: Array | float) -> Loss:
    """The training loss plus ``lam`` times the mean squared difference of features and their class's prototype.

    The client's own row is ``{"mean": (classes, d), "known": (classes,) 0 or 1}``; examples of a class without
    prototype have no such term.
    """

    def loss(params: Params, batch: Batch, key: Key, prototypes: Params) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key)
        distance = jnp.square(seen.features - prototypes["mean"][batch.y]).mean(1) * prototypes["known"][batch.y]
        value = model.loss(seen.logits, batch.y) + lam * distance
        return batch_mean(value, batch.weight), seen.params

    return loss


def nearest_prototype(model: Model) -> Outputs:
    """Minus the squared distance of features to each class's prototype, which are ``params["prototypes"]``, as in
    `prototype_loss`. Classes without prototype are predicted last; if none has one, outputs are the network's."""

    def predict(params: Params, x: Array) -> Array:
        seen = see(model, params, x, None)
        mean, known = params["prototypes"]["mean"], params["prototypes"]["known"] > 0
        score = -jnp.square(seen.features[:, None] - mean[None]).sum(-1)
        return jnp.where(known.any(), others_last(score, known), seen.logits)

    return predict


def others_last(score: Array, known: Array) -> Array:
    """``score`` (batch, classes), in which classes that are not ``known`` (classes,) are predicted after all others."""
    least = jnp.where(known[None], score, jnp.inf).min(1, keepdims=True)
    return jnp.where(known[None], score, least - 10)
