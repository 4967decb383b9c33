"""Group-based PFL, naive dynamic: one group for the first rounds, then groups by label distribution.

A baseline, as described by Liu et al. (DC-PFL, https://arxiv.org/abs/2508.01580), which shows that a late split helps.

Differences from the paper: it cuts at a divergence of 12, which gives two groups, but does not describe the smoothing
of label distributions, on which this number depends. Here the number of groups is given.
"""

from fljax.algorithms.group_pfl import group_pfl
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class GroupPFLDynamicHyper(LocalHyper):
    """Hyperparameters of group-based PFL, with the paper's split after 50 rounds."""

    one_group_rounds: Scalar = number(
        50.0, "number of first rounds in which all clients are one group", least=0, infinite=True
    )


@method(GroupPFLDynamicHyper, "as compared in Liu et al., 2025", "https://arxiv.org/abs/2508.01580", kind="clustered")
def group_pfl_dynamic(
    model: Model, work: Work, *, n_groups: Positive = 2, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """Group-based PFL whose groups form in a later round; otherwise as `fljax.group_pfl`.

    Args:
        n_groups: the tree of divergences is cut into this many groups.
    """
    return group_pfl(model, work, n_groups=n_groups, weighting=weighting, combine=combine)
