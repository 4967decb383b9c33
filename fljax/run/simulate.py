"""A run as a `lax.scan` over rounds: pure, so that it can be compiled, swept, resumed, and differentiated forwards."""

from collections.abc import Callable
from functools import cache, partial
from inspect import unwrap
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.checks.arguments import check_run, fields_of
from fljax.checks.network import check_outputs, check_subjects
from fljax.checks.state import begun
from fljax.devices.hosts import gathered
from fljax.devices.programs import LEVELS, Level, check_level, options_of
from fljax.metrics.agreement import ari_of_rounds, truth_of
from fljax.metrics.churn import churn_of_rounds
from fljax.numbers import check_numbers
from fljax.rounds.draw_checks import check_ids
from fljax.rounds.memory import remembering, without_memory
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.round_metrics import check_clusters
from fljax.rounds.sampling import Draw, Sampling
from fljax.rounds.timing import OF_SECONDS
from fljax.run.one_round import as_traced, is_due, run_round, split_key
from fljax.run.privacy import epsilons, with_target
from fljax.types import Algorithm, Federation, Key, Metrics, State


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
    compile: Level = "full",
) -> tuple[State, Metrics]:
    """Runs ``algorithm`` for ``n_rounds`` rounds, compiled as one program; on one device, or on those of
    `fljax.devices.mesh.over_devices` around the call.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: the algorithm's hyperparameters; new values do not recompile.
        federation: the clients and their data.
        key: all randomness comes from it.
        n_rounds: rounds to run.
        participation: share of the clients in each round, in (0, 1].
        sampling: the sampling of clients, see `fljax.rounds.sampling`; None: a share ``participation``, uniformly.
        evaluate_every: test after every so many rounds, and always after the last.
        dropout: probability that a participant drops out of a round; None: nobody drops out. If all participants would
            drop out, one stays, except with Poisson sampling.
        compile: "full" has the fastest rounds, "fast" starts soonest, "medium" is in between; they differ in the last
            bits. It has no effect if the caller traces this function.

    Returns:
        The final state, and the metrics with a leading axis over rounds: those of the algorithm (participants' values
        are in the order of client ids, see ``ids``), and those of `fljax.evaluate`, NaN in rounds without
        a test. Clustered methods also have ``client_row`` (rounds, clients), the row number of the model with which
        each client was tested, and ``churn``, the share of participants that changed cluster (`fljax.metrics.churn`);
        private methods have ``epsilon`` so far (`fljax.run.privacy`); clients with a clock have ``simulated_seconds``
        of each round (`fljax.rounds.clock`), except under a trace; a deadline has ``n_missing``, the number of sampled
        clients that were not there; stragglers (`fljax.rounds.effort`) have ``effort``, each participant's share of its
        work.

    Raises:
        ValueError: a number is out of its range, ``hyper`` is not the method's, a user's function returns something
            wrong, or ``compile`` is none of the levels.
    """
    check_run(n_rounds, evaluate_every, dropout)
    check_level(compile, LEVELS)
    check_numbers(hyper)
    check_subjects(algorithm, federation, key)
    n_clients = federation.train.n_clients
    draw = sampling_of(sampling, participation).of(n_clients)
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    numbers = as_traced(hyper), federation, key, as_traced(dropout)
    with fields_of(hyper, algorithm):
        check_outputs(algorithm, *numbers[:3])
        has_tracers = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(numbers))
        program = _simulate if has_tracers or compile == "full" else _simulated_at(compile)
        with_memory = remembering(algorithm, draw.sampling.memory)
        state, metrics = program(with_memory, draw, int(n_rounds), int(evaluate_every), *numbers)
    is_traced = isinstance(metrics["ids"], jax.core.Tracer)
    if not is_traced:
        check_ids(gathered({"ids": metrics["ids"]})["ids"], n_clients)
    if "label" in metrics and not is_traced:
        labelled = gathered({name: metrics[name] for name in ("ids", "active", "label")})
        check_clusters(labelled)
        metrics["churn"] = jnp.asarray(churn_of_rounds(labelled, n_clients)[0])
        if (truth := truth_of(federation)) is not None:
            metrics["ari"] = jnp.asarray(ari_of_rounds(labelled, truth))
    epsilon = epsilons(hyper, draw.sampling, algorithm.about.work, n_rounds)
    if draw.sampling.timing is not None and not is_traced:
        names = [name for name in OF_SECONDS if name in metrics]
        seconds = draw.sampling.timing.of_rounds(0, gathered({name: metrics[name] for name in names}))
        metrics["simulated_seconds"] = jnp.asarray(seconds, jnp.float32)
    state = without_memory(state)
    return state, metrics if epsilon is None else metrics | {"epsilon": jnp.asarray(epsilon)}


@cache
def _simulated_at(level: Level) -> Callable[..., tuple[State, Metrics]]:
    """`_simulate`, compiled at another level."""
    return jax.jit(unwrap(_simulate), static_argnums=(0, 1, 2, 3), compiler_options=options_of(level))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _simulate(
    algorithm: Algorithm,
    draw: Draw | int,
    n_rounds: int,
    evaluate_every: int,
    hyper: Any,
    federation: Federation,
    key: Key,
    dropout: Array | None,
) -> tuple[State, Metrics]:
    state = begun(algorithm.init, split_key(key).init, hyper, federation.train)

    def tested(state: State, round: Array) -> tuple[State, Metrics]:
        return run_round(algorithm, draw, hyper, federation, key, dropout, state, round, due[round])

    due = is_due(jnp.arange(n_rounds), evaluate_every, n_rounds)
    return lax.scan(tested, state, jnp.arange(n_rounds, dtype=jnp.int32))
