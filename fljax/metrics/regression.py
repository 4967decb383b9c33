"""The metric contract of regression: squared and absolute error, and the share of variance that is explained."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from fljax.client.measure import Score, client_sums
from fljax.client.objectives import checked_losses
from fljax.data.federation import present
from fljax.models.task import as_targets, difference
from fljax.types import Batch, ClientData, ExampleLoss, Metrics, ModelTable, Params

Predict = Callable[[Params, Array], Array]
"""``(params, x) -> outputs (batch, outputs)`` of one model."""


def evaluate_regression(predict: Predict, models: ModelTable, data: ClientData, loss: ExampleLoss) -> Metrics:
    """Test metrics of deployed models that predict numbers; errors of several targets are averaged over the targets.

    Returns:
        ``mse_macro``, ``mse_micro``, ``mae_macro``, ``mae_micro`` (mean over clients, and weighted by test size, of the
        mean squared and mean absolute error), ``r2_macro`` and ``r2_p10`` (mean and tenth percentile over clients of
        ``1 - squared error / squared distance to the client's own mean``, averaged over the targets that vary; NaN for
        a client without such targets), ``r2_micro`` (the same over all test examples together), ``test_loss`` (macro),
        all ``()``; and per client ``client_mse``, ``client_mae``, ``client_r2``, ``client_loss``, ``(clients,)``. If a
        model predicts NaN, its client's metrics and the means of errors are NaN, ``r2_macro`` and ``r2_micro`` are
        -inf, and in ``r2_p10`` the client counts with an R2 of -inf.
    """
    sums = client_sums(_score(predict, loss), models, data)
    size = data.size.astype(jnp.float32)
    n = jnp.where(size > 0, size, jnp.nan)
    mse, mae, mean_loss = (sums[:, i] / n for i in range(3))
    r2, pooled = _explained(sums[:, 3:], data)
    is_broken = jnp.isnan(mse) & (size > 0)
    worst = jnp.where(is_broken, -jnp.inf, r2)  # a model that predicts NaN counts as the worst
    lowest = jnp.finfo(worst.dtype).min
    p10 = jnp.nanpercentile(jnp.maximum(worst, lowest), 10.0)  # with -inf it would interpolate to -inf * 0, a NaN
    return {
        "mse_macro": mean_over(data, mse),
        "mse_micro": sums[:, 0].sum() / size.sum(),
        "mae_macro": mean_over(data, mae),
        "mae_micro": sums[:, 1].sum() / size.sum(),
        "r2_macro": jnp.nanmean(worst),
        "r2_micro": jnp.where(is_broken.any(), -jnp.inf, pooled),
        "r2_p10": jnp.where(p10 < lowest / 100, -jnp.inf, p10),
        "test_loss": mean_over(data, mean_loss),
        "client_mse": mse,
        "client_mae": mae,
        "client_r2": r2,
        "client_loss": mean_loss,
    }


def mean_over(data: ClientData, value: Array) -> Array:
    """The mean over the clients that have examples, (); NaN if one of their values is NaN."""
    counts = data.size > 0
    return jnp.where(counts, value, 0).sum() / counts.sum(dtype=jnp.float32)


def _score(predict: Predict, loss: ExampleLoss) -> Score:
    """Per example: squared error, absolute error, loss, and the squared error of each target."""

    def score(params: Params, batch: Batch) -> Array:
        outputs = predict(params, batch.x)
        error = difference(outputs, batch.y)
        squared = jnp.square(error)
        losses = checked_losses(loss(outputs, batch.y), batch.weight)
        means = jnp.stack([squared.mean(axis=1), jnp.abs(error).mean(axis=1), losses], axis=1)
        return jnp.concatenate([means, squared], axis=1)

    return score


def _explained(squared: Array, data: ClientData) -> tuple[Array, Array]:
    """R2 of each client and of all examples together, from squared errors (clients, targets), averaged over targets.

    Means are subtracted before squaring, because sums of squares of large targets would lose the variance in float32.
    """
    is_example = present(data)[..., None].astype(jnp.float32)
    y = as_targets(data.pool.y)[data.index]  # (clients, capacity, targets)
    n = is_example.sum(axis=1)  # (clients, 1)
    mean = (y * is_example).sum(axis=1) / jnp.maximum(n, 1)
    variation = (jnp.square(y - mean[:, None]) * is_example).sum(axis=1)
    overall_mean = (mean * n).sum(axis=0) / jnp.maximum(n.sum(), 1)
    overall_variation = (jnp.square(y - overall_mean[None, None]) * is_example).sum(axis=(0, 1))
    rounding = n * jnp.square(1e-6 * mean), n.sum() * jnp.square(1e-6 * overall_mean)
    return _r2(squared, variation, rounding[0]), _r2(squared.sum(axis=0), overall_variation, rounding[1])


def _r2(squared: Array, variation: Array, rounding: Array) -> Array:
    """R2 averaged over the targets that vary.

    ``rounding``: the variation that equal values may have by rounding: the mean of ten times 0.1 is not 0.1 in float32.
    """
    varies = variation > rounding
    r2 = jnp.where(varies, 1 - squared / jnp.where(varies, variation, 1), 0).sum(axis=-1)
    return jnp.where(varies.any(axis=-1), r2 / jnp.maximum(varies.sum(axis=-1, dtype=jnp.float32), 1), jnp.nan)
