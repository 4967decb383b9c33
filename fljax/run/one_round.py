"""One round of a run, the same for every driver: sampling, the method's round, its test; and the random keys."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.checks.effort import check_effort
from fljax.checks.state import begun, deployed
from fljax.client.sample import fresh_examples
from fljax.data.federation import select
from fljax.drift.stages import at
from fljax.keys import descend
from fljax.metrics.evaluate import evaluate
from fljax.metrics.headline import VALIDATION
from fljax.metrics.losses import client_losses
from fljax.models.scored import is_validated
from fljax.placement import on_device, whole
from fljax.rounds.check_like import check_like
from fljax.rounds.cohort import CohortKeys, cohort_of
from fljax.rounds.memory import Seen, counted, memory_of, seconds_of, updated, with_memory, without_memory
from fljax.rounds.round_metrics import ROW, round_metrics
from fljax.rounds.sampling import Draw, Sampling
from fljax.types import Algorithm, ClientData, Cohort, Federation, Key, Metrics, ModelTable, State

_EXAMPLES = 0x65786D70
"""Folded into a round's key for the examples on which clients compute their losses."""


class Keys(NamedTuple):
    """One run key, split by use."""

    init: Key
    cohort: Key  # the sampling, and the participants' own randomness
    server: Key
    deploy: Key


class RoundKeys(NamedTuple):
    """The keys of a round: `Keys.cohort` and `Keys.server` with its number folded in."""

    cohort: CohortKeys
    server: Key


def run_round(
    algorithm: Algorithm,
    draw: Draw | int,
    hyper: Any,
    federation: Federation,
    key: Key,
    dropout: Array | None,
    state: State,
    round: Array,
    due: Array | None = None,
) -> tuple[State, Metrics]:
    """One round of a run with ``key``: sample the cohort and run its `round_of_cohort`.

    The metrics are those of the round and, unless ``due`` is None, of `test_round`.

    Raises:
        ValueError: as in `round_of_cohort` and `round_metrics`.
    """
    current_federation = at(federation, round)
    keys = round_keys(key, round)
    memory, state = memory_of(state), without_memory(state)

    def losses(ids: Array, data: ClientData, of: Callable[[Array], Array] | None = None) -> Array:
        deploy_key, train = key_for("deploy", key), current_federation.train
        return client_losses(algorithm, hyper, deploy_key, state, train, ids, data, of)

    def loss(ids: Array, examples: int | None) -> Array:
        data = select(current_federation.train, ids)
        if examples is not None:
            drawn_by = descend(jax.random.fold_in(keys.cohort.ids, _EXAMPLES), ids)
            data = fresh_examples(drawn_by, data, examples)
        return losses(ids, data)

    with jax.named_scope("cohort"):  # `fljax.run.profile` finds the parts by these names
        cohort = cohort_of(keys.cohort, round, current_federation, draw, dropout, loss, memory)
    next_state, metrics = round_of_cohort(algorithm, hyper, keys.server, state, cohort)
    metrics = round_metrics(metrics, cohort, current_federation)
    sampling = None if isinstance(draw, int) else draw.sampling
    if sampling is not None and sampling.memory is not None:
        with jax.named_scope("cohort"):
            seen = seen_of(sampling, round, metrics, current_federation.train, losses)
            memory, metrics = updated(sampling.memory, memory, seen), counted(metrics, sampling.memory)
    test_metrics = {}
    if due is not None:
        deploy = key_for("deploy", key)
        test_metrics = test_round(
            algorithm, hyper, federation, deploy, next_state, round, due, has_clusters="label" in metrics
        )
    if duplicates := [name for name in metrics if name in test_metrics]:
        raise ValueError(f"a round returned a metric {duplicates[0]!r}, which its test has too; give it another name")
    return next_state if memory is None else with_memory(next_state, memory), metrics | test_metrics


def round_of_cohort(algorithm: Algorithm, hyper: Any, key: Key, state: State, cohort: Cohort) -> tuple[State, Metrics]:
    """The round of a cohort that was sampled: gather its rows of the client state, run, put them back.

    Only rows of active clients change. ``key`` is the server's of the round. The metrics are as the method returns
    them.

    Raises:
        ValueError: the returned state differs in structure from the one before, or clients ignore the effort that a
            straggler has.
    """
    rows = tree.take(state.clients, cohort.ids)
    if cohort.effort is not None:
        check_effort(partial(algorithm.round, key, hyper, State(state.server, rows)), cohort)
    with jax.named_scope("round"):
        returned = algorithm.round(key, hyper, State(state.server, rows), cohort)
    if not isinstance(returned, tuple) or isinstance(returned, State) or len(returned) != 2:  # a State is a pair too
        kind = f"{len(returned)} things" if type(returned) is tuple else f"a {type(returned).__name__}"
        raise ValueError(f"a round returned {kind}; return a State and the metrics")
    new_state, metrics = returned
    check_like("a round returned a state", new_state, State(state.server, rows))
    rows = tree.where(cohort.active, tree.as_before(new_state.clients, rows), rows)
    next_state = State(tree.as_before(new_state.server, state.server), tree.put(state.clients, cohort.ids, rows))
    return next_state, metrics


