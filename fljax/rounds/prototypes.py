"""Prototypes: the mean features of each class over all clients, which the server averages class by class.

They are ``{"mean": (classes, d), "known": (classes,) float32, 1 for a class that a client has sent, else 0}``.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.class_means import ClassSums
from fljax.rounds.accounting import Weighting, client_weight
from fljax.server.aggregate import weighted_mean
from fljax.types import Cohort, Params


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
