"""What a method gives clients that never took part in its training, and what it is worth to them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.numbers import check_numbers
from fljax.rounds.joining import Round, rounds_alone
from fljax.run.check import check_count, fields_of
from fljax.run.check_network import check_subjects
from fljax.run.check_state import check_state
from fljax.run.evaluate import evaluate
from fljax.run.one_round import as_traced, split_key
from fljax.types import Algorithm, ClientData, Cohort, Federation, Key, Metrics, ModelTable, State


def evaluate_new_clients(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, *, n_rounds: int = 5
) -> Metrics:
    """Test metrics of clients that meet the trained server for the first time, with the models of `new_client_models`.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its numbers.
        state: the final one of a run without these clients.
        newcomers: from `fljax.data.holdout.hold_out_clients`.
        key: the run's.
        n_rounds: see `new_client_models`.

    Returns:
        As `fljax.run.evaluate.evaluate`, a client's entry at its place among the newcomers.

    Raises:
        ValueError: as `new_client_models`, or the newcomers' test examples are not what the network takes.
    """
    models = new_client_models(algorithm, hyper, state, newcomers, key, n_rounds=n_rounds)
    return evaluate(algorithm.predict, models, newcomers.test, algorithm.loss)


def new_client_models(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, *, n_rounds: int = 5
) -> ModelTable:
    """The models of clients that meet the trained server for the first time.

    A newcomer gets a model as the method allows: that of everyone, that of the cluster it chooses by its training data,
    or a personal one, which it trains for ``n_rounds`` rounds of the method's local work. The server never changes, and
    no newcomer matters to another.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its numbers.
        state: the final one of a run without these clients.
        newcomers: from `fljax.data.holdout.hold_out_clients`; of their examples those for training count alone.
        key: the run's: parts that start equal for all clients start so for these.
        n_rounds: rounds of work for methods that keep something per client, 0 or more; a new number compiles nothing.

    Returns:
        Models and who holds which, a client's row at its place among the newcomers.

    Raises:
        ValueError: ``n_rounds`` is negative, ``newcomers`` change over the rounds or are not what the network takes,
            ``hyper`` or ``state`` is not the method's, or the method has models for its own clients alone.
    """
    check_count("n_rounds", n_rounds, least=0)
    check_subjects(algorithm, newcomers, key)
    if newcomers.stages is not None:
        raise ValueError(
            "newcomers change over the rounds, and would be met as before the first of them; give them as they are in "
            "the run's last: fljax.drift.at(newcomers, n_rounds - 1)"
        )
    check_numbers(hyper)
    with fields_of(hyper, algorithm):
        numbers = as_traced(hyper), state, newcomers.train, key, jnp.int32(n_rounds)
        check_state(algorithm, *numbers[:4], same_clients=False)
        return new_models(algorithm, *numbers)


@partial(jax.jit, static_argnums=0)
def new_models(
    algorithm: Algorithm, hyper: Any, state: State, data: ClientData, key: Key, n_rounds: Array
) -> ModelTable:
    """The models of newcomers with the training rows ``data``; arguments as above.

    Raises:
        ValueError: the method knows the models of its own clients only and has no `Algorithm.join`.
    """
    keys = split_key(key)
    key_rounds, key_deploy = jax.random.split(keys.deploy)
    if algorithm.join is not None:
        return algorithm.join(key_rounds, hyper, state, data, n_rounds)
    begun = State(state.server, algorithm.init(keys.init, hyper, data).clients)
    if jax.tree.leaves(begun.clients):
        begun = rounds_alone(_of_strangers(algorithm.round), key_rounds, hyper, begun, data, n_rounds)
    models = algorithm.deploy(key_deploy, hyper, begun, data)
    if models.row.shape != data.size.shape:
        deployed, wanted = models.row.shape[0], data.n_clients
        raise ValueError(f"the method deploys to its own {deployed} clients, not to {wanted} new ones; give it a join")
    return models


def _of_strangers(round: Round) -> Round:
    """``round`` of participants whose numbers are nobody's, who so share nobody's attack or staleness."""

    def among_others(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return round(key, hyper, state, cohort._replace(ids=-1 - cohort.ids))

    return among_others
