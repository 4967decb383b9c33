"""A model that tests say more of: scores by name and of the user's own, and the validation split."""

import inspect
from collections.abc import Callable

from jax import Array

from fljax.choices import unknown
from fljax.models.task import Score, Task, scores_of, task_of
from fljax.scores import SCORES
from fljax.scores.tasks import tasks_of
from fljax.types import ExampleLoss, Model

CONTRACT = ("accuracy", "f1", "loss", "mse", "mae", "r2", "test", "row")
"""What the metric contract has of each client, and what the names of its metrics begin with."""


def scored(model: Model, *scores: str | Callable[..., Array], **named: Callable[..., Array]) -> Model:
    """The model, of whose clients every test also says ``scores``: in runs, sweeps and comparisons alike.

    A score of two arguments, ``(outputs, y) -> (batch,)``, is of single examples, and is averaged over a client's. One
    of three, ``(outputs, y, is_there) -> ()``, is of all of a client's examples at once: outputs (capacity, classes),
    ``y`` (capacity,), and where ``is_there`` (capacity,) is False nothing stands that counts. Outputs are what the
    network tells: logits, or a regression's numbers. Both are traced once and run for every client, by `jax.numpy`.

    A score is told as ``client_NAME`` (clients,), ``NAME_macro`` (its mean over clients) and ``NAME_micro`` (weighted
    by the numbers of test examples). A client whose score is NaN, as the area under a curve of one class is, counts in
    neither. Where a client's model gives NaN, its score is NaN, and so are both means, as ``test_loss`` is.

    Args:
        model: the network; its task (`fljax.regression`, `fljax.multi_label`) may be said before or after.
        *scores: names of `fljax.SCORES`, or functions, whose names are the scores'.
        **named: functions by the names of their scores: ``second=lambda outputs, y: ...``.

    Raises:
        ValueError: a name is unknown, taken or stands there twice, or a score is no function of two or three arguments.
            One that is for another task than the model's is refused by what tests it.
    """
    found = {score.name: score for score in scores_of(model.loss)}
    given = [(None, score) for score in scores] + list(named.items())
    for name, score in given:
        made = _score(score, name)
        if made.name in found:
            raise ValueError(f"score {made.name!r} stands there twice; leave one out, or give it another name")
        found[made.name] = made
    return model._replace(loss=_as_task(model)._replace(scores=tuple(found.values())))


def validated(model: Model) -> Model:
    """The model, whose clients are tested on their validation splits too, in every round that is tested.

    Runs then have ``val_accuracy_macro``, ``val_loss`` and so on, as their tests have without ``val_``. By these the
    best round is told without a look at the test examples: the test accuracy of that round is one to report. The
    federation must have a validation split (``val_fraction`` of a partition).
    """
    return model._replace(loss=_as_task(model)._replace(on_validation=True))


def is_validated(loss: ExampleLoss) -> bool:
    """Whether a model with this loss is tested on the validation split too."""
    return isinstance(loss, Task) and loss.on_validation


def check_scores(loss: ExampleLoss) -> None:
    """Raises ValueError where a model with this loss is tested by a score that is for another task."""
    task = task_of(loss)
    for score in scores_of(loss):
        tasks = tasks_of(score.of)
        if tasks is not None and task not in tasks:
            raise ValueError(f"score {score.name!r} is for {' or '.join(tasks)}, and the model's task is {task}")


def _as_task(model: Model) -> Task:
    return model.loss if isinstance(model.loss, Task) else Task(task_of(model.loss), model.loss)


def _score(given: str | Callable[..., Array], name: str | None) -> Score:
    if isinstance(given, str):
        if given not in SCORES:
            raise ValueError(unknown("score", given, SCORES))
        name, given = given, SCORES[given]
    if not callable(given):
        raise ValueError(f"score {given!r} is no function; give (outputs, y) -> (batch,), or a name of fljax.SCORES")
    name = str(name or getattr(given, "__name__", ""))
    if not name.isidentifier():
        raise ValueError(f"a score is called {name!r}; give it a name: best_two=function")
    if name in CONTRACT:
        raise ValueError(f"score {name!r} has the name of one that every test tells; give it another")
    try:
        n_arguments = len([one for one in inspect.signature(given).parameters.values() if one.default is one.empty])
    except (TypeError, ValueError):  # of a function of C nothing is known
        n_arguments = 0
    if n_arguments not in (2, 3):
        raise ValueError(
            f"score {name!r} takes {n_arguments} arguments; give (outputs, y) -> (batch,), a value of each example, or "
            "(outputs, y, is_there) -> (), one of all of a client's"
        )
    return Score(name, given, of_all=n_arguments == 3)
