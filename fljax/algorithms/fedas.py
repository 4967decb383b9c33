"""FedAS: a client first aligns the received body with its own, and is weighted by its Fisher information.

Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024, pages 11986-11995.
Official code: https://github.com/xiyuanyang45/FedAS.
Heads stay with the clients. Before a client trains, it moves the received body so that its features approach the mean
features of each class under the client's last model. The server weights bodies by the trace of their Fisher
information.

Differences from the paper: as in the code, the trace is the sum of the squared gradients over one pass of the client's
batches, and clients are tested with the model that they trained last. The alignment uses the batch size of local
training and plain SGD steps; the code uses batches of 16, and aligns the server's model itself, so that each
participant's alignment begins where that of the one before it ended.
"""

import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.choices import Natural
from fljax.client.batch_gradients import gradient_mass
from fljax.client.class_means import feature_sums
from fljax.client.features import head_shape, see
from fljax.client.freeze import frozen_loss, frozen_optimizer
from fljax.client.local import train_clients
from fljax.client.objectives import Loss, predictor, training_loss
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import check_not_private, method, reported, train
from fljax.rounds.cohort import keys_for
from fljax.rounds.sharing import body_of
from fljax.server.aggregate import weighted_mean
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

ALIGN, FISHER = 0xA11, 0xF15
"""Folded into a client's key for the batches of the alignment and the trace; local training draws as in any method."""


@hyper
class FedASHyper(LocalHyper):
    align_lr: Scalar = number(
        0.01, "learning rate of the alignment, not decayed; 0 leaves the body as received", least=0
    )


@method(FedASHyper, "Yang et al., CVPR 2024", "https://github.com/xiyuanyang45/FedAS", kind="personalised")
def fedas(model: Model, work: Work, *, align_epochs: Natural = 1) -> Algorithm:
    """FedAS: ``b_i = argmin sum_c mean_{x of c} |h_b(x) - mu_ic|^2 / d`` from b; ``w_i = LocalTrain(b_i, head_i)``.

    ``b <- sum_i F_i body_i / sum_i F_i`` with ``F_i = sum_batches |g(w_i)|^2``; mu_ic are the mean features of class c
    under the model that client i trained last.

    Args:
        model: the network, whose last layer is dense.
        align_epochs: epochs of the alignment; 0: none.

    Raises:
        ValueError: the network is a head without a body.
    """
    check_not_private(work, "clients of FedAS align the body and compute their weights from examples, without noise")
    head, loss = model.layers[-1:], training_loss(model)
    sharing = body_of(model, "FedAS")

    def init(key: Key, hyper: FedASHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        return State(sharing.split(params)[0], tree.broadcast(params, data.n_clients))

    def round(key: Key, hyper: FedASHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        last_models = state.clients
        received = sharing.held(state.server, sharing.split(last_models)[1], cohort.n_clients)
        initial = aligned(hyper, received, last_models, cohort) if align_epochs else received
        trained = train(hyper, initial, cohort, loss, work)
        trace = gradient_mass(keys_for(cohort, FISHER), trained.params, cohort.data, as_tested(loss), work.batch_size)
        ok = trained.ok & jnp.isfinite(trace)
        weight = jnp.where(cohort.active & ok, trace, 0.0)
        server = weighted_mean(sharing.split(trained.params)[0], weight, state.server)
        n = tree.size(state.server)
        clients = tree.where(ok, trained.params, last_models)
        return State(server, clients), reported(trained._replace(ok=ok), n + 1, n)

    def aligned(hyper: FedASHyper, received: ModelTable, last_models: Stacked, cohort: Cohort) -> Stacked:
        n_classes = head_shape(model, tree.first(last_models))[1]
        prototypes = feature_sums(model, last_models, cohort.data, n_classes).mean
        phase, sgd = work.for_epochs(align_epochs)._replace(terms=()), frozen_optimizer(optax.sgd(hyper.align_lr), head)
        loss = frozen_loss(near_prototypes(model), head)
        return train_clients(keys_for(cohort, ALIGN), received, cohort.data, loss, sgd, phase, prototypes).params

    def deploy(key: Key, hyper: FedASHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients)

    return Algorithm(init, round, deploy, predictor(model), loss=model.loss)


def near_prototypes(model: Model) -> Loss:
    """``sum_c mean_{x of class c} |h(x) - mu_c|^2 / d`` over a batch; mu (classes, d) is the client's own row."""

    def loss(params: Params, batch: Batch, key: Key, prototypes: Array) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key)
        squared = jnp.square(seen.features - prototypes[batch.y]).mean(1) * batch.weight
        weight = jnp.zeros(prototypes.shape[0], squared.dtype).at[batch.y].add(batch.weight)
        return (squared / jnp.maximum(weight[batch.y], 1.0)).sum(), seen.params

    return loss


def as_tested(loss: Loss) -> Loss:
    """``loss`` of the network in evaluation mode."""
    return lambda params, batch, key, *own: loss(params, batch, None, *own)
