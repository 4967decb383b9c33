"""Group-based PFL, naive dynamic: one group of all clients for a while, then groups by label distribution.

As Liu et al.: Dynamic Clustering for Personalised Federated Learning describe it, to show that splitting late pays.

Differences from the paper: it says where to cut, at a divergence of 12, and that this gives two groups; how it smooths
label distributions, on which that number hangs, it does not say. Here the number of groups is given.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax.algorithms.group_pfl import group_pfl
from fljax.types import Algorithm, Model, Work


class GroupPFLDynamicHyper(NamedTuple):
    """Numbers of group-based PFL, with the paper's split after 50 rounds; see `fljax.algorithms.group_pfl`.

    lr: clients' learning rate, > 0.
    one_group_rounds: rounds before which all clients are one group.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    one_group_rounds: Array | float = 50.0
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def group_pfl_dynamic(model: Model, work: Work, *, n_groups: int = 2, weighting: str = "size") -> Algorithm:
    """Group-based PFL whose groups part in a later round.

    Args:
        model: the network.
        work: local effort.
        n_groups: into so many the clients part.
        weighting: of a group's members, "size" (omega_i = n_i) or "uniform".
    """
    return group_pfl(model, work, n_groups=n_groups, weighting=weighting)
