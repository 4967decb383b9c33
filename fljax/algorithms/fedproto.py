"""FedProto: clients share the mean features of their classes, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022,
https://arxiv.org/abs/2105.00243. Official code: https://github.com/yuetan031/FedProto.
A client's prototype of a class is the mean of its features of the class; the server averages prototypes class by class;
clients train with a penalty that holds features near the averages, and predict the class of the nearest one.

Differences from the paper: all clients have the same network. Prototypes are computed with the trained model over all
examples of the client, and weighted by their number; the code accumulates them during training, and weights all clients
equally (``weighting="uniform"``). A class that no client has sent yet has no prototype: no penalty, and predicted last.
A class that no client sends in a round keeps its prototype; PFLlib forgets it. If no class has a prototype, clients
predict with their last layer.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.class_means import feature_sums, others_last, prototype_loss
from fljax.client.features import head_shape, see
from fljax.data.labels import check_classes
from fljax.models.calling import check_free
from fljax.models.own_network import own_copies
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, check_not_private, method, reported, train
from fljax.rounds.prototypes import average_prototypes, no_prototypes
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work


@hyper
class FedProtoHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: weight of the mean square between features and prototypes", least=0)


@method(
    FedProtoHyper, "Tan et al., AAAI 2022", "https://arxiv.org/abs/2105.00243", kind="personalised", heterogeneous=True
)
def fedproto(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """FedProto: ``w_i = argmin F_i(w) + lambda mean_x |h(x) - C_{y(x)}|^2 / d``; ``C_c = mean of the clients' C_ic``.

    ``C_ic = mean_{x of class c} h_i(x)`` over client i's examples; h are the inputs of the last layer, of dimension d.

    Args:
        model: the network, whose last layer is dense.
        weighting: of the clients' prototypes of a class, "size" (by their examples of it) or "uniform".
    """
    check_free(model, "fedproto", "prototypes")
    check_not_private(work, "clients of FedProto send only means of their features, which get no noise")

    def init(key: Key, hyper: FedProtoHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        d, n_classes = head_shape(model, params)
        return State(no_prototypes(n_classes, d), own_copies(model, params, data.n_clients))

    def round(key: Key, hyper: FedProtoHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        prototype_rows = tree.everyone(state.server, cohort.n_clients)
        trained = train(hyper, state.clients, cohort, prototype_loss(model, hyper.lam), work, prototype_rows)
        n_classes, d = state.server["mean"].shape
        sums = feature_sums(model, trained.params, cohort.data, n_classes)
        new_prototypes = average_prototypes(state.server, sums, weighting, cohort, trained.ok)
        # A client sends its classes' prototypes and counts; it receives all existing prototypes.
        up, down = (sums.count > 0).sum(1).astype(jnp.float32) * (d + 1.0), state.server["known"].sum() * d
        return State(new_prototypes, trained.params), reported(trained, up, down)

    def deploy(key: Key, hyper: FedProtoHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients | {"prototypes": tree.broadcast(state.server, 1)})  # which `predict` reads

    def predict(params: Params, x: Array) -> Array:
        """Minus the squared distance to each prototype."""
        seen = see(model, params, x, None)
        mean, known = params["prototypes"]["mean"], params["prototypes"]["known"] > 0
        score = -jnp.square(seen.features[:, None] - mean[None]).sum(-1)
        return jnp.where(known.any(), others_last(score, known), seen.logits)

    return Algorithm(init, round, deploy, predict, loss=model.loss)
