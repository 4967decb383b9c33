"""FedGC: each client has a head for its own classes only, and the server pushes the classes of different heads apart.

Niu, Deng: Federated Learning for Face Recognition with Gradient Correction, AAAI 2022,
https://arxiv.org/abs/2112.07246.
A client trains the shared body and its own head, whose columns are the embeddings of its classes, by the softmax over
these. The server averages the bodies, stores all heads, and corrects them by a step on a softmax over the embeddings of
different clients, since no client's loss compares its classes with those of others.

Differences from the paper: its clients are groups of persons, whose classes nobody shares. Here, the embedding with
which others are compared is the mean over the clients that have the class, and a class is compared with the embeddings
of clients that do not have it, as in PFLlib; there, an embedding is not drawn to its own class. In a test, classes that
a client does not have come last. Heads have no bias. A new client starts from the mean embeddings of its classes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.class_means import others_last
from fljax.client.features import head_shape, see
from fljax.client.objectives import Loss, batch_mean
from fljax.data.federation import class_histogram
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, check_not_private, client_weight, in_first_round, method, reported, train
from fljax.rounds.joining import train_new_clients
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
    Trained,
    Work,
)

CLASSES, EXCLUDED = "classes", -1e9
"""Name of the marks of a client's classes in what it is tested with; the logit of another class in training."""


@hyper
class FedGCHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: learning rate of the server's correction, in units of lr; 0: none", least=0)


