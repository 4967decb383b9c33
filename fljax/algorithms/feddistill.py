"""FedDistill: clients share their mean output for each class, and learn from the other clients' mean outputs.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data, 2018, https://arxiv.org/abs/1811.11479.
An output is the vector of class probabilities, the softmax of the logits. The server averages the mean outputs class by
class; a client's loss on an example also compares its output with the others' mean output for that class.

Differences from the paper: without its augmentation. Mean outputs are those of the trained model, not of the batches
during training. PFLlib averages logits and takes the cross-entropy of an output against their softmax, since 29
November 2025 against the logits themselves. A class that no other client has sent adds no distillation loss. A new
client starts from the initial model, and learns from the present mean outputs of all other clients.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.class_means import class_sums
from fljax.client.features import head_shape
from fljax.client.objectives import Loss, batch_mean, predictor
from fljax.data.labels import check_classes
from fljax.models.own_network import own_copies
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import check_not_private, method, reported, train
from fljax.rounds.joining import train_new_clients
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work


@hyper
class FedDistillHyper(LocalHyper):
    gamma: Scalar = number(1.0, "weight of the distillation; 0 is standalone training", least=0)


@method(
    FedDistillHyper, "Jeong et al., 2018", "https://arxiv.org/abs/1811.11479", kind="personalised", heterogeneous=True
)
def feddistill(model: Model, work: Work) -> Algorithm:
    """FedDistill: ``w_i = argmin F_i(w) + gamma mean_x H(F_{-i, y(x)}, softmax(w(x)))``.

    ``F_{-i, c}`` is the mean over all other clients that have class c of their mean softmax outputs on it; H is
    cross-entropy.
    """
    check_not_private(work, "clients of FedDistill send only means of their outputs, which get no noise")

    def init(key: Key, hyper: FedDistillHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        n_classes = head_shape(model, params)[1]
        taught = {"total": jnp.zeros((n_classes, n_classes), jnp.float32), "count": jnp.zeros(n_classes, jnp.float32)}
        server = {"taught": taught, "start": params}  # a new client starts with it too
        clients = {"w": own_copies(model, params, data.n_clients), "taught": tree.broadcast(taught, data.n_clients)}
        return State(server, clients)

    def round(key: Key, hyper: FedDistillHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        total, (w, last_taught) = state.server["taught"], (state.clients["w"], state.clients["taught"])
        teacher = jax.tree.map(lambda s, s_i: s[None] - s_i, total, last_taught)
        trained = train(hyper, w, cohort, distilled(model, hyper), work, teacher)
        n_classes = total["count"].shape[0]
        sums = class_sums(partial(output, model), trained.params, cohort.data, n_classes)
        taught = {"total": sums.mean, "count": (sums.count > 0).astype(jnp.float32)}
        taught = tree.where(cohort.active & trained.ok, taught, last_taught)
        total = jax.tree.map(lambda s, new, old: s + (new - old).sum(0), total, taught, last_taught)
        up, down = taught["count"].sum(1), (teacher["count"] > 0.5).astype(jnp.float32).sum(1)
        clients, metrics = {"w": trained.params, "taught": taught}, reported(trained, up * n_classes, down * n_classes)
        return State(state.server | {"taught": total}, clients), metrics

    def deploy(key: Key, hyper: FedDistillHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients["w"])

    def join(key: Key, hyper: FedDistillHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        loss = distilled(model, hyper)
        # The server's sums stay fixed and have no outputs of the new client, so none are subtracted.
        teacher = tree.everyone(state.server["taught"], data.n_clients)
        w0 = own_copies(model, state.server["start"], data.n_clients)
        return tree.own(
            train_new_clients(key, w0, data, n_rounds, lambda w, cohort: train(hyper, w, cohort, loss, work, teacher))
        )

    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def distilled(model: Model, hyper: FedDistillHyper) -> Loss:
    """The training loss plus gamma times the cross-entropy to the teacher's mean output for the example's class.

    The teacher is the client's own row: sums of the other clients' mean outputs by class, and how many have the class.
    """

    def loss(params: Params, batch: Batch, key: Key, teacher: Params) -> tuple[Array, Params]:
        logits, updated = model.apply(params, batch.x, key)
        count = teacher["count"][batch.y]
        target = teacher["total"][batch.y] / jnp.maximum(count, 1.0)[:, None]
        distillation = jnp.where(count > 0.5, optax.softmax_cross_entropy(logits, target), 0.0)
        return batch_mean(model.loss(logits, batch.y) + hyper.gamma * distillation, batch.weight), updated

    return loss


def output(model: Model, params: Params, x: Array) -> Array:
    """(batch, classes) probabilities of a model in evaluation mode."""
    return jax.nn.softmax(tree.at_least_float32(model.apply(params, x, None)[0]))
