"""What a method is worth to clients that never took part in its training."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.numbers import check_numbers
from fljax.rounds.joining import Round, rounds_alone
from fljax.run.check import check_count, fields_of
from fljax.run.check_network import check_subjects, check_tested
from fljax.run.check_state import check_state
from fljax.run.evaluate import evaluate
from fljax.run.one_round import as_traced, split_key
from fljax.types import Algorithm, ClientData, Cohort, Federation, Key, Metrics, ModelTable, State


def evaluate_new_clients(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, *, n_rounds: int = 5
) -> Metrics:
    """Test metrics of clients that meet the trained server for the first time.

    A newcomer gets a model as the method allows: that of everyone, that of the cluster it chooses by its training data,
    or a personal one, which it trains for ``n_rounds`` rounds of the method's local work. The server never changes, and
    no newcomer matters to another.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its numbers.
        state: the final one of a run without these clients.
        newcomers: from `fljax.data.holdout.hold_out_clients`.
        key: the run's: parts that start equal for all clients start so for these.
        n_rounds: rounds of work for methods that keep something per client, 0 or more; a new number compiles nothing.

    Returns:
        As `fljax.run.evaluate.evaluate`, a client's entry at its place among the newcomers.

    Raises:
        ValueError: ``n_rounds`` is negative, ``newcomers`` change over the rounds or are not what the network takes, or
            ``hyper`` or ``state`` is not the method's.
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
        numbers = as_traced(hyper), state, newcomers, key, jnp.int32(n_rounds)
        check_state(algorithm, *numbers[:2], newcomers.train, key, same_clients=False)
        if "n_outputs" not in dict(algorithm.about.model):
            models = jax.eval_shape(partial(new_models, algorithm), *numbers[:2], newcomers.train, *numbers[3:])
            check_tested(algorithm.predict, models, newcomers.test, algorithm.loss)
        return _evaluate(algorithm, *numbers)


@partial(jax.jit, static_argnums=0)
def _evaluate(
    algorithm: Algorithm, hyper: Any, state: State, newcomers: Federation, key: Key, n_rounds: Array
) -> Metrics:
    models = new_models(algorithm, hyper, state, newcomers.train, key, n_rounds)
    return evaluate(algorithm.predict, models, newcomers.test, algorithm.loss)


def new_models(
    algorithm: Algorithm, hyper: Any, state: State, data: ClientData, key: Key, n_rounds: Array
) -> ModelTable:
    """The models that newcomers with the training rows ``data`` are tested with; arguments as above.

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
        deployed, wanted = models.row.shape[0], data.size.shape[0]
        raise ValueError(f"the method deploys to its own {deployed} clients, not to {wanted} new ones; give it a join")
    return models


def _of_strangers(round: Round) -> Round:
    """``round`` of participants whose numbers are nobody's, who so share nobody's attack or staleness."""

    def among_others(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return round(key, hyper, state, cohort._replace(ids=-1 - cohort.ids))

    return among_others