def seen_of(sampling: Sampling, round: Array, metrics: Metrics, data: ClientData, losses: Callable[..., Array]) -> Seen:
    """What the server has seen of a round's participants, from the round's `round_metrics`."""
    ids = metrics["ids"]
    participants = select(data, ids)
    return Seen(
        round,
        ids,
        metrics["active"],
        participants.size,
        seconds_of(None if sampling.timing is None else sampling.timing.seconds, ids),
        metrics["loss"],
        lambda of: losses(ids, participants, of),
    )


def test_round(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    state: State,
    round: Array,
    due: Array,
    has_clusters: bool,
) -> Metrics:
    """The test metrics in ``round`` of the models deployed with ``key`` if the test is ``due``, else NaN.

    If the method ``has_clusters``, they include the row number of the model with which each client was tested.
    """
    federation = at(federation, round)

    @partial(jax.jit, inline=True)  # so that it is traced once for its shapes and for its values
    def test(state: State) -> Metrics:
        models = deployed(algorithm.deploy, key, hyper, state, federation.train)
        metrics = evaluate(algorithm.predict, models, federation.test, algorithm.loss)
        if has_clusters:
            metrics[ROW] = models.row.astype(jnp.float32)  # a float like all test metrics, NaN without a test
        if is_validated(algorithm.loss):
            metrics |= _validation(algorithm, models, federation)
        if federation.triggered is None:
            return metrics
        triggered = federation.triggered
        if federation.there is not None:  # clients that are not there are not tested
            triggered = triggered._replace(size=jnp.where(federation.there, triggered.size, 0))
        triggered_metrics = evaluate(algorithm.predict, models, triggered, algorithm.loss)
        return metrics | {"attack_success": triggered_metrics["accuracy_micro"]}

    def skip(state: State) -> Metrics:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), jax.eval_shape(test, state))

    with jax.named_scope("test"):
        return lax.cond(due, test, skip, state)


def _validation(algorithm: Algorithm, models: ModelTable, federation: Federation) -> Metrics:
    """Means over clients of their tests on their validation splits; clients without test examples are left out."""
    assert federation.val is not None
    validation = federation.val._replace(size=jnp.where(federation.test.size > 0, federation.val.size, 0))
    metrics = evaluate(algorithm.predict, models, validation, algorithm.loss)
    return {VALIDATION + name.removeprefix("test_"): value for name, value in metrics.items() if value.ndim == 0}


def is_due(round: Array | np.ndarray, evaluate_every: int | Array, n_rounds: int | Array) -> Any:
    """Whether a round is tested: every ``evaluate_every``-th, and the last."""
    return ((round + 1) % evaluate_every == 0) | (round + 1 == n_rounds)


def due_rounds(evaluate_every: int, n_rounds: int) -> Array:
    """(n_rounds,) bool: `is_due` of each round of a run."""
    return jnp.asarray(is_due(np.arange(n_rounds), evaluate_every, n_rounds))


def split_key(key: Key) -> Keys:
    """The run's key split by use. Round r folds r into the key of a use, so a run in chunks equals a whole run."""
    return Keys(*(key_for(use, key) for use in Keys._fields))


def key_for(use: str, key: Key) -> Key:
    """The key of one field of `Keys`; it does not depend on which other keys are derived."""
    return jax.random.fold_in(key, Keys._fields.index(use))


def round_keys(key: Key, round: Array) -> RoundKeys:
    """The keys of round ``round`` of a run with ``key``."""
    cohort, server = (Keys._fields.index(use) for use in ("cohort", "server"))
    n_cohort_keys = len(CohortKeys._fields)
    use, depth = np.array([cohort] * n_cohort_keys + [server]), np.array([3] * n_cohort_keys + [2])
    *cohort_keys, server_key = descend(key, use, round, np.array([*range(n_cohort_keys), 0]), depth=depth)
    return RoundKeys(CohortKeys(*cohort_keys), server_key)


@partial(jax.jit, static_argnums=0)
def first_state(init: Callable[..., State], key: Key, hyper: Any, data: ClientData) -> State:
    """A method's first state from the run's key; whole on every device, as rounds take and return it."""
    return whole(begun(init, split_key(key).init, hyper, data))


def shapes_of_state(init: Callable[..., State], key: Key, hyper: Any, data: ClientData) -> Any:
    """The shapes of `first_state`; nothing is computed."""
    return jax.eval_shape(partial(first_state, init), key, hyper, data)


@partial(jax.jit, static_argnums=0)
def last_models(deploy: Callable[..., ModelTable], key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
    """The models of the clients after a run with ``key``."""
    return deployed(deploy, split_key(key).deploy, hyper, state, data)


def as_traced(numbers: Any) -> Any:
    """Every number as a strongly typed float32 array: `int`, `float` and NumPy scalars share one compilation."""
    return jax.tree.map(lambda value: on_device(value, jnp.float32), numbers)
