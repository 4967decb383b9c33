"""Additional metrics of a model's tests: scores by name, the user's own scores, and the validation split."""

import inspect
from collections.abc import Callable

from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import unknown
from fljax.models.task import Score, Task, scores_of, task_of
from fljax.scores import SCORES
from fljax.scores.tasks import tasks_of
from fljax.types import ExampleLoss, Model

CONTRACT = ("accuracy", "f1", "loss", "mse", "mae", "r2", "test", "row")
"""Names in the metric contract: of metrics of each client, or of the beginnings of metrics' names."""


@checked_kinds
def scored(model: Model, *scores: str | Callable[..., Array], **named: Callable[..., Array]) -> Model:
    """The model with additional ``scores`` in all tests of its clients: in runs, sweeps and comparisons.

    A score with two arguments, ``(outputs, y) -> (batch,)``, is computed per example and averaged over a client's
    examples. A score with three arguments, ``(outputs, y, is_there) -> ()``, is computed from all examples of a client
    at once: outputs (capacity, classes), ``y`` (capacity,), with padding where ``is_there`` (capacity,) is False.
    Outputs are those of the network: logits, or a regression's predictions. Scores are traced once and run for all
    clients, so they must use `jax.numpy`.

    A score is reported as ``client_NAME`` (clients,), ``NAME_macro`` (its mean over clients) and ``NAME_micro``
    (weighted by the numbers of test examples). Both means leave out clients whose score is NaN, such as an area under a
    curve with one class only. If a client's model outputs NaN, its score and both means are NaN, as is ``test_loss``.

    Args:
        model: the network; its task (`fljax.regression`, `fljax.multi_label`) may be set before or after.
        *scores: names in `fljax.SCORES`, or functions, whose names become the scores' names.
        **named: functions by the name of the score: ``second=lambda outputs, y: ...``.

    Raises:
        ValueError: a name is unknown, reserved or given twice, or a score is not a function of two or three arguments.
            A score for another task than the model's is rejected when it is tested.
    """
    by_name = {score.name: score for score in scores_of(model.loss)}
    named_scores = [(None, score) for score in scores] + list(named.items())
    for name, score in named_scores:
        checked = _score(score, name)
        if checked.name in by_name:
            raise ValueError(f"score {checked.name!r} is given twice; leave one out, or give it another name")
        by_name[checked.name] = checked
    return model._replace(loss=_as_task(model)._replace(scores=tuple(by_name.values())))


@checked_kinds
def validated(model: Model) -> Model:
    """The model with tests on the clients' validation splits too, in each round that is tested.

    Runs then have ``val_accuracy_macro``, ``val_loss`` and so on, named as the test metrics with ``val_`` before. These
    select the best round without use of the test examples, so that the test accuracy of this round can be reported. The
    federation must have a validation split (``val_fraction`` of a partition).

    Raises:
        ValueError: ``model`` is not a `Model`.
    """
    return model._replace(loss=_as_task(model)._replace(on_validation=True))


def is_validated(loss: ExampleLoss) -> bool:
    """Whether a model with this loss is tested on the validation split too."""
    return isinstance(loss, Task) and loss.on_validation


def check_scores(loss: ExampleLoss) -> None:
    """Raises ValueError if a model with this loss has a score for another task."""
    task = task_of(loss)
    for score in scores_of(loss):
        tasks = tasks_of(score.of)
        if tasks is not None and task not in tasks:
            raise ValueError(f"score {score.name!r} is for {' or '.join(tasks)}, not for {task}; choose another score")


def _as_task(model: Model) -> Task:
    return model.loss if isinstance(model.loss, Task) else Task(task_of(model.loss), model.loss)


def _score(score: str | Callable[..., Array], name: str | None) -> Score:
    if isinstance(score, str):
        if score not in SCORES:
            raise ValueError(unknown("score", score, SCORES))
        name, score = score, SCORES[score]
    if not callable(score):
        raise ValueError(f"score {score!r} is not a function; give (outputs, y) -> (batch,), or a name in fljax.SCORES")
    name = str(name or getattr(score, "__name__", ""))
    if not name.isidentifier():
        raise ValueError(f"a score is called {name!r}; give it a name: best_two=function")
    if name in CONTRACT:
        raise ValueError(f"score {name!r} has the name of a metric that all tests report; give it another name")
    try:
        parameters = inspect.signature(score).parameters.values()
        n_arguments = sum(parameter.default is parameter.empty for parameter in parameters)
    except (TypeError, ValueError):  # a function written in C has no signature
        n_arguments = 0
    if n_arguments not in (2, 3):
        raise ValueError(
            f"score {name!r} takes {n_arguments} arguments; give (outputs, y) -> (batch,), a value per example, or "
            "(outputs, y, is_there) -> (), a value for all of a client's examples"
        )
    return Score(name, score, of_all=n_arguments == 3)
