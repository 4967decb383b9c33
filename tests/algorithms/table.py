"""Every algorithm once, with the smallest settings that exercise it; a new method is tested by adding a line."""

from collections.abc import Callable
from typing import NamedTuple

from fljax.algorithms.adacfl import AdaCFLHyper, adacfl
from fljax.algorithms.cfl import CFLHyper, cfl
from fljax.algorithms.clusterfl import ClusterFLHyper, clusterfl
from fljax.algorithms.dcpfl import DCPFLHyper, dcpfl
from fljax.algorithms.ditto import DittoHyper, ditto
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedavg_ft import FedAvgFTHyper, fedavg_ft
from fljax.algorithms.fedbabu import FedBABUHyper, fedbabu
from fljax.algorithms.fedbn import FedBNHyper, fedbn
from fljax.algorithms.fedcps import FedCPSHyper, fedcps
from fljax.algorithms.fedcr import FedCRHyper, fedcr
from fljax.algorithms.feddane import FedDANEHyper, feddane
from fljax.algorithms.feddist import FedDistHyper, feddist
from fljax.algorithms.feddws import FedDWSHyper, feddws
from fljax.algorithms.fedem import FedEMHyper, fedem
from fljax.algorithms.fedma import fedma
from fljax.algorithms.fedopt import FedOptHyper, fedopt
from fljax.algorithms.fedper import FedPerHyper, fedper
from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.algorithms.fedrep import FedRepHyper, fedrep
from fljax.algorithms.fedsgd import FedSGDHyper, fedsgd
from fljax.algorithms.fedsoft import FedSoftHyper, fedsoft
from fljax.algorithms.fedsr import FedSRHyper, fedsr
from fljax.algorithms.fedsr_ft import FedSRFTHyper, fedsr_ft
from fljax.algorithms.fedtsdp import FedTSDPHyper, fedtsdp
from fljax.algorithms.fesem import FeSEMHyper, fesem
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.flc import FLCHyper, flc
from fljax.algorithms.group_pfl import GroupPFLHyper, group_pfl
from fljax.algorithms.group_pfl_dynamic import GroupPFLDynamicHyper, group_pfl_dynamic
from fljax.algorithms.hypcluster import HypClusterHyper, hypcluster
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.layercfl import LayerCFLHyper, layercfl
from fljax.algorithms.lg_fedavg import LGFedAvgHyper, lg_fedavg
from fljax.algorithms.perfedavg import PerFedAvgHyper, perfedavg
from fljax.algorithms.robust_cfl import RobustCFLHyper, robust_cfl
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.models import variational
from fljax.types import Algorithm, Model, Work
from tests.algorithms.normalised import batch_normalised


class Case(NamedTuple):
    """How to make an algorithm, its numbers, and what it says that a round sends (in models of P parameters)."""

    make: Callable[[Model, Work], Algorithm]
    hyper: NamedTuple
    uplink: Callable[[int], float]
    downlink: Callable[[int], float]
    by_order: bool = False  # even in full batches a client's draws or the order of its examples matter


LAST_LAYER = 6 * 4 + 4
"""Parameters of the last layer of the model in `tests/algorithms/conftest.py`."""

PROBABILISTIC = variational((4, 4, 1), 4, latent=3, hidden=(6,), channels=())
"""For the methods that need a Gaussian representation: layers of 102, 42 and 16 parameters."""

NORMALISED = batch_normalised((4, 4, 1), 4, hidden=6)
"""For the method that keeps the normalisation: layers of 102, 12 and 28 parameters."""


def one_epoch(work: Work) -> Work:
    return work._replace(epochs=1)


