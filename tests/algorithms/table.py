"""Every algorithm once, with the smallest settings that exercise it; a new method is tested by adding a line."""

from collections.abc import Callable
from typing import NamedTuple

from fljax.algorithms.ditto import DittoHyper, ditto
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedbabu import FedBABUHyper, fedbabu
from fljax.algorithms.fedcps import FedCPSHyper, fedcps
from fljax.algorithms.fedper import FedPerHyper, fedper
from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.algorithms.fedrep import FedRepHyper, fedrep
from fljax.algorithms.fedsgd import FedSGDHyper, fedsgd
from fljax.algorithms.fesem import FeSEMHyper, fesem
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.lg_fedavg import LGFedAvgHyper, lg_fedavg
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.types import Algorithm, Model, Work


class Case(NamedTuple):
    """How to make an algorithm, its numbers, and what it says that a round sends (in models of P parameters)."""

    make: Callable[[Model, Work], Algorithm]
    hyper: NamedTuple
    uplink: Callable[[int], float]
    downlink: Callable[[int], float]


LAST_LAYER = 6 * 4 + 4
"""Parameters of the last layer of the model in `tests/algorithms/conftest.py`."""


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
    "fesem": Case(lambda m, w: fesem(m, w, 3), FeSEMHyper(0.1), lambda p: p, lambda p: p),
    "fesem-kernel": Case(
        lambda m, w: fesem(m, w, 3, cluster_on="last_kernel", pull="plain", empty="reseed"),
        FeSEMHyper(0.1, momentum=0.5),
        lambda p: p,
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
    "fedrep": Case(
        lambda m, w: fedrep(m, w, ft_epochs=1), FedRepHyper(0.1), lambda p: p - LAST_LAYER, lambda p: p - LAST_LAYER
    ),
    "lg_fedavg": Case(lg_fedavg, LGFedAvgHyper(0.1), lambda p: LAST_LAYER, lambda p: LAST_LAYER),
    "fedbabu": Case(
        lambda m, w: fedbabu(m, w, ft_epochs=1), FedBABUHyper(0.1), lambda p: p - LAST_LAYER, lambda p: p - LAST_LAYER
    ),
}
