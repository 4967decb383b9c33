"""AdaCFL: clusters split in two by the distance between their members' dense layers.

Known only from its description as a baseline in Yuan et al.: LayerCFL, Cybersecurity 2023.
CFL's recursive bipartition, with the L2 distance between the classifiers' weights.

Differences from the paper: it does not describe AdaCFL's adaptive rules, so CFL's stopping rule replaces them. The test
of gamma does not apply to a distance; without another test, every cluster would be split until it is too small. Hence
``spacing``, and a larger ``min_size``.
"""

from fljax.algorithms.layercfl import SplitHyper, layercfl
from fljax.algorithms.layercfl.layercfl import Linkage
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method
from fljax.types import Algorithm, Model, Work


@hyper
class AdaCFLHyper(SplitHyper):
    spacing: Scalar | None = number(
        1.5,
        "a cluster is split only if its halves are farther apart than this many times the median distance of a member "
        "to its nearest neighbour; None: without this test",
        least=0,
    )
    min_size: Scalar = number(3, "a cluster with this many members or fewer is not split", least=0, infinite=True)


@method(AdaCFLHyper, "as compared in Yuan et al., Cybersecurity 2023", kind="clustered")
def adacfl(
    model: Model,
    work: Work,
    *,
    layers: str | tuple[str, ...] = "dense",
    linkage: Linkage = "single",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """AdaCFL: `layercfl` with ``measure="l2_weight_part"``.

    Args:
        layers: "dense" (all dense layers), another keyword of `layercfl`, or layer names.
        linkage: "single" or "complete".
    """
    return layercfl(
        model, work, layers=layers, measure="l2_weight_part", linkage=linkage, weighting=weighting, combine=combine
    )
