"""FedProto: clients share the mean features of their classes, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022,
https://arxiv.org/abs/2105.00243. Official code: https://github.com/yuetan031/FedProto.
A client's prototype of a class is the mean of its features of the class; the server averages prototypes class by class;
clients train with a penalty that holds features near the averages, and predict the class of the nearest one.

Clients can have different networks, whose features have the same dimension (`fljax.models.heterogeneous`).

Differences from the paper: prototypes are computed with the trained model over all examples of the client, and weighted
by their number; the code accumulates them during training, and weights all clients equally (``weighting="uniform"``). A
class that no client has sent yet has no prototype: no penalty, and predicted last. A class that no client sends in a
round keeps its prototype; PFLlib forgets it. If no class has a prototype, clients predict with their last layer.
"""

from jax import Array

from fljax.client.class_means import ClassSums
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, check_not_private, method
from fljax.rounds.prototypes import average_prototypes, with_prototypes
from fljax.types import Algorithm, Cohort, Model, Params, Work


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

    def renew(hyper: FedProtoHyper, prototypes: Params, sums: ClassSums, cohort: Cohort, ok: Array) -> Params:
        return average_prototypes(prototypes, sums, weighting, cohort, ok)

    return with_prototypes(model, work, renew)
