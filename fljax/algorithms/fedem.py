"""FedEM: each client's data is a mixture of shared learners, fitted by expectation maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
https://arxiv.org/abs/2108.10252. Official code: https://github.com/omarfoq/FedEM.
A client says how well each learner explains each of its examples, trains all learners with these weights, and predicts
by the mixture of their probabilities; the server averages each learner.

Differences from the paper: none by default; an example's responsibilities are those of the start of the round, as in
the code. ``normalise="mass"`` divides a weighted batch by its mass of weights, another reading of the M step; learners
then hardly come apart, because a client moves those that it does not use as far as its own.
"""

from functools import cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.algorithms.fedsoft import memberships
from fljax.client import local_optimizer, train_clients, training_loss
from fljax.client.example_loss import batch_losses, example_loss
from fljax.client.objectives import Loss
from fljax.data.federation import present
from fljax.server.aggregate import weighted_mean
from fljax.server.assign import mixture_weights, responsibilities
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Work,
)


class FedEMHyper(FedAvgHyper):
    """Numbers of FedEM: those of FedAvg."""


class Mixture(NamedTuple):
    """The model that a client is tested with."""

    learners: Stacked  # (learners, ...)
    pi: Array  # (learners,) on the simplex


@cache
def fedem(
    model: Model,
    work: Work,
    n_learners: int = 3,
    *,
    normalise: Literal["examples", "mass"] = "examples",
    weighting: str = "size",
) -> Algorithm:
    """FedEM: ``q_m(x) ~ pi_im exp(-loss_m(x))``; ``pi_im = mean_x q_m(x)``; learner m trains with weights ``q_m``.

    The reported loss is the sum of the learners' weighted mean losses.

    Args:
        model: the network of every learner.
        work: local effort.
        n_learners: M, at least 1; 1 is FedAvg. The paper has 3.
        normalise: a learner's batch loss divides by the number of "examples", so that a client moves a learner as far
            as it uses it, or by the "mass" of their weights, so that all clients move all learners alike.
        weighting: of the average of a learner, "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    if normalise not in ("examples", "mass"):
        raise ValueError(f"normalise={normalise!r} is unknown; choose 'examples' or 'mass'")
    if n_learners < 1:
        raise ValueError(f"n_learners={n_learners} is not positive; choose n_learners >= 1")

    def init(key: Key, hyper: FedEMHyper, data: ClientData) -> State:
        learners = jax.vmap(model.init)(jax.random.split(key, n_learners))
        return State(server=learners, clients=jnp.full((data.size.shape[0], n_learners), 1 / n_learners))

    def round(key: Key, hyper: FedEMHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        learners, pi = state
        # E step: q_m(x) ~ pi_im exp(-loss_m(x)).
        q = responsibilities(example_loss(model, learners, cohort.data), pi)
        # M step: pi_im = mean_x q_m(x), and every learner by local training with weights q_m.
        start = tree.everyone(learners, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(
            cohort.key, start, cohort.data, shared_out(model, normalise), optimizer, work, start, pi
        )
        pi = tree.where(trained.ok, mixture_weights(q, present(cohort.data), empty=pi), pi)
        learners = weighted_mean(trained.params, client_weight(weighting, cohort, trained.ok), empty=learners)
        n_parameters = n_learners * tree.size(tree.take(learners, jnp.int32(0)))
        metrics = {"loss": trained.loss, "ok": trained.ok, **memberships(pi)}
        return State(learners, pi), metrics | traffic(n_parameters, n_parameters)

    def deploy(key: Key, hyper: FedEMHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(Mixture(tree.broadcast(state.server, data.size.shape[0]), state.clients))

    def predict(params: Mixture, x: Array) -> Array:
        """Logarithm of ``sum_m pi_m softmax(logits_m)``."""
        logits = lax.map(lambda learner: model.apply(learner, x, None)[0], params.learners)
        return jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0, b=params.pi[:, None, None])

    return Algorithm(init, round, deploy, predict)


def shared_out(model: Model, normalise: str) -> Loss:
    """Sum over learners of the batch's loss weighted by ``q_m``, where ``q`` follows from the client's own two rows.

    They are the learners at the start of the round and the client's ``pi``. A learner's gradient is that of its own
    term, so one pass trains them all.
    """
    loss = training_loss(model)

    def mixture(params: Stacked, batch: Batch, key: Key, begun: Stacked, pi: Array, *own: Any) -> tuple[Array, Params]:
        q = responsibilities(batch_losses(model, begun, batch.x, batch.y), pi)

        def one(learner: tuple[Params, Array]) -> tuple[Array, Params]:
            weight = batch.weight * learner[1]
            value, updated = loss(learner[0], batch._replace(weight=weight), key)
            share = weight.sum() / jnp.maximum(batch.weight.sum(), 1.0)
            return (value if normalise == "mass" else share * value), updated

        values, updated = lax.map(one, (params, q.T))
        return values.sum(), updated

    return mixture
