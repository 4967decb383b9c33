"""Local training in a round, and before the first; and the terms that bricks add to its loss."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import check_kind
from fljax.client.freeze import frozen_loss, frozen_optimizer
from fljax.client.local import train_clients
from fljax.client.objectives import Loss, proximal, training_loss
from fljax.client.optimizer import local_optimizer, without_loss
from fljax.models.own_network import starting_models
from fljax.rounds.cohort import everyone
from fljax.rounds.wrapping import with_halves
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, Stacked, Trained, Work

Local = Callable[..., Trained]
"""``local(hyper, start, cohort, *per_client) -> Trained``: the clients' part of a round, from the ``start`` models."""

Term = Callable[[Loss, Any], Loss]
"""``term(loss, hyper) -> loss``; the new loss's first own row is the model from which the client's training starts."""


@checked_kinds
def train(
    hyper: Any,
    start: Stacked | ModelTable,
    cohort: Cohort,
    loss: Loss,
    work: Work,
    *per_client: Stacked | ModelTable,
    frozen: tuple[str, ...] = (),
) -> Trained:
    """The participants' local training in this round.

    Args:
        hyper: the method's hyperparameters, see `fljax.client.optimizer.local_optimizer`.
        start: (cohort, ...) models, or a table of models and each participant's row.
        cohort: the participants, their data and keys.
        loss: the loss that each participant minimises; ``work.terms`` are added to it.
        work: local work, of which each participant does the share ``cohort.effort``.
        *per_client: what the loss needs besides the batch (an anchor, a weight), one row per participant.
        frozen: layers that stay fixed, whatever terms and weight decay there are.
    """
    if work.terms:
        loss = frozen_loss(loss, frozen)  # terms that use gradients of the loss get none in the frozen layers
    for term in work.terms:
        loss = term(loss, hyper)
    if (added := _added.get()) is not None:
        added.update(work.terms)
    anchors = (start,) * len(work.terms)
    optimizer = local_optimizer(hyper, work, cohort.round)
    for reason in (_WHY_WITHOUT_LOSS[term] for term in work.terms if term in _WHY_WITHOUT_LOSS):
        optimizer = without_loss(optimizer, reason)
    optimizer = frozen_optimizer(optimizer, frozen)
    rows, plain_work = (*anchors, *per_client), work._replace(terms=())
    loss = frozen_loss(loss, frozen)
    return train_clients(cohort.key, start, cohort.data, loss, optimizer, plain_work, *rows, effort=cohort.effort)


_WHY_WITHOUT_LOSS: dict[Term, str] = {}
"""Terms with which optimisers must not see the loss, and why."""


def gradient_only(reason: str) -> Callable[[Term], Term]:
    """Marks a `Term` whose loss value would reveal more than its gradient: optimisers do not get the value."""

    def marked(term: Term) -> Term:
        _WHY_WITHOUT_LOSS[term] = reason
        return term

    return marked


_added: ContextVar[set[Term] | None] = ContextVar("added", default=None)
"""The terms that `train` has added to a loss, while `checking_terms` records them."""


def checking_terms(algorithm: Algorithm, terms: Mapping[str, Term]) -> Algorithm:
    """``algorithm``, whose rounds raise ValueError if its clients' training omits one of the ``terms``.

    Otherwise epsilon would be reported for a training without `dp_sgd`.
    """
    added: set[Term] = set()  # over all tracings of the round, because a jitted part may be traced only once

    def watched(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            token = _added.set(added)
            try:
                result = part(*args)
            finally:
                _added.reset(token)
            if missing := [name for name, term in terms.items() if term not in added]:
                raise ValueError(
                    f"{algorithm.about.name or 'the method'}: its clients train without {missing[0]}; train them "
                    "with fljax.rounds.train and the `work` that the method receives"
                )
            return result

        return run

    if algorithm.round_exchange is None:
        return algorithm._replace(round=watched(algorithm.round))
    return with_halves(algorithm, send=watched(algorithm.round_exchange.send))


@checked_kinds
def trained_on(loss: Loss, work: Work, frozen: tuple[str, ...] = ()) -> Local:
    """The usual clients' part of a round: `train` on ``loss`` with the layers ``frozen`` fixed."""

    def local(hyper: Any, start: Stacked | ModelTable, cohort: Cohort, *per_client: Stacked | ModelTable) -> Trained:
        return train(hyper, start, cohort, loss, work, *per_client, frozen=frozen)

    return local


def train_beforehand(key: Key, hyper: Any, params: Params, data: ClientData, model: Model, work: Work) -> Trained:
    """Trains every client from ``params`` on ``model.loss`` before the first round, with round 0's learning rate."""
    cohort = everyone(key, jnp.int32(0), data)
    return train(hyper, starting_models(model, params, data.n_clients), cohort, training_loss(model), work)


def local_of(local: Local | Work, model: Model) -> Local:
    """The clients' part of a round: ``local`` itself, or for a `Work` the usual training on ``model.loss``.

    Raises:
        ValueError: when a round is traced: ``local`` does not return a `Trained`.
    """
    if isinstance(local, Work):
        return trained_on(training_loss(model), local)

    def checked(*arguments: Any, **options: Any) -> Trained:
        trained = local(*arguments, **options)
        check_kind("what local returned", trained, Trained, "return one, as fljax.rounds.train does")
        return trained

    return checked


def as_it_is(loss: Loss, hyper: Any) -> Loss:
    """The `Term` of a brick whose hyperparameters are for `fljax.client.local_optimizer`: the loss stays unchanged."""

    def plain(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
        return loss(params, batch, key, *own)

    return plain


def proximal_to_start(loss: Loss, hyper: Any) -> Loss:
    """The `Term` of FedProx: ``mu/2 |w - start|^2``, with the client's initial model of the round as start."""
    return proximal(loss, hyper.mu)