@method(FedGCHyper, "Niu and Deng, AAAI 2022", "https://arxiv.org/abs/2112.07246", kind="personalised")
def fedgc(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """FedGC: ``body <- mean of body_i``; ``W <- W - lambda eta grad R(W)`` for the heads W of all clients.

    ``R = -sum_{k, i} log(exp(W_ki e_i) / (exp(W_ki e_i) + sum_{z, j} exp(W_zj e_i)))`` over the classes i of each
    client k and the classes j of each client z without class i; ``e_i`` is the mean of the ``W_ki``, a constant.

    Args:
        model: the network, whose last layer is dense.
        weighting: of the clients' bodies, "size" or "uniform".

    Raises:
        ValueError: the network is a head without a body, or has a layer called "classes".
    """
    check_not_private(work, "clients of FedGC send which classes they have, which gets no noise")
    check_free(model, "fedgc", CLASSES)
    sharing, last = body_of(model, "FedGC"), model.layers[-1]

    def init(key: Key, hyper: FedGCHyper, data: ClientData) -> State:
        params = model.init(key)
        n_classes = head_shape(model, params)[1]
        body, head = sharing.split(params)
        embeddings = {name: leaf if name == "kernel" else 0 * leaf for name, leaf in head[last].items()}
        heads = tree.broadcast({last: embeddings}, data.n_clients)
        return State({"body": body, "heads": heads, "has": classes_of(data, n_classes)}, ())

    def local(hyper: FedGCHyper, body: Params, heads: Stacked, cohort: Cohort) -> Trained:
        has = classes_of(cohort.data, heads[last]["kernel"].shape[-1])
        start = sharing.held(body, heads, has.shape[0])
        return train(hyper, start, cohort, among_own_classes(model), work, has)

    def round(key: Key, hyper: FedGCHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        body, heads, all_has = (state.server[part] for part in ("body", "heads", "has"))
        trained = local(hyper, body, tree.take(heads, cohort.ids), cohort)
        bodies, new_heads = sharing.split(trained.params)
        weight = client_weight(weighting, cohort, trained.ok)
        has = classes_of(cohort.data, all_has.shape[1])
        heads, all_has = tree.put((heads, all_has), cohort.ids, (new_heads, has), weight > 0)
        step = jnp.where((weight > 0).any(), hyper.lam * hyper.lr_of(cohort.round), 0.0)  # nobody changes nothing
        server = {
            "body": weighted_mean(bodies, weight, body),
            "heads": {last: heads[last] | {"kernel": corrected(heads[last]["kernel"], all_has, step)}},
            "has": all_has,
        }
        # A head has only the embeddings of the client's classes; which these are is sent once.
        n_own, d = has.sum(1), heads[last]["kernel"].shape[1]
        n = tree.size(body) + n_own * d
        return State(server, ()), reported(trained, n + in_first_round(cohort, 1) * n_own, n)

    def deploy(key: Key, hyper: FedGCHyper, state: State, data: ClientData) -> ModelTable:
        return as_tested(state.server["body"], state.server["heads"], data)

    def as_tested(body: Params, heads: Stacked, data: ClientData) -> ModelTable:
        has = classes_of(data, heads[last]["kernel"].shape[-1])
        networks = sharing.held(body, heads, data.n_clients)
        return networks._replace(params=networks.params | {CLASSES: has})

    def join(key: Key, hyper: FedGCHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        body, heads = state.server["body"], state.server["heads"][last]

        def train_heads(heads: Stacked, cohort: Cohort) -> Trained:
            trained = local(hyper, body, heads, cohort)
            return trained._replace(params=sharing.split(trained.params)[1])

        means = tree.as_before(mean_embeddings(heads["kernel"], state.server["has"]), heads["kernel"])
        initial = {last: tree.broadcast(tree.first(heads) | {"kernel": means}, data.n_clients)}
        return as_tested(body, train_new_clients(key, initial, data, n_rounds, train_heads), data)

    return Algorithm(init, round, deploy, own_classes_first(model), join, model.loss)


def classes_of(data: ClientData, n_classes: int) -> Array:
    """(clients, classes) float32 1 for the classes of a client's examples, else 0."""
    return (class_histogram(data, n_classes) > 0).astype(jnp.float32)


def among_own_classes(model: Model) -> Loss:
    """The training loss over the client's own classes; its own row is (classes,), 1 for those."""

    def loss(params: Params, batch: Batch, key: Key, has: Array) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key)
        logits = seen.features @ params[model.layers[-1]]["kernel"]
        return batch_mean(model.loss(jnp.where(has[None] > 0, logits, EXCLUDED), batch.y), batch.weight), seen.params

    return loss


def own_classes_first(model: Model) -> Callable[[Params, Array], Array]:
    """Logits of a client's classes under what it is tested with; those of the other classes are lower."""

    def predict(params: Params, x: Array) -> Array:
        logits = tree.at_least_float32(see(model, params, x, None).features @ params[model.layers[-1]]["kernel"])
        has = params[CLASSES] > 0
        return jnp.where(has.any(), others_last(logits, has), logits)

    return predict


def mean_embeddings(heads: Array, has: Array) -> Array:
    """(d, classes) mean over the clients that have a class of its embeddings, the columns of heads (clients, d,
    classes); 0 for a class that nobody has."""
    return (heads * has[:, None]).sum(0) / jnp.maximum(has.sum(0), 1)[None]


def corrected(heads: Array, has: Array, step: Array) -> Array:
    """The heads (clients, d, classes) after a step against the gradient of their `correction`."""
    wide_heads = tree.at_least_float32(heads)
    gradient = jax.grad(correction)(wide_heads, has, mean_embeddings(wide_heads, has))
    return tree.as_before(heads - step * gradient, heads)


def own_products(heads: Array, e: Array) -> Array:
    """(clients, classes) W_ki e_i."""
    return (heads * e[None]).sum(1)


def correction(heads: Array, has: Array, e: Array) -> Array:
    """R of the heads (clients, d, classes) of clients that have the classes ``has`` (clients, classes), at the mean
    embeddings e (d, classes), which are held fixed."""
    positive = own_products(heads, e)
    scores = jnp.einsum("zdj,di->zji", heads, e)  # (clients, classes, classes) W_zj e_i
    is_compared = (has[:, :, None] > 0) & (has[:, None, :] == 0)  # client z has class j and does not have class i
    negative = jax.nn.logsumexp(jnp.where(is_compared, scores, EXCLUDED), axis=(0, 1))
    return (has * (jnp.logaddexp(positive, negative[None]) - positive)).sum()
