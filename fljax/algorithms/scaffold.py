"""SCAFFOLD: control variates correct the drift of the clients' steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020, https://arxiv.org/abs/1910.06378.
Each client keeps ``c_i``, an estimate of its own gradient, and the server their mean ``c``; a client steps along
``g_i - c_i + c``, an estimate of the global gradient.

Differences from the paper: ``K_i`` is the number of steps that client i actually makes, so control variates are also
exact for clients of unequal size; a client that makes none is left out. With ``weighting="size"`` both means are
weighted by size, and ``c`` is the weighted mean of all ``c_i``. An absent client keeps its ``c_i``, initially 0. A
displacement is the sum of gradients only for plain SGD: with momentum or another optimiser, use ``control="gradient"``.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.gradient import client_gradients
from fljax.client.objectives import predictor, shifted, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, check_not_private, interpolated, mean, method, train
from fljax.rounds.accounting import client_weight, reported, total_weight
from fljax.rounds.averaging import held_by_all
from fljax.rounds.cohort import steps_of
from fljax.rounds.combine import as_combine, goal_of
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, Params, State, Work


@hyper
class ScaffoldHyper(LocalHyper):
    step: Scalar = number(
        1.0, "eta_g: share of the way that the server moves to the clients' mean; 1: the mean", above=0
    )


class Controlled(NamedTuple):
    """What the server keeps."""

    shared: Params  # theta
    control: Params  # c
    total: Array  # () sum of omega_i over all clients
    memory: Any  # state of `combine`, for theta
    for_c: Any  # state of `combine`, for c


# Clients also send their control variates, which uplink bricks would not change.
@method(ScaffoldHyper, "Karimireddy et al., ICML 2020", "https://arxiv.org/abs/1910.06378", sends=False)
def scaffold(
    model: Model,
    work: Work,
    *,
    control: Literal["displacement", "gradient"] = "displacement",
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """SCAFFOLD: ``w_i <- w_i - eta (g_i(w_i) - c_i + c)``, ``K_i`` times from theta; then both means move.

    ``c_i' = c_i - c + (theta - w_i) / (K_i eta)``; ``theta <- theta + eta_g mean(w_i - theta)``;
    ``c <- c + sum_{i in S} omega_i (c_i' - c_i) / sum_{all i} omega_i``. The reported loss includes ``<c - c_i, w>``.

    Args:
        control: "displacement": the paper's option II, above; "gradient": its option I, ``c_i' = grad F_i(theta)``.
        combine: how the server combines the w_i, and the ``c_i' - c_i``.
    """
    if control == "gradient":
        check_not_private(work, "with control='gradient' clients send whole gradients, which get no noise")
    combining, rule = as_combine(interpolated(combine)), goal_of(combine)
    loss = training_loss(model)

    def init(key: Key, hyper: ScaffoldHyper, data: ClientData) -> State:
        theta, total = model.init(key), total_weight(weighting, data)
        c = jax.tree.map(jnp.zeros_like, tree.trainable(theta))
        server = Controlled(theta, c, total, combining.init(hyper, theta), rule.init(hyper, c))
        return State(server, tree.broadcast(c, data.n_clients))

    def round(key: Key, hyper: ScaffoldHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        (theta, c, total, memory, for_c), c_own = state
        start, shift = tree.everyone(theta, cohort.n_clients), jax.tree.map(lambda c, c_i: c[None] - c_i, c, c_own)
        trained = train(hyper, start, cohort, shifted(loss), work, shift)
        if control == "gradient":
            estimates = client_gradients(cohort.key, start, cohort.data, loss, work.batch_size).params
        else:
            estimates = mean_gradients(hyper, work, theta, trained.params, shift, cohort)
        weight = client_weight(weighting, cohort, trained.ok & (steps_of(cohort, work) > 0))
        c_new = tree.where(weight > 0, estimates, c_own)
        zeros, share = jax.tree.map(jnp.zeros_like, c), weight.sum() / total
        delta, for_c = rule.apply(hyper, for_c, zeros, tree.subtract(c_new, c_own), weight)
        c = jax.tree.map(lambda c, delta: c + share * delta, c, delta)
        theta, memory = combining.apply(hyper, memory, theta, trained.params, weight)
        return State(Controlled(theta, c, total, memory, for_c), c_new), reported(trained, 2 * tree.size(theta))

    return Algorithm(init, round, held_by_all, predictor(model), loss=model.loss)


def mean_gradients(hyper: LocalHyper, work: Work, theta: Params, w: Params, shift: Params, cohort: Cohort) -> Params:
    """(cohort, ...) the mean of ``g_i`` along each client's K_i steps: ``(theta - w_i) / (K_i eta) - shift_i``."""
    if work.optimizer != "sgd" or hyper.momentum is not None:
        raise ValueError(
            "control='displacement' needs plain SGD steps; use optimizer='sgd' without momentum, or control='gradient'"
        )
    length = jnp.maximum(steps_of(cohort, work), 1).astype(jnp.float32) * hyper.lr_of(cohort.round)
    return jax.tree.map(lambda d, s: -d / tree.along(length, d) - s, tree.moves(w, theta), shift)
