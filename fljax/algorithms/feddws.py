"""FedDWS: FedDist with clients weighted by size.

As in the code of Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization, World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026 (a baseline there).
Clients train the server's model; the server moves part of the way to their mean, weighted by size.

Differences from the code: its branch has a further factor 1/m and an undefined variable, so it never ran; here the step
is FedDist's, and ``literal=True`` has the step 1/m of m participants.
"""

import jax.numpy as jnp
from jax import Array

from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, averaging, interpolated, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class FedDWSHyper(LocalHyper):
    step: Scalar = number(
        0.6, "share of the way to the clients' mean; 1 is FedAvg; unused with `literal`", above=0, most=1
    )


@method(FedDWSHyper, "baseline of Long et al., World Wide Web Journal 2023")
def feddws(model: Model, work: Work, *, literal: bool = False, combine: Combining = mean) -> Algorithm:
    """FedDWS: ``theta <- theta + step (sum_i n_i w_i / sum_i n_i - theta)``.

    Args:
        literal: whether the step is 1/m, with m participants of positive weight, as in the code's comment.
        combine: computes the model that the server moves towards.
    """
    return averaging(model, work, combine=interpolated(combine, one_of_m) if literal else interpolated(combine))


def one_of_m(hyper: FedDWSHyper, weight: Array) -> Array:
    """1/m for m participants of positive weight."""
    return 1 / jnp.maximum((weight > 0).sum().astype(jnp.float32), 1.0)
