"""The scores of each client that a model has besides the metric contract (`fljax.scored`)."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from fljax.client.each_example import of_each_example
from fljax.metrics.regression import Predict
from fljax.models.task import Score
from fljax.types import ClientData, Metrics, ModelTable


def client_scores(
    predict: Predict, models: ModelTable, data: ClientData, scores: Sequence[Score], tested: Metrics
) -> Metrics:
    """``client_NAME`` (clients,), ``NAME_macro`` () and ``NAME_micro`` () of each of ``scores``.

    Args:
        predict: ``(params, x) -> outputs (batch, outputs)``.
        models: the deployed models.
        data: the examples of the tests.
        scores: the scores besides the metric contract.
        tested: the metrics of the contract: if a client's loss is NaN, its score is NaN, and so are the means.

    Raises:
        ValueError: a score does not return one number per example, or one per client.
    """
    if not scores:
        return {}

    def told(outputs: Array, y: Array, is_there: Array) -> Array:
        return jnp.stack([_of_client(score, outputs, y, is_there) for score in scores])

    values = of_each_example(lambda params, batch: predict(params, batch.x), models, data, 0.0, then=told)
    is_tested = data.size > 0
    is_broken = is_tested & jnp.isnan(tested["client_loss"])
    values = jnp.where((is_tested & ~is_broken)[:, None], values, jnp.nan)
    metrics = {}
    for i, score in enumerate(scores):
        value = values[:, i]
        size = jnp.where(jnp.isnan(value), 0, data.size).astype(jnp.float32)
        means = {"macro": jnp.nanmean(value), "micro": weighted(value, size)}
        metrics |= {f"{score.name}_{name}": jnp.where(is_broken.any(), jnp.nan, mean) for name, mean in means.items()}
        metrics[f"client_{score.name}"] = value
    return metrics


def weighted(value: Array, size: Array) -> Array:
    """The mean of ``value`` over clients, weighted by ``size``, (clients,) each: (). Clients of size 0 do not count."""
    return jnp.where(size > 0, value * size, 0.0).sum() / size.sum()


def _of_client(score: Score, outputs: Array, y: Array, is_there: Array) -> Array:
    """One client's score, ()."""
    returned = score.of(outputs, y, is_there) if score.of_all else score.of(outputs, y)
    shape = () if score.of_all else is_there.shape
    if jnp.shape(returned) != shape:
        expected = "one number per client, ()" if score.of_all else f"one number per example, (batch,) = {shape}"
        raise ValueError(f"score {score.name!r} returned an array {jnp.shape(returned)}; return {expected}")
    value = jnp.asarray(returned).astype(jnp.float32)
    return value if score.of_all else jnp.where(is_there, value, 0).sum() / is_there.sum(dtype=jnp.float32)
