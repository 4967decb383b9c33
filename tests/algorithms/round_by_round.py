"""Runs for the laws of methods: `simulate`'s rounds one after another, by programs that cost half to compile.

What a law compares is the method's rounds. The program of one round, of its deployed models' test and of the first
state are compiled apart, so that runs of any length share them, and a test that looks at the final state alone compiles
no test of models. Those that draw the cohort and order its metrics serve all methods. That `simulate` is these rounds,
bit for bit, is a test of its own (`test_round_by_round.py`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax import tree
from fljax.checks.arguments import fields_of
from fljax.drift.stages import at
from fljax.metrics.evaluate import evaluate
from fljax.numbers import check_numbers
from fljax.rounds.cohort import cohort_of, sample_cohort
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.round_metrics import round_metrics
from fljax.rounds.sampling import Sampling
from fljax.run.one_round import as_traced, is_due, round_keys, round_of_cohort, run_round, split_key
from fljax.types import Algorithm, Cohort, Federation, Key, State


class _Round(NamedTuple):
    """All that a round needs of a method, so that methods that differ elsewhere share its program."""

    round: Callable


class _Drawn(NamedTuple):
    """What a method's round and `round_metrics` are given of a round, whoever the method is."""

    federation: Federation
    key: Key
    cohort: Cohort


class _Tested(NamedTuple):
    """All that the test of deployed models needs of a method."""

    deploy: Callable
    predict: Callable
    loss: Callable


@cache
def jitted(function: Callable) -> Callable:
    """A method's ``round`` or ``deploy``, compiled once for all who ask: op by op is many small programs."""
    if function.__name__ == "init":  # it mostly copies `model.init`, whose program all methods share
        return lambda key, hyper, *arguments: function(key, as_traced(hyper), *arguments)
    compiled = jax.jit(function)
    return lambda key, hyper, *arguments: compiled(key, as_traced(hyper), *arguments)


@partial(jax.jit, static_argnums=0)
def _drawn(draw: Any, federation: Federation, key: Key, dropout, round) -> _Drawn:
    current_federation, keys = at(federation, round), round_keys(key, round)
    cohort = cohort_of(keys.cohort, round, current_federation, draw, dropout)
    return _Drawn(current_federation, keys.server, cohort)


def drawn_cohort(federation: Federation, key: Key, round: int, participation: float, dropout: float | None) -> Cohort:
    """The cohort of a round of `simulate` with the run's ``key``, by the program that draws it there."""
    draw = sampling_of(None, participation).of(federation.train.n_clients)
    return _drawn(draw, federation, key, as_traced(dropout), np.int32(round)).cohort


@partial(jax.jit, static_argnums=0)
def _of_cohort(method: _Round, hyper: Any, key: Key, state: State, cohort: Cohort):
    return round_of_cohort(method, hyper, key, state, cohort)


_metrics = jax.jit(round_metrics)


@partial(jax.jit, static_argnums=(0, 1))
def _in_one_program(method: _Round, draw: Any, hyper: Any, federation: Federation, key: Key, dropout, state, round):
    return run_round(method, draw, hyper, federation, key, dropout, state, round)


def _one_round(method: _Round, draw: Any, hyper: Any, federation: Federation, key: Key, dropout, state: State, round):
    if not isinstance(draw, int) and (draw.sampling.by_loss or draw.sampling.memory is not None):
        return _in_one_program(method, draw, hyper, federation, key, dropout, state, round)
    drawn = _drawn(draw, federation, key, dropout, round)
    next_state, metrics = _of_cohort(method, hyper, drawn.key, state, drawn.cohort)
    return next_state, _metrics(metrics, drawn.cohort, drawn.federation)


@partial(jax.jit, static_argnums=0)
def _one_test(method: _Tested, hyper: Any, federation: Federation, key: Key, state: State):
    deployed = method.deploy(split_key(key).deploy, hyper, state, federation.train)
    return evaluate(method.predict, deployed, federation.test, method.loss)


def one_round(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, state: State, round: int):
    """The round of that number with everyone in it, from any state: (state, metrics)."""
    arguments = (as_traced(hyper), federation, key, None, state, np.int32(round))
    return _one_round(_Round(algorithm.round), federation.train.n_clients, *arguments)


def scores(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, state: State) -> dict[str, jax.Array]:
    """The metrics of the models that are deployed from a state."""
    method = _Tested(algorithm.deploy, algorithm.predict, algorithm.loss)
    return _one_test(method, as_traced(hyper), federation, key, state)


def written_out(algorithm: Algorithm, hyper: Any, federation: Federation) -> str:
    """The traced program of the first state, a round with half of the clients, and what is deployed.

    Methods of equal texts are the same, whatever they are given; that takes no compiling.
    """

    def program(key, hyper, federation):
        state = algorithm.init(key, hyper, federation.train)
        cohort = sample_cohort(key, np.int32(0), federation, federation.train.n_clients // 2, None)
        rows = State(state.server, tree.take(state.clients, cohort.ids))
        return state, algorithm.round(key, hyper, rows, cohort), algorithm.deploy(key, hyper, state, federation.train)

    return str(jax.make_jaxpr(program)(jax.random.key(0), as_traced(hyper), federation))


class Rounds(dict):
    """Metrics with a leading axis over rounds; those of the deployed models are computed when one is asked for."""

    def __init__(self, metrics: dict[str, np.ndarray], test: Callable[[int], dict], due: np.ndarray):
        super().__init__(metrics)
        self._test, self._due = test, due

    def __missing__(self, name: str) -> np.ndarray:
        metrics = {round: jax.device_get(self._test(int(round))) for round in np.flatnonzero(self._due)}
        any_metrics = next(iter(metrics.values()))
        untested_metrics = jax.tree.map(
            lambda value: np.full(np.shape(value), np.nan, np.asarray(value).dtype), any_metrics
        )
        self.update(_stacked([metrics.get(round, untested_metrics) for round in range(len(self._due))]))
        if name not in self:
            raise KeyError(name)
        return self[name]


def _stacked(rows: list[dict]) -> dict[str, np.ndarray]:
    return jax.tree.map(lambda *values: np.stack(values), *rows)


def simulate(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    evaluate_every: int = 1,
    dropout: float | None = None,
) -> tuple[State, Rounds]:
    """What `fljax.simulate` returns, as NumPy's arrays and without ``churn``."""
    check_numbers(hyper)
    hyper, draw = as_traced(hyper), sampling_of(sampling, participation).of(federation.train.n_clients)
    with fields_of(hyper, algorithm):
        state = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
        states, rows = [], []
        for round in range(n_rounds):
            arguments = (hyper, federation, key, as_traced(dropout), state, np.int32(round))
            state, metrics = _one_round(_Round(algorithm.round), draw, *arguments)
            states.append(state)
            rows.append(metrics)
    due = np.array([is_due(round, evaluate_every, n_rounds) for round in range(n_rounds)])
    test = lambda round: scores(algorithm, hyper, federation, key, states[round])  # noqa: E731
    return state, Rounds(_stacked(jax.device_get(rows)), test, due)
