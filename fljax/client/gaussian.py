"""Gaussian representations: divergence, samples, and products over a client's examples of each class."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.measure import client_sums
from fljax.models.task import task_of
from fljax.tree import STATISTICS
from fljax.types import Batch, ClientData, Halves, Key, Model, ModelTable, Params, Stacked

LEAST_SIGMA = 1e-6
"""Lower limit of a standard deviation in divisions and logarithms."""


class Gaussian(NamedTuple):
    """A Gaussian of independent coordinates."""

    mu: Array  # (..., latent)
    sigma: Array  # (..., latent), >= 0


def halves_of(model: Model, method: str) -> Halves:
    """The body and head of a probabilistic network.

    Raises:
        ValueError: the model is not probabilistic, not a classifier, or keeps running statistics; names ``method``.
    """
    if model.halves is None:
        raise ValueError(f"{method} needs a model with a Gaussian representation; choose variational_cnn")
    if (task := task_of(model.loss)) != "classification":
        raise ValueError(
            f"{method} has a Gaussian for each class, but the model's loss is of {task}; give one of classes"
        )
    if STATISTICS in jax.eval_shape(model.init, jax.random.key(0)):
        raise ValueError(f"{method}: a network in halves keeps no running statistics; use group normalisation instead")
    return model.halves


def divergence(p: Gaussian, q: Gaussian) -> Array:
    """``KL(p | q) = sum_d log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2``, (...): >= 0, and 0 if equal."""
    sigma_p, sigma_q = jnp.maximum(p.sigma, LEAST_SIGMA), jnp.maximum(q.sigma, LEAST_SIGMA)
    spread = (jnp.square(sigma_p) + jnp.square(p.mu - q.mu)) / (2 * jnp.square(sigma_q))
    return (jnp.log(sigma_q / sigma_p) + spread - 0.5).sum(axis=-1)


def draws(key: Key, z: Gaussian, n_draws: int) -> Array:
    """Samples ``mu + sigma * eps`` with independent standard normal eps: (draws, ..., latent)."""
    eps = jax.random.normal(key, (n_draws, *z.mu.shape), jnp.float32)
    return z.mu[None] + z.sigma[None] * eps


class Evidence(NamedTuple):
    """A product of Gaussian experts per class; precision 0 means that there are none."""

    precision: Array  # (clients, classes, latent) sum of the experts' 1 / sigma^2
    weighted: Array  # (clients, classes, latent) sum of mu / sigma^2: the product's mean times its precision


def class_evidence(model: Model, models: Stacked | ModelTable, data: ClientData, n_classes: int) -> Evidence:
    """Products of the Gaussians ``N(mu(x), sigma(x)^2)`` over each client's examples x of each class.

    Args:
        model: a probabilistic network.
        models: (clients, ...) models, or `ModelTable`.
        data: the clients' examples.
        n_classes: number of classes.
    """
    halves = halves_of(model, "class_evidence")

    def score(params: Params, batch: Batch) -> Array:
        mu, sigma = halves.encode(tree.select(params, model.layers), batch.x)
        precision = 1 / jnp.square(jnp.maximum(sigma, LEAST_SIGMA))
        experts = jnp.stack([precision, mu * precision], axis=1)
        of_class = jax.nn.one_hot(batch.y, n_classes, dtype=jnp.float32)
        return jnp.einsum("bc,bkd->bkcd", of_class, experts).reshape(batch.y.shape[0], -1)

    sums = client_sums(score, models, data).reshape(-1, 2, n_classes, halves.latent)
    return Evidence(sums[:, 0], sums[:, 1])
