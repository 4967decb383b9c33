"""AdaCFL: clusters split in two by the distance between their members' dense layers.

Known here only through its comparison in Yuan et al.: LayerCFL, Cybersecurity 2023.
CFL's recursive bipartition with the L2 distance of the classifier's weights as the measure.

Differences from the paper: its own adaptive rules are not described there, so CFL's stopping rule stands in. A distance
has no test of gamma; without another one every cluster would be split until it is too small. Hence ``spacing``, and a
larger ``min_size``.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax.algorithms.layercfl import layercfl
from fljax.types import Algorithm, Model, Work


class AdaCFLHyper(NamedTuple):
    """Numbers of AdaCFL.

    lr: clients' learning rate, > 0.
    lr_decay: factor on it per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    eps_1: a cluster is stationary when its mean update is shorter; None: ``eps_share`` of the largest so far.
    eps_2: a member is not stationary when its update is longer; None: ``eps_ratio`` times eps_1. inf: never split.
    eps_share: as in CFL.
    eps_ratio: as in CFL.
    spacing: a split needs its halves farther apart than this many times the median distance of a member to its nearest
        neighbour; None: every split that CFL's rule asks for is made.
    r_min: no split up to this round, counted from 0.
    min_size: a cluster of so many members or fewer is not split.
    """

    lr: Array | float = 0.05
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None
    eps_1: Array | float | None = None
    eps_2: Array | float | None = None
    eps_share: Array | float = 0.1
    eps_ratio: Array | float = 4.0
    spacing: Array | float | None = 1.5
    r_min: Array | float = 20
    min_size: Array | float = 3


@cache
def adacfl(
    model: Model,
    work: Work,
    *,
    layers: str | tuple[str, ...] = "dense",
    linkage: str = "single",
    weighting: str = "size",
) -> Algorithm:
    """AdaCFL: `layercfl` with ``measure="l2_weight_part"``.

    ``layers`` is "dense" (all dense layers), another of `layercfl`'s words, or names. ``linkage`` is "single" or
    "complete". ``weighting`` is "size" or "uniform".
    """
    return layercfl(model, work, layers=layers, measure="l2_weight_part", linkage=linkage, weighting=weighting)
