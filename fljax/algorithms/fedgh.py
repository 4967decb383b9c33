"""FedGH: clients keep their bodies, and the server trains one head for all on the mean features of their classes.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023,
https://arxiv.org/abs/2303.13137. Official code: https://github.com/LipingYi/FedGH.
A client trains its body and the received head, and sends the mean features of its classes. Each of them, with its
class, is an example on which the server trains its head. The client's trained head is dropped. Clients can have
different bodies, whose features have the same dimension (`fljax.models.heterogeneous`).

Differences from the paper: the mean features are those of the trained model over all examples of the client; the
official code averages the means of batches. Examples come in random order; in the code, client by client. The code
clips gradients to a norm of 50, and its optimiser has no parameters of the server's head, so that the head stays as it
was. In PFLlib, the head at the server is the one that the first client trains.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.client.class_means import feature_sums
from fljax.client.features import head_shape, linear
from fljax.client.objectives import predictor, training_loss
from fljax.data.labels import check_classes
from fljax.keys import uniforms
from fljax.models.own_network import own_copies
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import check_not_private, method, only, reported, train
from fljax.rounds.cohort import keys_for
from fljax.rounds.prototypes import pass_over_means
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work

ORDER = 0x6D
"""Folded into a client's key for the places of its mean features in the order of the server's steps."""


@hyper
class FedGHHyper(LocalHyper):
    server_lr: Scalar = number(0.01, "learning rate of the server's steps on the head; 0 leaves it as it is", least=0)


@method(
    FedGHHyper, "Yi et al., ACM MM 2023", "https://arxiv.org/abs/2303.13137", kind="personalised", heterogeneous=True
)
def fedgh(model: Model, work: Work, *, server_batch: Positive = 1) -> Algorithm:
    """FedGH: ``body_i = LocalTrain(body_i, head)``; ``head <- head - eta_s grad l(head(C_ic), c)``, once for each C_ic.

    ``C_ic`` is the mean of the inputs of the last layer over client i's examples of class c.

    Args:
        model: the network, whose last layer is dense.
        server_batch: mean features of a step at the server, over which the loss is averaged; PFLlib's are those of a
            client's batch.
    """
    check_not_private(work, "clients of FedGH send only means of their features, which get no noise")
    head = model.layers[-1]
    sharing = only((head,))

    def init(key: Key, hyper: FedGHHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        head_shape(model, params)
        shared, body = sharing.split(params)
        return State(shared, own_copies(model, body, data.n_clients))

    def round(key: Key, hyper: FedGHHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        initial = sharing.held(state.server, state.clients, cohort.n_clients)
        trained = train(hyper, initial, cohort, training_loss(model), work)
        d, n_classes = head_shape(model, state.server)
        sums = feature_sums(model, trained.params, cohort.data, n_classes)
        is_shown = sums.count > 0
        is_sent = is_shown & (cohort.active & trained.ok)[:, None]
        place = uniforms(keys_for(cohort, ORDER), n_classes)
        new_head = pass_over_means(
            head_loss, hyper.server_lr, state.server[head], sums.mean, is_sent, place, server_batch
        )
        # A client sends each mean with its class, and receives the head.
        up = is_shown.sum(1).astype(jnp.float32) * (d + 1.0)
        metrics = reported(trained, up, tree.size(state.server))
        return State(state.server | {head: new_head}, sharing.split(trained.params)[1]), metrics

    def head_loss(head: Params, features: Array, y: Array) -> Array:
        return model.loss(linear(head, features), y)

    def deploy(key: Key, hyper: FedGHHyper, state: State, data: ClientData) -> ModelTable:
        return sharing.held(state.server, state.clients, data.n_clients)

    return Algorithm(init, round, deploy, predictor(model), loss=model.loss)
