"""Training of several models per client in one loop, on the same batches, each with its own optimiser."""

from typing import Any

import optax
from jax import Array

from fljax import tree
from fljax.client.local import train_clients
from fljax.client.objectives import Loss
from fljax.client.optimizer import Elementwise, local_optimizer
from fljax.types import Batch, Cohort, Key, ModelTable, Params, Trained, Work


def train_parts(
    hyper: Any,
    start: ModelTable,
    cohort: Cohort,
    loss: Loss,
    work: Work,
    first: str | None,
    *own: Any,
    **steps: optax.GradientTransformation,
) -> Trained:
    """The participants' local training of several parts at once.

    Args:
        hyper: the method's hyperparameters.
        start: parts by name, ``{name: models or arrays}``, rows as in any `ModelTable`.
        cohort: the participants.
        loss: ``loss(parts, statistics, batch, key, *own)`` of the trainable parts and the running statistics; the
            updated statistics are taken from the parameters that it returns.
        work: local work.
        first: the part whose statistics are the initial ones of all parts, which share them. None: each part has its
            own, see `fljax.tree.side_by_side`.
        *own: further arguments of ``loss``, one row per participant.
        **steps: optimisers of parts by name, which must treat all entries of a kernel alike; the other parts use the
            optimiser of ``work`` and ``hyper``.
    """
    trainable, statistics = tree.split_statistics(tree.side_by_side(**start.params))
    if first is not None:
        statistics = tree.split_statistics(start.params[first])[1]
    default = local_optimizer(hyper, work, cohort.round)
    optimizer = optax.multi_transform(
        {name: steps.get(name, default) for name in trainable}, {name: name for name in trainable}
    )
    optimizer = Elementwise(*optimizer) if isinstance(default, Elementwise) else optimizer
    table = start._replace(params=tree.join_statistics(trainable, statistics))

    def of_held(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        parts, statistics = tree.split_statistics(params)
        value, updated = loss(parts, statistics, batch, key, *own)
        return value, tree.join_statistics(parts, tree.split_statistics(updated)[1])

    trained = train_clients(cohort.key, table, cohort.data, of_held, optimizer, work, *own, effort=cohort.effort)
    if first is None:
        return trained._replace(params=tree.apart(trained.params))
    parts, statistics = tree.split_statistics(trained.params)
    joined = {
        name: tree.join_statistics(part, statistics if name in _names_with_statistics(start.params) else {})
        for name, part in parts.items()
    }
    return trained._replace(params=joined)


def _names_with_statistics(parts: dict[str, Params]) -> set[str]:
    """Names of the parts that have running statistics."""
    return {name for name, part in parts.items() if tree.split_statistics(part)[1]}
