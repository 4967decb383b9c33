"""Group-based PFL, naive dynamic: one group of all clients for a while, then groups by label distribution.

As Liu et al. (DC-PFL, https://arxiv.org/abs/2508.01580) describe it, to show that splitting late pays.

Differences from the paper: it says where to cut, at a divergence of 12, and that this gives two groups; how it smooths
label distributions, on which that number hangs, it does not say. Here the number of groups is given.
"""

from fljax.algorithms.group_pfl import group_pfl
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class GroupPFLDynamicHyper(LocalHyper):
    """Numbers of group-based PFL, with the paper's split after 50 rounds."""

    one_group_rounds: Scalar = number(50.0, "rounds before which all clients are one group", least=0, infinite=True)


@method(GroupPFLDynamicHyper, "as compared in Liu et al., 2025", "https://arxiv.org/abs/2508.01580", kind="clustered")
def group_pfl_dynamic(
    model: Model, work: Work, *, n_groups: Positive = 2, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """Group-based PFL whose groups part in a later round; else as `fljax.group_pfl`.

    Args:
        n_groups: the tree of divergences is cut into so many groups.
    """
    return group_pfl(model, work, n_groups=n_groups, weighting=weighting, combine=combine)
