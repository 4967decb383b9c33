"""The tasks that a score is for."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)
_TASKS = "tasks"


def of_task(*tasks: str) -> Callable[[Function], Function]:
    """Marks a score as being for some tasks (`fljax.models.task.TaskName`); without the mark, it is for all tasks."""

    def marked(score: Function) -> Function:
        setattr(score, _TASKS, tasks)
        return score

    return marked


def tasks_of(score: Callable) -> tuple[str, ...] | None:
    """The tasks set by `of_task`; None: not set."""
    return getattr(score, _TASKS, None)
