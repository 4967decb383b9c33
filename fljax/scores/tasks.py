"""Which tasks a score is for."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)
_TASKS = "tasks"


def of_task(*tasks: str) -> Callable[[Function], Function]:
    """Says of a score which tasks (`fljax.models.task.TaskName`) it is for; one that says nothing is for all."""

    def told(score: Function) -> Function:
        setattr(score, _TASKS, tasks)
        return score

    return told


def tasks_of(score: Callable) -> tuple[str, ...] | None:
    """What `of_task` said; None: nothing."""
    return getattr(score, _TASKS, None)
