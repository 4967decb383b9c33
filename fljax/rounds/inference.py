"""What the clients' models predict for the server's own examples, and how often two clients agree (FLIS)."""

import jax.numpy as jnp
from jax import Array, lax

from fljax.client.outputs import client_outputs
from fljax.models.task import task_of
from fljax.placement import whole
from fljax.types import Cohort, Examples, Model, Stacked


def public_examples(public: Examples | None, n_public: int | None, method: str) -> Examples:
    """The first ``n_public`` of the server's public examples, or all if there are fewer or it is None.

    Raises:
        ValueError: the federation has none; the message names ``method``.
    """
    if public is None:
        raise ValueError(
            f"public is None but {method} compares clients on public data; give the federation public data, or choose "
            "another method"
        )
    return Examples(public.x[:n_public], public.y[:n_public])


def check_classifies(model: Model, method: str) -> None:
    """Raises ValueError if ``method``, which compares predicted classes, gets a model of another task."""
    if (task := task_of(model.loss)) != "classification":
        raise ValueError(f"{method}: the model's loss is of {task}; give a model of classification, or another method")


def predicted(model: Model, models: Stacked, cohort: Cohort, n_public: int, method: str) -> Array:
    """(cohort, n_public) float32: 1 + the class that each model predicts; 0 past the last public example."""
    public = public_examples(cohort.public, n_public, method)
    n = public.y.shape[0]
    answer = 1.0 + jnp.argmax(client_outputs(model, models, public, jnp.arange(n)), axis=-1).astype(jnp.float32)
    return jnp.pad(whole(answer), ((0, 0), (0, n_public - n)))


def agreement(answers: Array) -> Array:
    """(n, n) share of the public examples for which two clients predict the same class, from `predicted`.

    This is the cosine of their predictions as one-hot matrices, FLIS's inference similarity. A client of zeros, which
    has predicted nothing, agrees with nobody.
    """

    def with_all(answer: Array) -> Array:
        n_examples = jnp.maximum((answer > 0).sum(dtype=jnp.float32), 1)
        is_same = (answer[None] == answers) & (answer[None] > 0)
        return is_same.sum(axis=1, dtype=jnp.float32) / n_examples

    return lax.map(with_all, answers)
