"""FedBN: each client keeps its own normalisation, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
https://arxiv.org/abs/2102.07623. Official code: https://github.com/med-air/FedBN.
Clients train whole models, and send all but the normalisation layers; the server averages what it gets.
``kept="statistics"`` is SiloBN (Andreux et al., 2020, https://arxiv.org/abs/2008.07424), FedAvg whose clients keep
the running statistics alone: scale and bias are averaged.

Differences from the paper: the normalisation starts equal for all clients, and these count by their sizes; all alike in
the official code, whose clients have equally many examples (``weighting="uniform"``).
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
"""Which parameters stay with the client: a predicate on their path in the model."""


@method(LocalHyper, "Li et al., ICLR 2021", "https://arxiv.org/abs/2102.07623", kind="personalised")
def fedbn(
    model: Model, work: Work, *, kept: Kept = "norm", weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FedBN: ``(theta_i, norm_i) = LocalTrain(theta, norm_i)``; ``theta <- sum_i omega_i theta_i / sum_i omega_i``.

    A client that never took part trains its own normalisation from the start.

    Args:
        model: the network; it must have what ``kept`` names.
        kept: what stays with the client: "norm" (scale, bias and running statistics of every normalisation layer) or
            "statistics" (the running statistics of BatchNorm only).

    Raises:
        ValueError: a model with nothing to keep.
    """
    own = _normalisations(model) if kept == "norm" else frozenset()
    sharing = all_but_paths(lambda path: STAYS[kept](path) or path[:-1] in own)
    _check_kept(kept, sharing, model)
    return averaging(model, work, sharing=sharing, weighting=weighting, combine=combine)


def _normalisations(model: Model) -> frozenset[Path]:
    """Where normalisation layers stand, whatever they are called: a "scale", or running statistics, is theirs alone."""
    paths: list[Path] = list(flatten_dict(jax.eval_shape(model.init, jax.random.key(0))))
    tracked = {path[1:-1] for path in paths if path[0] == tree.STATISTICS}
    return frozenset(tracked | {path[:-1] for path in paths if path[-1] == "scale"})


def _check_kept(kept: Kept, sharing: Sharing, model: Model) -> None:
    if not sharing.split(jax.eval_shape(model.init, jax.random.key(0)))[1]:
        allowed = {"norm": "a model with normalisation", "statistics": "a model with BatchNorm"}[kept]
        raise ValueError(f"kept={kept!r}: the model has nothing to keep; choose {allowed}, such as resnet18")
