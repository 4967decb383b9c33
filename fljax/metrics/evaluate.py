"""The metric contract: the meaning of accuracy, the same for every method.

Every client of the federation, participant or not, is tested on its own test split with the model that the method
deploys to it. Averages over clients are ``*_macro``; averages weighted by test size are ``*_micro``.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.checks.network import check_tested
from fljax.client.map import check_table
from fljax.client.measure import Score, client_sums
from fljax.client.objectives import checked_losses
from fljax.data.validation import check_common_size
from fljax.metrics.regression import Predict, evaluate_regression, mean_over
from fljax.metrics.scoring import client_scores, weighted
from fljax.models.task import as_targets, check_width, scores_of, task_of
from fljax.types import Batch, ClientData, ExampleLoss, Metrics, ModelTable, Params


def evaluate(
    predict: Predict,
    models: ModelTable,
    data: ClientData,
    loss: ExampleLoss = optax.softmax_cross_entropy_with_integer_labels,
) -> Metrics:
    """Test metrics of the deployed ``models`` on ``data``, where ``predict(params, x)`` gives one model's logits
    and ``loss(logits, labels)`` is what clients minimise.

    Returns:
        ``accuracy_macro``, ``accuracy_micro``, ``accuracy_p10`` (tenth percentile over clients), ``f1_macro``,
        ``f1_micro`` (mean, and mean weighted by test size, of a client's F1, averaged over the classes among its labels
        or predictions), ``test_loss`` (macro), all ``()``; and per client ``client_accuracy``, ``client_f1``,
        ``client_loss``, ``(clients,)``. A client without test examples, or without a model (row -1), is NaN there and
        counts in no average; a table of one row is the model of all clients, whatever their row numbers are. An example
        whose loss is NaN counts as predicted wrongly, and ``test_loss`` is NaN.

        With several labels at once (`fljax.models.task`) an accuracy is the share of labels predicted correctly, and F1
        is averaged over labels; in regression the metrics are those of `fljax.metrics.regression`. With the loss of a
        model made by `fljax.scored`, the metrics include its scores, as ``NAME_macro``, ``NAME_micro`` and
        ``client_NAME``.

    Raises:
        ValueError: the number of clients differs between the models and ``data``, a row number is out of range,
            ``data`` is no split, or its labels or examples do not suit ``loss`` and ``predict``.
    """
    check_given(models, data)
    check_tested(predict, models, data, loss)
    return _evaluate(predict, models, data, loss)


@partial(jax.jit, static_argnames=("predict", "loss"), inline=True)
def _evaluate(predict: Predict, models: ModelTable, data: ClientData, loss: ExampleLoss) -> Metrics:
    task, (models, data) = task_of(loss), matched(models, data)
    metrics = (evaluate_regression if task == "regression" else _evaluate_classes)(predict, models, data, loss)
    return metrics | client_scores(predict, models, data, scores_of(loss), metrics)


def _evaluate_classes(predict: Predict, models: ModelTable, data: ClientData, loss: ExampleLoss) -> Metrics:
    task = task_of(loss)
    sums = client_sums((_label_score if task == "labels" else _score)(predict, loss), models, data)
    size = data.size.astype(jnp.float32)
    n_examples = jnp.where(size > 0, size, jnp.nan)
    accuracy, mean_loss = sums[:, 0] / n_examples, sums[:, 1] / n_examples
    f1 = jnp.where(data.size > 0, _class_averaged_f1(*jnp.split(sums[:, 2:], 3, axis=1)), jnp.nan)
    return {
        "accuracy_macro": jnp.nanmean(accuracy),
        "accuracy_micro": weighted(accuracy, size),
        "accuracy_p10": jnp.nanpercentile(accuracy, 10.0),
        "f1_macro": jnp.nanmean(f1),
        "f1_micro": weighted(f1, size),
        "test_loss": mean_over(data, mean_loss),
        "client_accuracy": accuracy,
        "client_f1": f1,
        "client_loss": mean_loss,
    }


@checked_kinds
def check_given(models: ModelTable, data: ClientData) -> None:
    """Raises ValueError if ``models`` are no `ModelTable`, a row number is out of range, or ``data`` is no split or has
    one row for clients of different sizes.

    Traced row numbers and sizes are not checked; -1 means no model.
    """
    check_table(models)
    check_common_size("data", data)
    n_rows = tree.n_rows(models.params)
    if n_rows == 1 or isinstance(models.row, jax.core.Tracer):
        return
    if (is_beyond := (row := np.asarray(models.row)) >= n_rows).any():
        client = int(np.argmax(is_beyond))
        text = f"models.row of client {client} is {row[client]}"
        raise ValueError(f"{text}; choose 0 to {n_rows - 1}, or -1 for no model")


def matched(models: ModelTable, data: ClientData) -> tuple[ModelTable, ClientData]:
    """Matches models to clients: a single model is given to all clients of ``data``; else clients without a model have
    no examples in the returned data.

    Raises:
        ValueError: as `evaluate`.
    """
    n_rows = tree.n_rows(models.params)
    if n_rows == 1:
        return models._replace(row=jnp.zeros_like(data.size)), data
    if (n_model_clients := models.row.shape[0]) != (n_data_clients := data.n_clients):
        remedy = "give models of the same clients; for new clients use fljax.new_client_models"
        raise ValueError(f"there are models of {n_model_clients} clients, but data of {n_data_clients}; {remedy}")
    return models, data._replace(size=jnp.where((models.row >= 0) & (models.row < n_rows), data.size, 0))


def _score(predict: Predict, loss: ExampleLoss) -> Score:
    """Per example: hit, loss, and one-hot rows of (class hit, class predicted, class true)."""

    def score(params: Params, batch: Batch) -> Array:
        logits = predict(params, batch.x)
        losses = checked_losses(loss(logits, batch.y), batch.weight)
        label, n_classes = jnp.argmax(logits, axis=-1), logits.shape[-1]
        label = jnp.where(jnp.isnan(losses), -1, label)  # argmax would choose the first class that is NaN
        hit = (label == batch.y).astype(jnp.float32)
        predicted, true = (jax.nn.one_hot(classes, n_classes, dtype=jnp.float32) for classes in (label, batch.y))
        columns = [hit[:, None], losses[:, None], true * hit[:, None], predicted, true]
        return jnp.concatenate(columns, axis=1)

    return score


def _label_score(predict: Predict, loss: ExampleLoss) -> Score:
    """As `_score`, for several labels at once: an example's hit is the share of its labels predicted correctly."""

    def score(params: Params, batch: Batch) -> Array:
        outputs = predict(params, batch.x)
        check_width(outputs, batch.y)  # a user's loss may not check it
        losses = checked_losses(loss(outputs, batch.y), batch.weight)
        predicted, true = (outputs > 0).astype(jnp.float32), as_targets(batch.y)
        has_loss = ~jnp.isnan(losses)  # NaN would count as predicting every label absent, which most are
        predicted = jnp.where(has_loss[:, None], predicted, 0.0)
        hit = jnp.where(has_loss, (predicted == true).astype(jnp.float32).mean(axis=1), 0.0)
        columns = [hit[:, None], losses[:, None], true * predicted, predicted, true]
        return jnp.concatenate(columns, axis=1)

    return score


def _class_averaged_f1(hit: Array, predicted: Array, true: Array) -> Array:
    """Mean over a client's classes of 2 hit / (predicted + true): ``(clients, classes)`` counts to ``(clients,)``.

    Classes that are neither among the client's labels nor predicted are left out, as in scikit-learn.
    """
    is_present = predicted + true > 0
    f1 = jnp.where(is_present, 2 * hit / jnp.where(is_present, predicted + true, 1.0), 0.0)
    return f1.sum(axis=1) / jnp.maximum(is_present.sum(axis=1), 1).astype(jnp.float32)
