"""FedNTD: FedAvg whose clients distil the server's model on the classes other than an example's own.

Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS
2022, https://arxiv.org/abs/2106.03097. Official code: https://github.com/Lee-Gihun/FedNTD.
The local loss distils the received model into the client's model, over the classes that are not the example's own, so
that the client does not forget them.

Differences from the paper: the received model is in evaluation mode. PFLlib weights all clients equally
(``weighting="uniform"``).
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.objectives import Loss, batch_mean
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method, train
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work


@hyper
class FedNTDHyper(LocalHyper):
    beta: Scalar = number(1.0, "weight of the distillation; 0 is FedAvg; the code has 1", least=0)
    temperature: Scalar = number(1.0, "tau of the distillation; the code has 1", above=0)


@method(FedNTDHyper, "Lee et al., NeurIPS 2022", "https://arxiv.org/abs/2106.03097")
def fedntd(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedNTD: ``w_i = argmin F_i(w) + beta tau^2 mean_x KL(q_theta(x) || q_w(x))``; average.

    ``q`` is the softmax of the logits / tau over all classes except the example's own.
    """

    def local(hyper: FedNTDHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        check_classes(cohort.data.pool.y)
        return train(hyper, theta, cohort, not_true_distilled(model, hyper), work, theta)

    return averaging(model, local, weighting=weighting, combine=combine)


def not_true_distilled(model: Model, hyper: FedNTDHyper) -> Loss:
    """The training loss plus the distillation from a received model, which is the client's own row."""

    def loss(params: Params, batch: Batch, key: Key, theta: Params) -> tuple[Array, Params]:
        logits, updated = model.apply(params, batch.x, key)
        teacher_logits = model.apply(theta, batch.x, None)[0]
        is_own = jax.nn.one_hot(batch.y, logits.shape[-1], dtype=bool)
        student, teacher = (not_true(value / hyper.temperature, is_own) for value in (logits, teacher_logits))
        divergence = (jnp.exp(teacher) * (teacher - student)).sum(-1)
        value = model.loss(logits, batch.y) + hyper.beta * jnp.square(hyper.temperature) * divergence
        return batch_mean(value, batch.weight), updated

    return loss


def not_true(logits: Array, is_own: Array) -> Array:
    """(batch, classes) log-softmax over the classes other than the example's own, whose entry is -1e9."""
    return jnp.where(is_own, -1e9, jax.nn.log_softmax(jnp.where(is_own, -1e9, logits.astype(jnp.float32))))
