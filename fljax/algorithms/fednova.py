"""FedNova: clients' updates are divided by their number of steps before they are averaged.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020, https://arxiv.org/abs/2007.07481. Official code: https://github.com/JYWa/FedNova.
A client that makes more steps would bias the mean towards its own optimum. FedNova averages the clients' mean steps
instead, and multiplies the result by the mean number of steps.

Differences from the paper: ``combine`` receives ``theta + tau (w_i - theta) / a_i``, whose mean is the paper's update.
The paper's local proximal term is the brick ``prox``, for which ``a_i`` is that of plain SGD.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import training_loss
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, client_weight, mean, method, not_independent, train
from fljax.rounds.cohort import steps_of
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@method(LocalHyper, "Wang et al., NeurIPS 2020", "https://arxiv.org/abs/2007.07481")
def fednova(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedNova: ``d_i = (theta - w_i) / a_i``; ``theta <- theta - tau sum_i p_i d_i``, ``tau = sum_i p_i a_i``.

    ``a_i`` is the sum of the weights that client i's gradients have in ``w_i``: its number of steps K for plain SGD,
    ``(K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)`` with momentum rho.

    Args:
        work: local work; plain SGD or momentum.
        weighting: "size" (p_i ~ n_i) or "uniform".
        combine: how the server combines the normalised w_i.
    """
    if work.optimizer != "sgd":
        raise ValueError(f"optimizer={work.optimizer!r}: FedNova normalises SGD steps only; use 'sgd'")

    def local(hyper: LocalHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        trained = train(hyper, theta, cohort, training_loss(model), work)
        a = step_mass(steps_of(cohort, work), hyper)
        p = client_weight(weighting, cohort, trained.ok)
        scale = jnp.vdot(p, a) / jnp.maximum(p.sum(), 1e-12) / jnp.maximum(a, 1.0)
        params = tree.map_trainable(lambda w, t: t + tree.along(scale, w) * (w - t), trained.params, theta.params)
        return trained._replace(params=params)

    return not_independent(averaging(model, local, weighting=weighting, combine=combine))


def step_mass(n: Array, hyper: LocalHyper) -> Array:
    """(clients,) a_i, the 1-norm of the weights that n (clients,) gradients have in the update of SGD."""
    n = n.astype(jnp.float32)
    if hyper.momentum is None:
        return n
    rho = jnp.asarray(hyper.momentum, jnp.float32)
    return (n - rho * (1 - rho**n) / (1 - rho)) / (1 - rho)
