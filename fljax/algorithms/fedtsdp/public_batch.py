"""The public images that a round uses: a batch that passed the test is drawn more often afterwards (FedTSDP)."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.rounds.inference import public_examples
from fljax.types import Examples, Key

Growth = Literal["raw", "literal", "uniform"]
"""How sampling weights grow; see `increased_weights`."""


def public_images(public: Examples | None, n_public: int, batch: int) -> Examples:
    """The first ``n_public`` of the server's public images.

    Raises:
        ValueError: the federation has no public images, or fewer than a batch.
    """
    images = public_examples(public, n_public, "fedtsdp")
    if images.y.shape[0] < batch:
        raise ValueError(f"public has {images.y.shape[0]} images; choose public_batch at most that, not {batch}")
    return images


def draw_batch(key: Key, q: Array, n_images: int, batch: int) -> Array:
    """(batch,) distinct rows below ``n_images``, drawn one after another with probabilities ``q / sum(q)``."""
    # The largest values of log q + Gumbel noise are such a sample (Yellott 1977).
    ticket = jnp.log(q) + jax.random.gumbel(key, q.shape, jnp.float32)
    return lax.top_k(ticket[:n_images], batch)[1]


def increased_weights(q: Array, rows: Array, n_images: int, sampling: Growth) -> Array:
    """Sampling weights after the batch ``rows`` has passed the test: ``q_b <- q_b + N / B``.

    "raw" starts from 1 for each of the N images, so that the first batch of B that passes gets half the mass; "literal"
    normalises before it adds, so that this batch gets practically all the mass; "uniform" changes nothing.
    """
    if sampling == "uniform":
        return q
    if sampling == "literal":
        q = q / q[:n_images].sum()
    return q.at[rows].add(n_images / rows.shape[0])
