"""FedPHP: each client keeps a running mean of its personalised models, which also teaches the received model.

Li, Zhan, Shao, Li, Song: FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021,
https://doi.org/10.1007/978-3-030-86486-6_36. Official code: https://github.com/lxcnju/FedRepo.
FedAvg whose local loss also holds the features of a client's examples near those of its inherited private model; this
model then moves to the trained one, the less the more often the client has participated.

Differences from the paper: the kernels' widths, the temperature, and how the inherited model's weight rises are those
of the official code, which also clips gradients; none are clipped here. PFLlib lets the weight rise with the rounds,
not with a client's participations; it tests the trained models instead of the inherited ones; and its kernels have
fixed widths (``transfer="mmd_fixed"``). A new client's inherited model starts as the server's model.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.discrepancy import discrepancy
from fljax.client.features import see
from fljax.client.objectives import Loss, batch_mean
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import GLOBAL_AND_OWN, Combining, Weighting, averaging, mean, method, train
from fljax.rounds.averaging import join_from_shared
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work

TEACHER_TEMPERATURE = 4.0
"""By which the official code divides the logits of the inherited model, but not those of the other."""


@hyper
class FedPHPHyper(LocalHyper):
    lam: Scalar = number(
        0.1,
        "lambda: weight of the transfer, the labels have the rest; 0 is FedAvg; the code has 0.05, 0.1",
        least=0,
        most=1,
    )
    mu: Scalar = number(
        0.9, "largest weight of the inherited model in its running mean; the code has 0.9", least=0, most=1
    )
    rise: Scalar = number(
        20.0, "participations over which that weight rises from 0; the code has all of a run", above=0
    )


@method(FedPHPHyper, "Li et al., ECML PKDD 2021", "https://doi.org/10.1007/978-3-030-86486-6_36", kind="personalised")
def fedphp(
    model: Model,
    work: Work,
    *,
    transfer: Literal["mmd", "mmd_fixed", "kd"] = "mmd",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedPHP: ``w_i = argmin (1 - lambda) F_i(w) + lambda R(w, p_i)`` from theta; ``p_i <- mu_i p_i + (1 - mu_i) w_i``.

    ``mu_i = mu min(z_i / rise, 1)``, where z_i is how often client i has participated before. The ``w_i`` are averaged;
    a client is tested with ``p_i``.

    Args:
        model: the network.
        transfer: R on a batch: "mmd", the maximum mean discrepancy of the features of w and p_i, by five Gaussian
            kernels whose widths follow the mean squared distance of features; "mmd_fixed", by PFLlib's four widths;
            "kd", the cross-entropy to the outputs of p_i at temperature 4.
    """

    def begin(key: Key) -> dict[str, Any]:
        theta = model.init(key)
        return {"global": theta, "own": inherited(theta)}

    def local(hyper: FedPHPHyper, start: ModelTable, cohort: Cohort) -> Trained:
        if transfer == "kd":
            check_classes(cohort.data.pool.y)
        theta, own = start.part("global"), start.params["own"]
        trained = train(hyper, theta, cohort, taught(model, hyper, transfer), work, own["model"])
        mu = hyper.mu * jnp.minimum(own["participations"] / hyper.rise, 1.0)
        inherited_model = tree.mixture(mu, own["model"], trained.params)
        new_own = {"model": inherited_model, "participations": own["participations"] + 1}
        # A diverged client keeps its old values.
        return trained._replace(params={"global": trained.params, "own": tree.where(trained.ok, new_own, own)})

    rounds = averaging(
        model,
        local,
        sharing=GLOBAL_AND_OWN,
        combine=combine,
        weighting=weighting,
        begin=begin,
        deployed=lambda held: held["own"]["model"],
    )
    return rounds._replace(join=join_from_shared(rounds, lambda hyper, theta: inherited(theta)))


def inherited(theta: Params) -> dict[str, Any]:
    """What a client keeps before it first participates: its inherited model, which is theta, and z_i."""
    return {"model": theta, "participations": jnp.float32(0)}


def taught(model: Model, hyper: FedPHPHyper, transfer: str) -> Loss:
    """``(1 - lambda)`` times the training loss plus lambda times the transfer from a model, the client's own row."""

    def loss(params: Params, batch: Batch, key: Key, teacher: Params) -> tuple[Array, Params]:
        seen, taught_by = see(model, params, batch.x, key), see(model, teacher, batch.x, None)
        if transfer == "kd":
            target = jax.nn.softmax(tree.at_least_float32(taught_by.logits) / TEACHER_TEMPERATURE)
            distance = batch_mean(optax.softmax_cross_entropy(seen.logits, target), batch.weight)
        else:
            distance = discrepancy(seen.features, taught_by.features, batch.weight, transfer == "mmd")
        value = batch_mean(model.loss(seen.logits, batch.y), batch.weight)
        return (1 - hyper.lam) * value + hyper.lam * distance, seen.params

    return loss
