"""What clients do in a round, and before the first: training by the round's numbers; and terms that bricks add."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.freeze import frozen, still
from fljax.client.local import train_clients
from fljax.client.objectives import Loss, proximal, training_loss
from fljax.client.optimizer import local_optimizer, not_told
from fljax.rounds.cohort import everyone
from fljax.rounds.wrapping import with_halves
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, Stacked, Trained, Work

Local = Callable[..., Trained]
"""``local(hyper, start, cohort, *per_client) -> Trained``: the clients' part of a round, from the ``start`` models."""

Term = Callable[[Loss, Any], Loss]
"""``term(loss, hyper) -> loss`` whose first row of the client's own is the model that its training starts from."""


def train(
    hyper: Any,
    start: Stacked | ModelTable,
    cohort: Cohort,
    loss: Loss,
    work: Work,
    *per_client: Stacked | ModelTable,
    held: tuple[str, ...] = (),
) -> Trained:
    """The participants' local training in this round.

    Args:
        hyper: the method's numbers, see `fljax.client.optimizer.local_optimizer`.
        start: (cohort, ...) models, or a table of models and who starts from which.
        cohort: who takes part, with which data and keys.
        loss: what each minimises; ``work.terms`` are added to it.
        work: local effort, of which each does the share ``cohort.effort``.
        *per_client: what the loss needs beside the batch (an anchor, a weight), a row a participant.
        held: layers that stay as they are, whatever terms and weight decay there are.
    """
    if work.terms:
        loss = frozen(loss, held)  # terms that take gradients of it take none in the layers that stay
    for term in work.terms:
        loss = term(loss, hyper)
    if (added := _added.get()) is not None:
        added.update(work.terms)
    anchors = (start,) * len(work.terms)
    optimizer = local_optimizer(hyper, work, cohort.round)
    for why in (_WHY_NOT_TOLD[term] for term in work.terms if term in _WHY_NOT_TOLD):
        optimizer = not_told(optimizer, why)
    optimizer = still(optimizer, held)
    rows, plain = (*anchors, *per_client), work._replace(terms=())
    loss = frozen(loss, held)
    return train_clients(cohort.key, start, cohort.data, loss, optimizer, plain, *rows, effort=cohort.effort)


_WHY_NOT_TOLD: dict[Term, str] = {}
"""Terms beside which no step may follow from the loss, and why."""


def tells_gradients_alone(why: str) -> Callable[[Term], Term]:
    """Marks a `Term` beside whose gradient the loss would tell too much: optimisers are not given it."""

    def marked(term: Term) -> Term:
        _WHY_NOT_TOLD[term] = why
        return term

    return marked


_added: ContextVar[set[Term] | None] = ContextVar("added", default=None)
"""The terms that `train` has added to a loss, where somebody asks."""


def heeding(algorithm: Algorithm, terms: Mapping[str, Term]) -> Algorithm:
    """``algorithm``, whose rounds raise ValueError where its clients' training leaves out one of the ``terms``.

    Otherwise epsilon would be reported of a training that `dp_sgd` has not touched.
    """
    added: set[Term] = set()  # in any tracing of the round, for what the method has jitted may be traced once only

    def watched(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            before = _added.set(added)
            try:
                found = part(*args)
            finally:
                _added.reset(before)
            if missing := [name for name, term in terms.items() if term not in added]:
                raise ValueError(
                    f"{algorithm.about.name or 'the method'}: its clients train without {missing[0]}; let them train "
                    "by fljax.rounds.train with the `work` that the method is given"
                )
            return found

        return run

    if algorithm.round_exchange is None:
        return algorithm._replace(round=watched(algorithm.round))
    return with_halves(algorithm, send=watched(algorithm.round_exchange.send))


def trained_on(loss: Loss, work: Work, held: tuple[str, ...] = ()) -> Local:
    """The usual clients' part of a round: `train` on ``loss``, which leaves the layers ``held`` as they are."""

    def local(hyper: Any, start: Stacked | ModelTable, cohort: Cohort, *per_client: Stacked | ModelTable) -> Trained:
        return train(hyper, start, cohort, loss, work, *per_client, held=held)

    return local


def train_beforehand(key: Key, hyper: Any, params: Params, data: ClientData, model: Model, work: Work) -> Trained:
    """What every client trains from ``params`` on ``model.loss`` before the first round, with that round's numbers."""
    cohort = everyone(key, jnp.int32(0), data)
    return train(hyper, tree.everyone(params, data.n_clients), cohort, training_loss(model), work)


def local_of(local: Local | Work, model: Model) -> Local:
    """The clients' part of a round: as it is given, or the usual training on ``model.loss`` with so much work."""
    return trained_on(training_loss(model), local) if isinstance(local, Work) else local


def as_it_is(loss: Loss, hyper: Any) -> Loss:
    """The `Term` of a brick that has numbers for `fljax.client.local_optimizer` and leaves the loss alone."""

    def plain(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
        return loss(params, batch, key, *own)

    return plain


def pull_to_start(loss: Loss, hyper: Any) -> Loss:
    """The `Term` of FedProx: ``mu/2 |w - start|^2``, start being the model that the client begins the round with."""
    return proximal(loss, hyper.mu)
