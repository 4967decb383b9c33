"""FedEM: each client mixes shared learners; mixture and learners are fitted by expectation maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
https://arxiv.org/abs/2108.10252. Official code: https://github.com/omarfoq/FedEM.
A client computes how well each learner explains each of its examples, trains all learners with these weights, and
predicts with the mixture of their probabilities; the server averages each learner.

Differences from the paper: none by default; an example's responsibilities are computed at the start of the round, as in
the code. ``normalise="mass"`` divides a batch's weighted loss by the sum of its weights, another reading of the M step;
learners then hardly differ, because a client moves learners that it does not use as far as its own. With partial
participation, the code averages over all clients, absent ones with the server's learners; here, over the participants.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.example_loss import batch_losses, example_loss
from fljax.client.objectives import Loss, training_loss
from fljax.data.federation import present
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper
from fljax.rounds import GLOBAL_AND_OWN, Combining, Weighting, averaging, check_not_private, mean, method, train
from fljax.rounds.accounting import memberships
from fljax.rounds.combine_parts import of_each_learner
from fljax.rounds.wrapping import with_halves
from fljax.server.assign import mixture_weights, responsibilities
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Stacked, Trained, Work


@method(LocalHyper, "Marfoq et al., NeurIPS 2021", "https://arxiv.org/abs/2108.10252", kind="personalised")
def fedem(
    model: Model,
    work: Work,
    n_learners: Positive = 3,
    *,
    normalise: Literal["examples", "mass"] = "examples",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedEM: ``q_m(x) ~ pi_im exp(-loss_m(x))``; ``pi_im = mean_x q_m(x)``; learner m trains with weights ``q_m``.

    The reported loss is the sum of the learners' weighted mean losses.

    Args:
        model: the network of every learner.
        n_learners: M; 1 is FedAvg. The paper has 3.
        normalise: a learner's batch loss is divided by the number of "examples", so that a client moves a learner in
            proportion to its use of it, or by the "mass" of their weights, so that a client moves all learners equally.
        combine: how the server combines the clients' copies of a learner.
    """
    check_not_private(work, "clients of FedEM weight learners by their examples' responsibilities, without noise")
    objective = em_loss(model, by_losses, normalise)

    def begin(key: Key) -> dict[str, Any]:
        learners = jax.vmap(model.init)(jax.random.split(key, n_learners))
        return {"global": learners, "own": jnp.full(n_learners, 1 / n_learners, jnp.float32)}

    def local(hyper: LocalHyper, start: ModelTable, cohort: Cohort) -> Trained:
        check_classes(cohort.data.pool.y)
        learners, pi = start.part("global"), start.params["own"]
        # E step: q_m(x) ~ pi_im exp(-loss_m(x)).
        q = responsibilities(example_loss(model, tree.first(learners.params), cohort.data), pi)
        # M step: pi_im = mean_x q_m(x), and every learner by local training with weights q_m.
        trained = train(hyper, learners, cohort, objective, work, learners, pi)
        pi = tree.where(trained.ok, mixture_weights(q, present(cohort.data), empty=pi), pi)
        return trained._replace(params={"global": trained.params, "own": pi})

    def deployed(held: Params) -> Params:
        learners, pi = tree.first(held["global"]), held["own"]
        return {"learners": tree.broadcast(learners, tree.n_rows(pi)), "pi": pi}

    rounds = averaging(
        model,
        local,
        sharing=GLOBAL_AND_OWN,
        combine=of_each_learner(combine),
        weighting=weighting,
        begin=begin,
        deployed=deployed,
        metrics=lambda state, cohort: memberships(state.clients, cohort),
    )
    # All clients have the same learners when a round begins.
    return with_halves(rounds._replace(predict=mixed(model)), starts_anywhere=False)


def mixed(model: Model) -> Callable[[Params, Array], Array]:
    """The `Algorithm.predict` of a mixture: the logarithm of ``sum_m pi_m softmax(logits_m)``."""

    def predict(params: Params, x: Array) -> Array:
        logits = lax.map(lambda learner: model.apply(learner, x, None)[0], params["learners"])
        return jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0, b=params["pi"][:, None, None])

    return predict


def by_losses(losses: Array, y: Array, pi: Array) -> Array:
    """The E step: ``q_m(x) ~ pi_m exp(-loss_m(x))``; it does not use the labels y."""
    return responsibilities(losses, pi)


def em_loss(model: Model, e_step: Callable[..., Array], normalise: Literal["examples", "mass"] = "examples") -> Loss:
    """Sum over learners of the batch's loss weighted by ``q_m``, where ``q`` is computed from the client's own rows.

    The first of these rows are the learners at the start of the round; ``e_step(losses, labels, *others)`` computes q
    from their losses (batch, learners) and the other rows. A learner's gradient is that of its own term, so one pass
    trains all learners.
    """
    loss = training_loss(model)

    def mixture(params: Stacked, batch: Batch, key: Key, initial: Stacked, *own: Any) -> tuple[Array, Params]:
        q = e_step(batch_losses(model, initial, batch.x, batch.y), batch.y, *own)

        def one(learner: tuple[Params, Array]) -> tuple[Array, Params]:
            weight = batch.weight * learner[1]
            value, updated = loss(learner[0], batch._replace(weight=weight), key)
            share = weight.sum() / jnp.maximum(batch.weight.sum(), 1.0)
            return (value if normalise == "mass" else share * value), updated

        values, updated = lax.map(one, (params, q.T))
        return values.sum(), updated

    return mixture
