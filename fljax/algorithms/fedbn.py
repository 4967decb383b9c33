"""FedBN: each client keeps its own normalisation layers; everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
https://arxiv.org/abs/2102.07623. Official code: https://github.com/med-air/FedBN.
Clients train whole models and send all but the normalisation layers; the server averages the rest.
``kept="statistics"`` is SiloBN (Andreux et al., 2020, https://arxiv.org/abs/2008.07424): FedAvg whose clients keep only
the running statistics; scale and bias are averaged.

Differences from the paper: the normalisation layers start equal for all clients, and clients are weighted by size;
equally in the official code, whose clients have equally many examples (``weighting="uniform"``).
"""

from collections.abc import Callable
from typing import Literal

import jax
from flax.traverse_util import flatten_dict

from fljax import tree
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Sharing, Weighting, all_but_paths, averaging, mean, method
from fljax.rounds.sharing import Path
from fljax.types import Algorithm, Model, Work

Kept = Literal["norm", "statistics"]

STAYS: dict[Kept, Callable[[Path], bool]] = {
    "norm": lambda path: path[0] == tree.STATISTICS or "norm" in path,
    "statistics": lambda path: path[0] == tree.STATISTICS,
}
"""Which parameters stay with the client, as a predicate on their path in the model."""


@method(LocalHyper, "Li et al., ICLR 2021", "https://arxiv.org/abs/2102.07623", kind="personalised")
def fedbn(
    model: Model, work: Work, *, kept: Kept = "norm", weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FedBN: ``(theta_i, norm_i) = LocalTrain(theta, norm_i)``; ``theta <- sum_i omega_i theta_i / sum_i omega_i``.

    A new client trains its own normalisation layers from their initial values.

    Args:
        model: the network; it must have the parameters that ``kept`` names.
        kept: what stays with the client: "norm" (scale, bias and running statistics of every normalisation layer) or
            "statistics" (the running statistics of BatchNorm only).

    Raises:
        ValueError: the model has no such parameters.
    """
    norm_paths = _normalisations(model) if kept == "norm" else frozenset()
    sharing = all_but_paths(lambda path: STAYS[kept](path) or path[:-1] in norm_paths)
    _check_kept(kept, sharing, model)
    return averaging(model, work, sharing=sharing, weighting=weighting, combine=combine)


def _normalisations(model: Model) -> frozenset[Path]:
    """Paths of the normalisation layers, whatever their names: only they have a "scale" or running statistics."""
    paths: list[Path] = list(flatten_dict(jax.eval_shape(model.init, jax.random.key(0))))
    tracked = {path[1:-1] for path in paths if path[0] == tree.STATISTICS}
    return frozenset(tracked | {path[:-1] for path in paths if path[-1] == "scale"})


def _check_kept(kept: Kept, sharing: Sharing, model: Model) -> None:
    if not sharing.split(jax.eval_shape(model.init, jax.random.key(0)))[1]:
        allowed = {"norm": "a model with normalisation", "statistics": "a model with BatchNorm"}[kept]
        raise ValueError(f"kept={kept!r}: the model has nothing to keep; choose {allowed}, such as resnet18")