CASES = {
    "fedavg": Case(fedavg, FedAvgHyper(0.1), lambda p: p, lambda p: p),
    "fedavg-uniform": Case(
        lambda m, w: fedavg(m, w, weighting="uniform"), FedAvgHyper(0.1, 0.9, 0.5), *[lambda p: p] * 2
    ),
    "fedprox": Case(fedprox, FedProxHyper(0.1, 0.5), lambda p: p, lambda p: p),
    "fedsgd": Case(lambda m, w: fedsgd(m, one_epoch(w)), FedSGDHyper(0.1), lambda p: p, lambda p: p),
    "standalone": Case(standalone, StandaloneHyper(0.1), lambda p: 0, lambda p: 0),
    "ifca": Case(lambda m, w: ifca(m, w, 3), IFCAHyper(0.1), lambda p: p + 1, lambda p: 3 * p),
    "ifca-gradient": Case(
        lambda m, w: ifca(m, one_epoch(w), 2, averaging="gradient"), IFCAHyper(0.1), lambda p: p + 1, lambda p: 2 * p
    ),
    # 4 x 4 - 6 - 4: the first layer in common.
    "ifca-shared": Case(
        lambda m, w: ifca(m, w, 3, n_shared=1), IFCAHyper(0.1), lambda p: p + 1, lambda p: 102 + 3 * LAST_LAYER
    ),
    "fesem": Case(lambda m, w: fesem(m, w, 3), FeSEMHyper(0.1), lambda p: p, lambda p: p),
    "fesem-kernel": Case(
        lambda m, w: fesem(m, w, 3, cluster_on="last_kernel", pull="plain", empty="reseed"),
        FeSEMHyper(0.1, momentum=0.5),
        lambda p: p,
        lambda p: p,
    ),
    "dcpfl": Case(dcpfl, DCPFLHyper(0.1), lambda p: p + 1, lambda p: p),
    "dcpfl-fixed": Case(
        lambda m, w: dcpfl(m, w, dynamic=False, deployed="group"),
        DCPFLHyper(0.1, warmup=1.0, low=1.0, momentum=None),
        lambda p: p + 1,
        lambda p: p,
    ),
    # 4 x 4 - 6 - 4: one base layer and one of the cluster, or all of the cluster and the client.
    "fedcps": Case(fedcps, FedCPSHyper(0.1), lambda p: p + 2, lambda p: 102 + 2 * (28 + 1)),
    "fedcps-personal": Case(
        lambda m, w: fedcps(m, w, 3, sharing="personal_layers", lambda_mode="n_only", deployed="fresh"),
        FedCPSHyper(0.1, 0.3, max_norm=5.0),
        lambda p: 102 + 1,
        lambda p: 3 * 102,
    ),
    "ditto": Case(lambda m, w: ditto(m, w, personal_epochs=1), DittoHyper(0.1, 0.5), lambda p: p, lambda p: p),
    "fedper": Case(fedper, FedPerHyper(0.1), lambda p: p - LAST_LAYER, lambda p: p - LAST_LAYER),
    "fedper-all-personal": Case(
        lambda m, w: fedper(m, w, n_personal=2), FedPerHyper(0.1, 0.9, 0.5), lambda p: 0, lambda p: 0
    ),
    # Which examples fill up a short last batch, and so enter its moments, follows their order.
    "fedbn": Case(lambda m, w: fedbn(NORMALISED, w), FedBNHyper(0.1), *[lambda p: 102 + 28] * 2, by_order=True),
    "fedbn-statistics": Case(
        lambda m, w: fedbn(NORMALISED, w, kept="statistics"),
        FedBNHyper(0.1),
        *[lambda p: 102 + 12 + 28] * 2,
        by_order=True,
    ),
    "fedrep": Case(
        lambda m, w: fedrep(m, w, ft_epochs=1), FedRepHyper(0.1), lambda p: p - LAST_LAYER, lambda p: p - LAST_LAYER
    ),
    "lg_fedavg": Case(lg_fedavg, LGFedAvgHyper(0.1), lambda p: LAST_LAYER, lambda p: LAST_LAYER),
    "fedbabu": Case(
        lambda m, w: fedbabu(m, w, ft_epochs=1), FedBABUHyper(0.1), lambda p: p - LAST_LAYER, lambda p: p - LAST_LAYER
    ),
    "fedavg_ft": Case(lambda m, w: fedavg_ft(m, w, ft_epochs=1), FedAvgFTHyper(0.1, 0.2), lambda p: p, lambda p: p),
    "perfedavg": Case(perfedavg, PerFedAvgHyper(0.1, 0.1), lambda p: p, lambda p: p, by_order=True),
    "perfedavg-hessian": Case(
        lambda m, w: perfedavg(m, w, variant="hessian_free", adapt_steps=2),
        PerFedAvgHyper(0.1, 0.1, momentum=0.5),
        lambda p: p,
        lambda p: p,
        by_order=True,
    ),
    "feddist": Case(feddist, FedDistHyper(0.1), lambda p: p, lambda p: p),
    "feddws": Case(feddws, FedDWSHyper(0.1), lambda p: p, lambda p: p),
    "feddane": Case(feddane, FedDANEHyper(0.1, 0.5), lambda p: 2 * p, lambda p: 2 * p),
    "fedopt-momentum": Case(
        lambda m, w: fedopt(m, w, server_optimizer="momentum"), FedOptHyper(0.1, 0.5), lambda p: p, lambda p: p
    ),
    "fedopt-adam": Case(fedopt, FedOptHyper(0.1), lambda p: p, lambda p: p),
    "fedopt-yogi": Case(lambda m, w: fedopt(m, w, server_optimizer="yogi"), FedOptHyper(0.1), lambda p: p, lambda p: p),
    "fedtsdp": Case(
        lambda m, w: fedtsdp(m, w, public_batch=8, n_draws=2),
        FedTSDPHyper(0.1, threshold=-1.0, eps_weights=0.4, psi=0.9),
        lambda p: p,
        lambda p: p,
    ),
    "fedtsdp-never": Case(
        lambda m, w: fedtsdp(m, w, public_batch=8, stages="weights"),
        FedTSDPHyper(0.1, threshold=2.0),
        lambda p: p,
        lambda p: p,
    ),
    "layercfl": Case(
        lambda m, w: layercfl(m, w, layers="label"),
        LayerCFLHyper(0.1, eps_share=1.1, eps_ratio=0.5, r_min=0),
        lambda p: p,
        lambda p: p,
    ),
    "cfl": Case(cfl, CFLHyper(0.1, eps_1=1e3, eps_2=0.0, gamma_max=None, r_min=-1), lambda p: p, lambda p: p),
    "adacfl": Case(
        lambda m, w: adacfl(m, w, linkage="complete", weighting="uniform"),
        AdaCFLHyper(0.1, eps_share=1.1, eps_ratio=0.5, r_min=-1),
        lambda p: p,
        lambda p: p,
    ),
    "hypcluster": Case(lambda m, w: hypcluster(m, w, 3), HypClusterHyper(0.1), lambda p: p + 1, lambda p: 3 * p),
    "hypcluster-momentum": Case(
        lambda m, w: hypcluster(m, w, server_optimizer="momentum"),
        HypClusterHyper(0.1, 0.5),
        lambda p: p + 1,
        lambda p: 2 * p,
    ),
    # The first round's uplink is a solution and a model.
    "robust_cfl": Case(
        lambda m, w: robust_cfl(m, w, 3, solve_epochs=2, n_init=2), RobustCFLHyper(0.1), lambda p: 2 * p, lambda p: p
    ),
    "clusterfl": Case(
        lambda m, w: clusterfl(m, w, 3), ClusterFLHyper(0.1, 0.2, 0.1, every=2.0), lambda p: p, lambda p: p
    ),
    # The first round's uplink has the counts of the four classes.
    "group_pfl": Case(group_pfl, GroupPFLHyper(0.1, gamma=0.05), lambda p: p + 4, lambda p: p),
    "group_pfl_dynamic": Case(
        group_pfl_dynamic,
        GroupPFLDynamicHyper(0.1, one_group_rounds=2.0),
        lambda p: p + 4,
        lambda p: p,
    ),
    "fedsoft": Case(lambda m, w: fedsoft(m, w, 3), FedSoftHyper(0.1, 0.5), lambda p: p + 3, lambda p: 3 * p),
    "fedem": Case(fedem, FedEMHyper(0.1), lambda p: 3 * p, lambda p: 3 * p),
    # 2 x 4 x 3 + 1: a Gaussian for each class, and a scale.
    "fedsr": Case(lambda m, w: fedsr(PROBABILISTIC, w), FedSRHyper(0.1), *[lambda p: 160 + 25] * 2, by_order=True),
    "fedsr_ft": Case(
        lambda m, w: fedsr_ft(PROBABILISTIC, w, ft_epochs=1),
        FedSRFTHyper(0.1),
        *[lambda p: 160 + 25] * 2,
        by_order=True,
    ),
    "fedcr": Case(
        lambda m, w: fedcr(PROBABILISTIC, w, n_draws=2, ft_epochs=1),
        FedCRHyper(0.1),
        *[lambda p: 144 + 24] * 2,
        by_order=True,
    ),
    "fedma": Case(fedma, FedAvgHyper(0.1), lambda p: p, lambda p: p, by_order=True),
    "fedma-retrain": Case(
        lambda m, w: fedma(m, w, start="common", retrain_epochs=1, output="clients", weighting="uniform"),
        FedAvgHyper(0.1, momentum=0.5),
        lambda p: p,
        lambda p: p,
    ),
    "fesem_ma": Case(lambda m, w: fesem_ma(m, w, 3, empty="reseed"), FeSEMHyper(0.1), lambda p: p, lambda p: p),
    "flc": Case(flc, FLCHyper(0.1, warmup=2.0), lambda p: p, lambda p: p),
}
