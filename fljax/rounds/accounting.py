"""Who counts how much in an average, and what a round sends: the same in every method."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fljax.types import Cohort, Metrics

Weighting = Literal["size", "uniform"]
"""omega_i of a participant in an average: n_i, the number of its examples, or 1."""


def traffic(uplink: Array | float, downlink: Array | float) -> Metrics:
    """Floats sent per participating client and round, each way; scalars such as losses and ids count 1 each."""
    return {"uplink": jnp.asarray(uplink, jnp.float32), "downlink": jnp.asarray(downlink, jnp.float32)}


def client_weight(weighting: Weighting, cohort: Cohort, ok: Array) -> Array:
    """omega_i of the participants ``(cohort,)``: n_i or 1, and 0 for those that dropped out or did not stay finite."""
    counts = (cohort.active & ok).astype("float32")
    return counts * cohort.data.size.astype("float32") if weighting == "size" else counts
