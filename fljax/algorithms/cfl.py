"""CFL: clusters split in two while their members' updates still point in different directions.

Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints, IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991; also called FMTL and FedCluster.
Official code: https://github.com/felisat/clustered-federated-learning.
LayerCFL that compares whole updates: see `fljax.algorithms.layercfl` for the splitting rule.

Differences from the paper: those of `fljax.algorithms.layercfl`. The official code has complete linkage, uniform
weights and no test of gamma: ``linkage="complete"``, ``weighting="uniform"``, ``gamma_max=None``. When a half is split
again, its notebook uses positions within the half as client numbers; here they are the half's own members.
"""

from fljax.algorithms.layercfl import LayerCFLHyper, layercfl
from fljax.algorithms.layercfl.layercfl import Linkage
from fljax.rounds import Combining, Weighting, mean, method
from fljax.types import Algorithm, Model, Work


@method(LayerCFLHyper, "Sattler et al., IEEE TNNLS 2020", "https://arxiv.org/abs/1910.01991", kind="clustered")
def cfl(
    model: Model, work: Work, *, linkage: Linkage = "single", weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """CFL: `layercfl` with ``measure="cos_update_full"``.

    Args:
        linkage: "single" (the optimal bipartition) or "complete".
    """
    return layercfl(
        model, work, layers="all", measure="cos_update_full", linkage=linkage, weighting=weighting, combine=combine
    )
