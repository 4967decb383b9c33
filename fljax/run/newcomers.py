"""The models that a method gives to new clients, and the tests of these models."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.checks.arguments import check_count, fields_of
from fljax.checks.network import check_subjects
from fljax.checks.state import check_state
from fljax.metrics.evaluate import evaluate
from fljax.numbers import check_numbers
from fljax.rounds.joining import Round, new_client_rounds
from fljax.run.one_round import as_traced, split_key
from fljax.types import Algorithm, ClientData, Cohort, Federation, Key, Metrics, ModelTable, State


def evaluate_new_clients(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, *, n_rounds: int = 5
) -> Metrics:
    """Test metrics of new clients, with the models of `new_client_models`.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its hyperparameters.
        state: the final state of a run without these clients.
        newcomers: the new clients, from `fljax.data.holdout.hold_out_clients`.
        key: the run's key.
        n_rounds: see `new_client_models`.

    Returns:
        As `fljax.metrics.evaluate.evaluate`, with entries in the order of the new clients.

    Raises:
        ValueError: as `new_client_models`, or the network cannot take the new clients' test examples.
    """
    models = new_client_models(algorithm, hyper, state, newcomers, key, n_rounds=n_rounds)
    return evaluate(algorithm.predict, models, newcomers.test, algorithm.loss)


def new_client_models(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, *, n_rounds: int = 5
) -> ModelTable:
    """The models of new clients, which get models from a trained server without having participated.

    A new client gets a model in the way of the method: the global model, the model of the cluster that it chooses by
    its training data, or a personal one, which it trains for ``n_rounds`` rounds of the method's local work. The server
    does not change, and new clients do not affect each other.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its hyperparameters.
        state: the final state of a run without these clients.
        newcomers: the new clients, from `fljax.data.holdout.hold_out_clients`; only their training examples are used.
        key: the run's key, so that parts that start equal for all clients do so for these.
        n_rounds: rounds of work for methods that keep something per client, 0 or more; a new value does not recompile.

    Returns:
        The models, and the row number of each new client, in their order.

    Raises:
        ValueError: ``n_rounds`` is negative, ``newcomers`` change over the rounds or do not fit the network, ``hyper``
            or ``state`` does not belong to the method, or the method has models only for its own clients.
    """
    check_count("n_rounds", n_rounds, least=0)
    check_subjects(algorithm, newcomers, key, must_train=False)
    if newcomers.stages is not None:
        raise ValueError(
            "newcomers change over the rounds, and only their first stage would be used; give them as they are in the "
            "last round: fljax.drift.at(newcomers, n_rounds - 1)"
        )
    check_numbers(hyper)
    with fields_of(hyper, algorithm):
        arguments = as_traced(hyper), state, newcomers.train, key, jnp.int32(n_rounds)
        check_state(algorithm, *arguments[:4], same_clients=False)
        return new_models(algorithm, *arguments)


@partial(jax.jit, static_argnums=0)
def new_models(
    algorithm: Algorithm, hyper: Any, state: State, data: ClientData, key: Key, n_rounds: Array
) -> ModelTable:
    """The models of new clients with the training split ``data``; arguments as above.

    Raises:
        ValueError: the method has models only for its own clients and no `Algorithm.join`.
    """
    keys = split_key(key)
    key_rounds, key_deploy = jax.random.split(keys.deploy)
    if algorithm.join is not None:
        return algorithm.join(key_rounds, hyper, state, data, n_rounds)
    own_state = State(state.server, algorithm.init(keys.init, hyper, data).clients)
    if jax.tree.leaves(own_state.clients):
        round = _with_unknown_ids(algorithm.round)
        own_state = new_client_rounds(round, key_rounds, hyper, own_state, data, n_rounds)
    models = algorithm.deploy(key_deploy, hyper, own_state, data)
    if models.row.shape != data.size.shape:
        n_deployed, n_new = models.row.shape[0], data.n_clients
        raise ValueError(f"the method deploys to its own {n_deployed} clients, not to {n_new} new ones; give it a join")
    return models


def _with_unknown_ids(round: Round) -> Round:
    """``round`` with client ids that no client of the run has, so that attacks and staleness do not apply."""

    def among_others(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return round(key, hyper, state, cohort._replace(ids=-1 - cohort.ids))

    return among_others
