"""The metric contract: what an accuracy means, for every method.

Every client of the federation, participant or not, is tested on its own test split with the model that the method
deploys to it. Averages over clients are ``*_macro``; averages weighted by test size are ``*_micro``.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.measure import Score, client_sums
from fljax.models.task import as_targets, task_of
from fljax.run.regression import Predict, evaluate_regression, mean_over
from fljax.types import Batch, ClientData, ExampleLoss, Metrics, ModelTable, Params


@partial(jax.jit, static_argnames=("predict", "loss"), inline=True)
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
        ``f1_micro`` (mean, and mean weighted by test size, of a client's F1 averaged over the classes that it has or is
        told to have), ``test_loss`` (macro), all ``()``; and per client ``client_accuracy``, ``client_f1``,
        ``client_loss``, ``(clients,)``. A client without test examples is NaN there and counts in no average, and so is
        one whose row is none of the table, such as a label of -1. Where a model gives NaN, ``test_loss`` is NaN.

        Of several labels at once (`fljax.models.task`) an accuracy is the share of labels told rightly, and F1 is
        averaged over labels; of a regression the metrics are those of `fljax.run.regression`.
    """
    task, data = task_of(loss), _of_those_with_a_model(models, data)
    if task == "regression":
        return evaluate_regression(predict, models, data, loss)
    sums = client_sums((_label_score if task == "labels" else _score)(predict, loss), models, data)
    size = data.size.astype(jnp.float32)
    n_examples = jnp.where(size > 0, size, jnp.nan)
    accuracy, mean_loss = sums[:, 0] / n_examples, sums[:, 1] / n_examples
    f1 = jnp.where(data.size > 0, _class_averaged_f1(*jnp.split(sums[:, 2:], 3, axis=1)), jnp.nan)
    return {
        "accuracy_macro": jnp.nanmean(accuracy),
        "accuracy_micro": _micro(accuracy, size),
        "accuracy_p10": jnp.nanpercentile(accuracy, 10.0),
        "f1_macro": jnp.nanmean(f1),
        "f1_micro": _micro(f1, size),
        "test_loss": mean_over(data, mean_loss),
        "client_accuracy": accuracy,
        "client_f1": f1,
        "client_loss": mean_loss,
    }


def _of_those_with_a_model(models: ModelTable, data: ClientData) -> ClientData:
    """``data`` without the examples of clients whose row the table does not have; a single row belongs to all."""
    n_rows = tree.n_rows(models.params)
    if n_rows == 1:
        return data
    return data._replace(size=jnp.where((models.row >= 0) & (models.row < n_rows), data.size, 0))


def _score(predict: Predict, loss: ExampleLoss) -> Score:
    """Per example: hit, loss, and one-hot rows of (class hit, class predicted, class true)."""

    def score(params: Params, batch: Batch) -> Array:
        logits = predict(params, batch.x)
        label, n_classes = jnp.argmax(logits, axis=-1), logits.shape[-1]
        hit = (label == batch.y).astype(jnp.float32)
        predicted, true = (jax.nn.one_hot(of, n_classes, dtype=jnp.float32) for of in (label, batch.y))
        columns = [hit[:, None], loss(logits, batch.y)[:, None], true * hit[:, None], predicted, true]
        return jnp.concatenate(columns, axis=1)

    return score


def _label_score(predict: Predict, loss: ExampleLoss) -> Score:
    """As `_score`, of several labels at once: an example's hit is the share of its labels told rightly."""

    def score(params: Params, batch: Batch) -> Array:
        outputs = predict(params, batch.x)
        predicted, true = (outputs > 0).astype(jnp.float32), as_targets(batch.y)
        hit = (predicted == true).astype(jnp.float32).mean(axis=1)
        columns = [hit[:, None], loss(outputs, batch.y)[:, None], true * predicted, predicted, true]
        return jnp.concatenate(columns, axis=1)

    return score


def _class_averaged_f1(hit: Array, predicted: Array, true: Array) -> Array:
    """Mean over a client's classes of 2 hit / (predicted + true): ``(clients, classes)`` counts to ``(clients,)``.

    Classes that the client neither has nor is told are left out, as scikit-learn does.
    """
    present = predicted + true > 0
    f1 = jnp.where(present, 2 * hit / jnp.where(present, predicted + true, 1.0), 0.0)
    return f1.sum(axis=1) / jnp.maximum(present.sum(axis=1), 1).astype(jnp.float32)


def _micro(value: Array, size: Array) -> Array:
    return jnp.where(size > 0, value * size, 0.0).sum() / size.sum()
