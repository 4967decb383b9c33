"""FedMD: clients learn from the mean of their outputs for public examples, and send no models.

Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation, 2019, https://arxiv.org/abs/1910.03581.
Official code: https://github.com/diogenes0319/FedMD_clean.

::

    D_t  <- some of the public examples, drawn anew in each round
    c    <- mean over the participants of w_i(D_t)       communicate, aggregate, distribute
    w_i  <- local steps along |w_i(x) - c(x)| on D_t     digest
    w_i  <- local steps on the client's own examples     revisit

With ``shared="probabilities"`` the outputs are as in DS-FL (Itahara, Nishio, Koda, Morikura, Yamamoto:
Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative Training with Non-IID
Private Data, IEEE TMC 2023, https://arxiv.org/abs/2008.06180): the mean of the clients' class probabilities is
sharpened, ``softmax(mean / temperature)``, and clients minimise the cross-entropy to it.

Clients can have different networks (`fljax.models.heterogeneous`).

Differences from the papers: clients with the same network start from the same weights. Public examples have no labels
here (`Federation.public`), so clients do not train on them before the first round, only on their own
(``alone_epochs``). Clients have the public examples from the start: sending them is not counted. DS-FL also trains a
model of the server, and its clients send outputs after their own steps, not before. A new client trains alone.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.client.objectives import Loss, batch_mean, predictor, training_loss
from fljax.client.outputs import client_outputs
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.placement import whole
from fljax.rounds import check_not_private, method, reported, train
from fljax.rounds.cohort import keys_for
from fljax.rounds.inference import check_classifies, public_examples
from fljax.rounds.joining import join_from
from fljax.rounds.local import train_beforehand
from fljax.server.aggregate import weighted_mean
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Examples,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    State,
    Work,
)

DIGEST = 2**31
"""Folded into a participant's key for its steps on public examples."""


@hyper
class FedMDHyper(LocalHyper):
    temperature: Scalar = number(0.1, "of the mean of shared probabilities; with logits it has no effect", above=0)


@method(FedMDHyper, "Li, Wang, 2019", "https://arxiv.org/abs/1910.03581", kind="personalised", heterogeneous=True)
def fedmd(
    model: Model,
    work: Work,
    *,
    n_digested: Positive = 200,
    digest_epochs: Positive = 1,
    shared: Literal["logits", "probabilities"] = "logits",
    alone_epochs: Positive = 1,
) -> Algorithm:
    """FedMD: ``w_i`` minimises ``|w_i(x) - mean_j w_j(x)|`` on public examples, then F_i. Needs public data.

    The reported loss is that of the steps on the client's own examples.

    Args:
        n_digested: public examples per round, or all if there are fewer.
        digest_epochs: epochs over them.
        shared: "logits": FedMD, with the mean absolute difference of logits; "probabilities": DS-FL.
        alone_epochs: epochs in which every client trains on its own examples before the first round. Without any, the
            outputs of all would be equal then, and the gradient of their absolute difference the sign of a rounding
            error.

    Raises:
        ValueError: when a round is traced: the federation has no public examples.
    """
    check_not_private(work, "clients of FedMD send only outputs of their models, which get no noise")
    if shared == "probabilities":
        check_classifies(model, "fedmd with shared='probabilities'")
    link = jax.nn.softmax if shared == "probabilities" else lambda logits: logits
    digest_work = work.for_epochs(digest_epochs)._replace(terms=())

    def init(key: Key, hyper: FedMDHyper, data: ClientData) -> State:
        params = model.init(key)
        return State(params, train_beforehand(key, hyper, params, data, model, work.for_epochs(alone_epochs)).params)

    def round(key: Key, hyper: FedMDHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        public = drawn(key, cohort.public, n_digested)
        outputs = whole(client_outputs(model, state.clients, public, public.y, link))
        consensus = weighted_mean(outputs, cohort.active)
        target = jax.nn.softmax(consensus / hyper.temperature) if shared == "probabilities" else consensus
        learners = cohort._replace(key=keys_for(cohort, DIGEST), data=given_to_all(public, cohort.n_clients))
        teacher = tree.everyone(target, cohort.n_clients)
        digested = train(hyper, state.clients, learners, digest_loss(model, shared), digest_work, teacher)
        trained = train(hyper, digested.params, cohort, training_loss(model), work)
        ok = digested.ok & trained.ok
        params = tree.where(cohort.active & ok, trained.params, state.clients)
        return State(state.server, params), reported(trained._replace(ok=ok), consensus.size)

    def deploy(key: Key, hyper: FedMDHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients)

    join = join_from(model, work, lambda state: state.server)
    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def drawn(key: Key, public: Examples | None, n: int) -> Examples:
    """``n`` of the public examples at random, or all if there are fewer, labelled with their numbers from 0."""
    examples = public_examples(public, None, "fedmd")
    rows = jax.random.permutation(key, examples.y.shape[0])[:n]
    return Examples(examples.x[rows], jnp.arange(rows.shape[0], dtype=jnp.int32))


def given_to_all(public: Examples, n_clients: int) -> ClientData:
    """The examples as those of every client."""
    n = public.y.shape[0]
    return ClientData(public, jnp.broadcast_to(public.y, (n_clients, n)), jnp.full(n_clients, n, jnp.int32))


def digest_loss(model: Model, shared: str) -> Loss:
    """How far a model's outputs are from the teacher's (examples, classes), for examples that `drawn` has numbered."""

    def loss(params: Params, batch: Batch, key: Key, teacher: Array) -> tuple[Array, Params]:
        logits, updated = model.apply(params, batch.x, key)
        logits, wanted = tree.at_least_float32(logits), teacher[batch.y]
        if shared == "probabilities":
            return batch_mean(optax.softmax_cross_entropy(logits, wanted), batch.weight), updated
        return batch_mean(jnp.abs(logits - wanted).mean(-1), batch.weight), updated

    return loss
