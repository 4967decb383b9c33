"""Which examples of the data a job's clients have, if a drift or an attack has changed copies of them."""

import numpy as np

from fljax.catalogue.own import find
from fljax.jobs.job import Job
from fljax.jobs.parts import make_parts
from fljax.types import Algorithm, ClientData, Federation


def rows_before_changes(job: Job, algorithm: Algorithm, split: str, round: int, data: ClientData) -> np.ndarray:
    """(clients, capacity) row numbers of the original examples in the pool, for examples that may be changed copies.

    Changed copies stand behind all original examples, for each client in the order of its originals.

    Args:
        job: the job, with its drift and its attack.
        algorithm: the algorithm that runs; it knows the attackers.
        split: "train", "val" or "test".
        round: counted from 0.
        data: that split of the job's federation, in the round.
    """
    index = np.asarray(data.with_own_rows().index)
    if job.run.drift == job.run.attack == "none":
        return index
    unchanged, _ = make_parts(job)
    owner = _owners(job, unchanged, round)
    attackers = dict(algorithm.about.choices).get("attack.attackers", ())
    if split == "train" and find("attack", job.run.attack)(**job.settings["attack"]).poison is not None:
        owner[list(attackers)] = attackers  # attackers keep their poisoned examples
    original: ClientData = getattr(unchanged, split)
    original_index = np.asarray(original.with_own_rows().index)
    return np.where(index < len(original.pool.y), index, original_index[owner])


def _owners(job: Job, unchanged: Federation, round: int) -> np.ndarray:
    """(clients,) the client whose data each client has."""
    drift = find("drift", job.run.drift)(**job.settings["drift"])
    if drift.timeline is None:
        return np.arange(len(unchanged.train.size))
    return np.array(drift.timeline(unchanged).owner[(np.array(drift.begins) <= round).sum() - 1])
