"""Centralized training: the server has all examples and trains one model on them, without a federation.

A baseline: what methods with one model could reach if examples were not distributed over clients.

Differences: training is in rounds of ``work.epochs`` epochs over the examples of the round's participants. A round of
FedAvg computes as many gradients of examples, but takes fewer steps, since its clients train side by side. Clocks time
rounds as if the clients trained.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import predictor, training_loss
from fljax.data.federation import present
from fljax.numbers import LocalHyper
from fljax.rounds import check_not_private, method, traffic, train
from fljax.types import Algorithm, ClientData, Cohort, Examples, Key, Metrics, Model, ModelTable, State, Work


@method(LocalHyper, "baseline", kind="baseline")
def centralized(model: Model, work: Work) -> Algorithm:
    """Centralized training: ``theta <- Train(theta)`` on the union of the participants' examples.

    A client sends its examples once, in the first round in which it participates: an input counts its bytes / 4 as
    floats, a label 1. Nothing is sent back. The server leaves out clients with examples that are not finite. They send
    them again, and so do all participants after a round whose result is not finite.
    """
    check_not_private(work, "clients of centralized training send their examples")

    def init(key: Key, hyper: LocalHyper, data: ClientData) -> State:
        return State(model.init(key), jnp.zeros(data.n_clients, bool))

    def round(key: Key, hyper: LocalHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        is_finite = (tree.all_finite(cohort.data.pool)[cohort.data.index] | ~present(cohort.data)).all(1)
        together = as_one_client(key, cohort, cohort.active & is_finite)
        trained = train(hyper, tree.everyone(state.server, 1), together, training_loss(model), work)
        has_sent, ok = state.clients, is_finite & trained.ok[0]
        floats = floats_of_example(cohort.data.pool) * cohort.data.size.astype(jnp.float32)
        new_state = State(tree.row(trained.params, 0), has_sent | ok)
        metrics = {"loss": jnp.full_like(floats, trained.loss[0]), "ok": ok}
        return new_state, metrics | traffic(jnp.where(has_sent, 0, floats), 0.0)

    def deploy(key: Key, hyper: LocalHyper, state: State, data: ClientData) -> ModelTable:
        return tree.everyone(state.server, data.n_clients)

    return Algorithm(init, round, deploy, predictor(model), loss=model.loss)


def as_one_client(key: Key, cohort: Cohort, counts: Array) -> Cohort:
    """A cohort of one client with the examples of all participants that count, in the order of their ids."""
    order = jnp.argsort(cohort.ids)
    is_example = (present(cohort.data) & counts[:, None])[order]
    examples_first = jnp.argsort(~is_example, axis=None, stable=True)  # then the padding
    index = cohort.data.index[order].reshape(1, -1)[:, examples_first]
    data = ClientData(cohort.data.pool, index, is_example.sum(dtype=jnp.int32)[None])
    return Cohort(cohort.round, jnp.zeros(1, jnp.int32), data, jnp.ones(1, bool), None, key[None])


def floats_of_example(pool: Examples) -> float:
    """The bytes of an input and the number of its labels, in floats of 4 bytes: a uint8 pixel is a quarter."""
    n_bytes = pool.x[0].size * pool.x.dtype.itemsize
    return n_bytes / 4 + pool.y[0].size
