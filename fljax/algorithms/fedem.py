"""FedEM: each client's data is a mixture of shared learners, fitted by expectation maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
https://arxiv.org/abs/2108.10252. Official code: https://github.com/omarfoq/FedEM.
A client says how well each learner explains each of its examples, trains all learners with these weights, and predicts
by the mixture of their probabilities; the server averages each learner.

Differences from the paper: none by default; an example's responsibilities are those of the start of the round, as in
the code. ``normalise="mass"`` divides a weighted batch by its mass of weights, another reading of the M step; learners
then hardly come apart, because a client moves those that it does not use as far as its own. Where clients sit out, the
code averages over all clients, those with the server's learners; here the average is over those that take part.
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
from fljax.rounds import Combining, Weighting, client_weight, mean, method, reported, train
from fljax.rounds.accounting import memberships
from fljax.rounds.averaging import remembering, shared_and_memory, shared_part
from fljax.rounds.learners import of_each_learner
from fljax.rounds.uplink.private import check_not_private
from fljax.server.assign import mixture_weights, responsibilities
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Upload,
    Work,
)


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
        normalise: a learner's batch loss divides by the number of "examples", so that a client moves a learner as far
            as it uses it, or by the "mass" of their weights, so that all clients move all learners alike.
        combine: what the server makes of the clients' copies of a learner.
    """
    check_not_private(work, "clients of FedEM weight learners by shares of their examples, which get no noise")
    combining, objective = of_each_learner(combine), shared_out(model, explained, normalise)

    def init(key: Key, hyper: LocalHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        learners = jax.vmap(model.init)(jax.random.split(key, n_learners))
        pi = jnp.full((data.n_clients, n_learners), 1 / n_learners, jnp.float32)
        return State(remembering(learners, combining.init(hyper, learners)), pi)

    def send(key: Key, hyper: LocalHyper, state: State, cohort: Cohort) -> Upload:
        learners, pi = shared_part(state.server), state.clients
        # E step: q_m(x) ~ pi_im exp(-loss_m(x)).
        q = responsibilities(example_loss(model, learners, cohort.data), pi)
        # M step: pi_im = mean_x q_m(x), and every learner by local training with weights q_m.
        start = tree.everyone(learners, cohort.ids.shape[0])
        trained = train(hyper, start, cohort, objective, work, start, pi)
        pi = tree.where(trained.ok, mixture_weights(q, present(cohort.data), empty=pi), pi)
        weight = client_weight(weighting, cohort, trained.ok)
        return Upload(start, trained.params, weight, trained._replace(params=pi))

    def receive(key: Key, hyper: LocalHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (learners, memory), kept = shared_and_memory(state.server), upload.rest
        learners, memory = combining.apply(hyper, memory, learners, upload.params, upload.weight)
        metrics = reported(kept, n_learners * tree.size(tree.first(learners))) | memberships(kept.params, cohort)
        return State(remembering(learners, memory), kept.params), metrics

    def deploy(key: Key, hyper: LocalHyper, state: State, data: ClientData) -> ModelTable:
        learners = shared_part(state.server)
        # A dict, as the parameters of every model: files name its leaves.
        return tree.own({"learners": tree.broadcast(learners, data.n_clients), "pi": state.clients})

    exchange = Exchange(send, receive, shared_part, "mean" if combining.sums else "each")
    return Algorithm(init, exchange.round, deploy, mixed(model), loss=model.loss, exchange=exchange)


def mixed(model: Model) -> Callable[[Params, Array], Array]:
    """The `Algorithm.predict` of a mixture: the logarithm of ``sum_m pi_m softmax(logits_m)``."""

    def predict(params: Params, x: Array) -> Array:
        logits = lax.map(lambda learner: model.apply(learner, x, None)[0], params["learners"])
        return jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0, b=params["pi"][:, None, None])

    return predict


def explained(losses: Array, y: Array, pi: Array) -> Array:
    """The E step: ``q_m(x) ~ pi_m exp(-loss_m(x))``, whatever the labels y."""
    return responsibilities(losses, pi)


def shared_out(model: Model, e_step: Callable[..., Array], normalise: Literal["examples", "mass"] = "examples") -> Loss:
    """Sum over learners of the batch's loss weighted by ``q_m``, where ``q`` follows from the client's own rows.

    The first are the learners at the start of the round; ``e_step(losses, labels, *others)`` makes q of their losses
    (batch, learners) and the others. A learner's gradient is that of its own term, so one pass trains them all.
    """
    loss = training_loss(model)

    def mixture(params: Stacked, batch: Batch, key: Key, begun: Stacked, *own: Any) -> tuple[Array, Params]:
        q = e_step(batch_losses(model, begun, batch.x, batch.y), batch.y, *own)

        def one(learner: tuple[Params, Array]) -> tuple[Array, Params]:
            weight = batch.weight * learner[1]
            value, updated = loss(learner[0], batch._replace(weight=weight), key)
            share = weight.sum() / jnp.maximum(batch.weight.sum(), 1.0)
            return (value if normalise == "mass" else share * value), updated

        values, updated = lax.map(one, (params, q.T))
        return values.sum(), updated

    return mixture
