"""FedRoD: one body with two heads, a generic head for balanced classes and a personal head for the client's own.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
https://arxiv.org/abs/2107.00778. The authors' repository: https://github.com/hongyouc/Fed-RoD.
Body and generic head are trained with the balanced softmax, as if each client had equally many examples of every class,
and are averaged. The personal head, whose logits are added to the generic ones, learns the client's own distribution
and stays with the client.

Differences from the paper: the personal head is linear, not a hypernetwork. It starts as a copy of the generic head, a
new client's as a copy of the server's.
"""

import jax.numpy as jnp
from jax import Array

from fljax.client.features import head_shape, linear, see
from fljax.client.given_gradients import without_gradient
from fljax.client.objectives import Loss, batch_mean
from fljax.data.federation import class_histogram
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, all_but, averaging, check_not_private, mean, method, train
from fljax.rounds.averaging import join_from_shared
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work

PERSONAL = "personal"
"""The layer that stays with a client."""


@method(LocalHyper, "Chen and Chao, ICLR 2022", "https://arxiv.org/abs/2107.00778", kind="personalised")
def fedrod(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedRoD: ``(body, head)`` by the balanced softmax, averaged; ``own_i`` by ``F_i(head(h) + own_i(h))``.

    Balanced softmax: cross-entropy of ``logits + log n_ic``. Clients are tested with ``head(h) + own_i(h)``. The
    reported loss is the sum of both losses.

    Args:
        model: the network, whose last layer is dense.
        combine: how the server combines bodies and generic heads.
    """
    check_free(model, "fedrod", PERSONAL)
    check_not_private(work, "clients of FedRoD shift their logits by their label counts, which get no noise")

    def begin(key: Key) -> Params:
        params = model.init(key)
        head_shape(model, params)
        return params | {PERSONAL: params[model.layers[-1]]}

    def local(hyper: LocalHyper, start: ModelTable, cohort: Cohort) -> Trained:
        n_classes = start.params[PERSONAL]["kernel"].shape[-1]
        count = class_histogram(cohort.data, n_classes).astype(jnp.float32)
        # A class that a client does not have is in effect excluded from its balanced softmax.
        return train(hyper, start, cohort, two_heads(model), work, jnp.log(jnp.maximum(count, 1e-8)))

    def predict(params: Params, x: Array) -> Array:
        seen = see(model, params, x, None)
        return seen.logits + linear(params[PERSONAL], seen.features)

    rounds = averaging(model, local, sharing=all_but((PERSONAL,)), combine=combine, weighting=weighting, begin=begin)
    join = join_from_shared(rounds, lambda hyper, shared: {PERSONAL: shared[model.layers[-1]]})
    return rounds._replace(predict=predict, join=join)


def two_heads(model: Model) -> Loss:
    """The balanced softmax loss of the generic logits, plus the loss of both heads with a gradient for the personal
    head only."""

    def loss(params: Params, batch: Batch, key: Key, log_count: Array) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key)
        balanced = model.loss(seen.logits + log_count[None], batch.y)
        personal_logits = linear(params[PERSONAL], without_gradient(seen.features))
        value = balanced + model.loss(without_gradient(seen.logits) + personal_logits, batch.y)
        return batch_mean(value, batch.weight), seen.params

    return loss
