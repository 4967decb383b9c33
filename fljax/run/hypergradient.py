"""Derivatives of a whole run with respect to its hyperparameters, by forward-mode differentiation of all its rounds."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import check_run, fields_of
from fljax.checks.network import check_outputs, check_subjects
from fljax.choices import check_kind, unknown
from fljax.models.conv import as_defined
from fljax.numbers import as_dict, check_numbers
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Sampling
from fljax.run.one_round import as_traced
from fljax.run.privacy import with_target
from fljax.run.simulate import simulate
from fljax.types import Algorithm, Federation, Key

IN_STEPS = (
    *("accuracy", "f1", "ari", "attack_success"),
    *("auc", "average_precision", "balanced_accuracy", "top3", "top5"),
)
"""Beginnings of the names of metrics that count examples or clients: their derivatives are 0 wherever they exist."""


@checked_kinds
def hypergradient(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Key,
    n_rounds: int,
    *,
    of: str | Sequence[str] | None = None,
    metric: str = "test_loss",
    participation: float = 1.0,
    sampling: Sampling | None = None,
    dropout: float | None = None,
) -> tuple[Array, dict[str, Array]]:
    """A metric after the last round, and its derivatives with respect to hyperparameters, through all rounds.

    The derivatives are computed side by side with the run, in one program, which is compiled once for all values;
    together they take as long as a few runs. Choices stay as they are: who is sampled, which cluster is nearest, when a
    phase ends; a hyperparameter that only decides such choices has the derivative 0. After many rounds, or with a large
    learning rate, derivatives can become very large: they are true for a change that is small enough. They are NaN if a
    step of an optimiser of your own has no derivative: ``optax.adam(lr)`` where all gradients have been 0, but not
    ``optax.adam(lr, eps_root=1e-37)``, which makes the same steps.

    Args:
        algorithm: from `fljax.algorithms`, or your own.
        hyper: the algorithm's hyperparameters.
        federation: the clients and their data; `fljax.run.sweep.on_validation` puts the validation split in the place
            of the test split.
        key: all randomness comes from it.
        n_rounds: rounds to run.
        of: name or names of hyperparameters; None: all that are finite numbers.
        metric: metric of the test after the last round, one number per round, such as "test_loss".
        participation: as in `fljax.simulate`.
        sampling: as in `fljax.simulate`.
        dropout: as in `fljax.simulate`.

    Returns:
        The metric (), and ``{name: derivative ()}``.

    Raises:
        ValueError: as `fljax.simulate`; there are no names, one is not a hyperparameter, or it has no number; the
            metric is unknown, has more than one number per round, or is an accuracy or another score that counts,
            whose derivative is 0.
    """
    check_run(n_rounds, 1, dropout)
    check_numbers(hyper)
    check_subjects(algorithm, federation, key)
    draw = sampling_of(sampling, participation).of(federation.train.n_clients)
    given, hyper = hyper, with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    with fields_of(hyper, algorithm):
        check_outputs(algorithm, as_traced(hyper), federation, key)
    values = {name: jax.numpy.float32(value) for name, value in _chosen(hyper, of, given).items()}
    check_kind("metric", metric, str, "give a loss, such as 'test_loss'")
    if metric.startswith(IN_STEPS):
        raise ValueError(
            f"metric={metric!r} changes in steps, and its derivative is 0; give a loss, such as 'test_loss'"
        )
    # The reverse-mode rules of the fast convolutions have no forward mode; derivatives of optax's optimisers raise
    # floats to an int count.
    with as_defined(), jax.numpy_dtype_promotion("standard"):
        return _value_and_slopes(
            algorithm, draw.sampling, int(n_rounds), dropout, metric, values, as_traced(hyper), federation, key
        )


def _chosen(hyper: Any, of: str | Sequence[str] | None, given: Any) -> dict[str, float]:
    """The hyperparameters that are differentiated, of ``hyper``, that of the run, which may follow from the ``given``.

    Raises:
        ValueError: a name is not a hyperparameter, or it has no number.
    """
    numbers = {name: float(value) for name, value in as_dict(hyper).items() if value is not None and _is_number(value)}
    if of is None:
        return numbers
    names = [of] if isinstance(of, str) else list(of)
    if not names:
        raise ValueError(f"of={of!r} has no names; give some, such as ('lr',), or None for all")
    for name in names:
        if name not in as_dict(hyper):
            raise ValueError(f"of: {unknown('hyperparameter', name, as_dict(hyper))}")
        if name == "target_epsilon" and given.target_epsilon is not None:
            raise ValueError(
                f"of: {name} sets the noise before the run; give the noise, which has a derivative, instead"
            )
        if name not in numbers:
            raise ValueError(f"of: {name}={getattr(hyper, name)} has no derivative; give it a finite number")
    return {name: numbers[name] for name in names}


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and jax.numpy.ndim(value) == 0 and bool(jax.numpy.isfinite(value))


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _value_and_slopes(
    algorithm: Algorithm,
    sampling: Sampling,
    n_rounds: int,
    dropout: float | None,
    metric: str,
    values: dict[str, Array],
    hyper: Any,
    federation: Federation,
    key: Key,
) -> tuple[Array, dict[str, Array]]:
    def last(values: dict[str, Array]) -> tuple[Array, Array]:
        options: Any = {"sampling": sampling, "evaluate_every": n_rounds, "dropout": dropout}
        _, metrics = simulate(algorithm, hyper.replace(**values), federation, key, n_rounds, **options)
        of_rounds = {name: value for name, value in metrics.items() if value.shape == (n_rounds,)}
        if metric not in of_rounds:
            raise ValueError(f"metric: {unknown('number per round', metric, of_rounds)}")
        return of_rounds[metric][-1], of_rounds[metric][-1]

    slopes, value = jax.jacfwd(last, has_aux=True)(values)
    return value, slopes
