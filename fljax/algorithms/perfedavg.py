"""Per-FedAvg: a global model from which each client adapts well in one step.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020, https://arxiv.org/abs/2002.07948.
Clients step along the gradient of their loss *after* one step of adaptation; the server averages; before a test, each
client makes the adaptation step.

Differences from the paper: the Hessian-vector product of ``variant="hessian_free"`` is exact, by differentiating twice;
the paper uses a difference of two gradients. tau is ``work.local_steps``; with epochs it depends on a client's size.
Participants are weighted by size.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.choices import Natural
from fljax.client.finetune import adapt
from fljax.client.given_gradients import with_gradient
from fljax.client.objectives import Loss, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, check_not_private, mean, method, train
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work


@hyper
class PerFedAvgHyper(LocalHyper):
    """Hyperparameters of Per-FedAvg; ``lr`` is that of the meta steps, b."""

    inner_lr: Scalar = number(
        0.05,
        "a: learning rate of the adaptation, in rounds and tests, not decayed; 0 is FedAvg on a part of each batch",
        least=0,
    )


@method(PerFedAvgHyper, "Fallah et al., NeurIPS 2020", "https://arxiv.org/abs/2002.07948", kind="personalised")
def perfedavg(
    model: Model,
    work: Work,
    *,
    variant: Literal["first_order", "hessian_free"] = "first_order",
    adapt_steps: Natural = 1,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """Per-FedAvg: ``w' = w - a g_1(w)``; ``w <- w - b (I - a H_3(w)) g_2(w')``; average; test after adaptation.

    ``g_1, g_2`` and the Hessian ``H_3`` come from disjoint batches of ``work.batch_size`` examples each; if this is
    None, from disjoint parts of all the client's examples.

    Args:
        variant: "first_order" omits the Hessian, "hessian_free" keeps it.
        adapt_steps: minibatch steps on a client's training data before its test; 0 tests the global model.
    """
    check_not_private(work, "clients of Per-FedAvg use gradients of parts of a batch, not of single examples")
    n_parts = 2 if variant == "first_order" else 3
    meta_work, loss = work._replace(batch_size=work.batch_size and n_parts * work.batch_size), training_loss(model)

    def local(hyper: PerFedAvgHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        return train(hyper, theta, cohort, after_step(loss, hyper.inner_lr, n_parts), meta_work)

    rounds = averaging(model, local, weighting=weighting, combine=combine)

    def deploy(key: Key, hyper: PerFedAvgHyper, state: State, data: ClientData) -> ModelTable:
        models = rounds.deploy(key, hyper, state, data)
        if not adapt_steps:
            return models
        return adapt(key, models, data, loss, optax.sgd(hyper.inner_lr), adapt_steps, work.batch_size)

    return rounds._replace(deploy=deploy)


def after_step(loss: Loss, inner_lr: Array | float, n_parts: int) -> Loss:
    """The loss after one step of adaptation, ``F_2(w - a g_1(w))``, with Per-FedAvg's gradient.

    A batch is split into ``n_parts`` parts, example by example in turn. With 2 parts the gradient is ``g_2(w')``, with
    3 it is ``(I - a H_3(w)) g_2(w')``. In a batch of one example, ``g_2`` uses the same example; without a third
    example, H is 0.
    """

    def meta(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        if (size := batch.y.shape[0]) < n_parts:  # a user's own loss term may pass such a batch
            raise ValueError(f"Per-FedAvg splits a batch into {n_parts} parts; a batch of {size} has too few examples")
        parts = [jax.tree.map(lambda leaf, k=k: leaf[k::n_parts], batch) for k in range(n_parts)]
        is_alone = parts[1].weight.sum() == 0
        second_part = jax.tree.map(lambda a, b: jnp.where(is_alone, a[: b.shape[0]], b), *parts[:2])
        trainable, statistics = tree.split_statistics(params)

        def value(w: Params, part: Batch) -> tuple[Array, Params]:
            return loss(tree.join_statistics(w, statistics), part, key, *own)

        def gradient(w: Params, part: Batch) -> Params:
            return jax.grad(value, has_aux=True)(w, part)[0]

        def step(w: Params) -> tuple[Array, Params, Params]:
            adapted = jax.tree.map(lambda w, g: w - inner_lr * g, w, gradient(w, parts[0]))
            (loss_value, updated), direction = jax.value_and_grad(value, has_aux=True)(adapted, second_part)
            if n_parts == 3:
                # Reverse over reverse: the models' own gradients have no forward mode.
                curvature = jax.grad(lambda w: tree.dot(gradient(w, parts[2]), direction))(w)
                direction = jax.tree.map(lambda g, hg: g - inner_lr * hg, direction, curvature)
            return loss_value, tree.split_statistics(updated)[1], direction

        loss_value, new_statistics = with_gradient(step, trainable)
        return loss_value, tree.join_statistics(trainable, new_statistics)

    return meta
