"""The start of a run: its folder's newest undamaged checkpoint, or round 0."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.devices import hosts
from fljax.folder import checkpoint as files
from fljax.folder.round_seconds import Spent, spent_of
from fljax.folder.rounds import Written, cut_back, n_written, read_whole
from fljax.folder.same_run import check_rounds, check_same_run
from fljax.folder.surroundings import continued
from fljax.metrics.churn import churn_of_rounds
from fljax.types import State


class Begun(NamedTuple):
    """The start of the loop."""

    state: State
    round: int
    labels: np.ndarray | None  # before the round, as from `churn_of_rounds`
    n_clients: int
    written: Written = Written()
    history: list[dict[str, Any]] = []  # noqa: RUF012 - a NamedTuple's default, never changed
    spent: Spent = Spent()


def begin(
    folder: Path | None,
    state: State,
    identity: dict[str, Any],
    n_clients: int,
    n_rounds: int,
    writable: bool,
    now: dict[str, Any],
    force: bool,
) -> Begun:
    """The folder's newest undamaged checkpoint, or the given state at round 0.

    Raises:
        ValueError: the folder holds another run, a damaged one, one of more than ``n_rounds``, or one with other
            versions or devices than ``now``; or it is not writable and not finished.
    """
    start = Begun(state, 0, None, n_clients, history=[{"round": 0, **now}])
    if folder is None:
        return start

    def same(of_folder: dict[str, Any], history: list[dict[str, Any]]) -> None:
        check_same_run(folder, of_folder, identity, [*history, now])

    def look(stored: files.Checkpoint) -> dict[str, np.ndarray]:
        check_rounds(folder, stored.round, n_rounds)
        return read_whole(folder, stored.round, stored.written)

    newest = files.newest(folder, state, look, same)
    if newest is None:
        check_has_checkpoints(folder, n_rounds)
    if newest is not None:
        stored, metrics, _ = newest
        labels = churn_of_rounds(metrics, n_clients)[1] if "label" in metrics else None
        is_done = stored.round == n_rounds
        history = stored.history if is_done else continued(folder, stored.history, now, {"round": stored.round}, force)
        resumed = jax.tree.map(jnp.asarray, stored.state)
        start = Begun(resumed, stored.round, labels, n_clients, stored.written, history, spent_of(folder, stored.round))
    if not writable and start.round < n_rounds:
        raise ValueError(f"{folder} is not writable; copy it to a place that is, or choose another folder")
    if hosts.writes() and writable:
        if newest is not None:
            files.drop_newer(folder, newest[2])
        cut_back(folder, start.round, start.written.metrics_bytes)
        if start.round < n_rounds:
            (folder / files.FOLDER).mkdir(parents=True, exist_ok=True)  # before any rounds: see `check_has_checkpoints`
    return start


def check_has_checkpoints(folder: Path, n_rounds: int) -> None:
    """Raises ValueError if a folder has rounds but its checkpoints have been deleted.

    A run that was interrupted before its first checkpoint has the folder for it, and begins again.
    """
    if not (n_stored := n_written(folder)):
        return
    if not (checkpoints := folder / files.FOLDER).is_dir():
        raise ValueError(
            f"{folder} holds {n_stored} rounds, but {checkpoints}, which identifies their run, is missing; restore it, "
            f"or delete {folder} to make them again"
        )
    check_rounds(folder, n_stored, n_rounds)
